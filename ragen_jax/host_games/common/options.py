"""What the options of proofs must be.

In: options by name. Out: nothing, or a sentence. Refuses to know what they do.
"""

import math
from collections.abc import Mapping


def refuse_others(options: Mapping[str, object], data: str | None) -> None:
    """Nothing, if options of the other kind of problem are left out.

    Args:
      options: those of the kind that is not played.
      data: None: generated theorems are played.

    Raises:
      ValueError: some are given, which would do nothing.
    """
    given = [name for name, value in options.items() if value is not None]
    if given:
        what = "generated theorems, and data" if data is not None else "data, and none"
        raise ValueError(
            f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} for {what} is "
            f"given; leave {'it' if len(given) == 1 else 'them'} out."
        )


def check_counts(counts: Mapping[str, object]) -> None:
    """Nothing, if all are whole numbers above 0.

    Raises:
      ValueError: one is not.
    """
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; use a whole number above 0.")


def check_rewards(rewards: Mapping[str, object]) -> None:
    """Nothing, if all are finite numbers.

    Raises:
      ValueError: one is not.
    """
    for name, value in rewards.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}; use a finite number.")
