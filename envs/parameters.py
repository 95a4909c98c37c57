"""Ranges of the numbers of a game: of its `EnvParams` and of its options.

In: fields declared with `number`; values of options. Out: a sentence on the first value
outside its range.
"""

import dataclasses
import math
from typing import Any

from flax import struct

# Without a step there is no game.
_AT_LEAST = {"max_steps_in_episode": 1}


def number(default: float, *, least: float = -math.inf, most: float = math.inf) -> Any:
    """A field of an `EnvParams` with its range, both ends included."""
    return struct.field(default=default, metadata={"range": (least, most)})


def range_problem(params: Any) -> str | None:
    """A sentence on the first value of an `EnvParams` outside its range, or None."""
    for field in dataclasses.fields(params):
        lowest = _AT_LEAST.get(field.name, -math.inf)
        least, most = field.metadata.get("range", (lowest, math.inf))
        value = getattr(params, field.name)
        if not least <= value <= most:
            return f"{field.name} = {value!r}; it must be {_words(least, most)}"
    return None


def check_whole(
    name: str, value: Any, least: int, most: int | None = None, *, why: str = ""
) -> None:
    """Refuses an option that is not a whole number in its range, both ends included.

    Args:
      why: appended to the sentence, such as ": the board has no more cells".

    Raises:
      ValueError: says what was found and what is allowed.
    """
    # A bool is an int to Python, but True rows are a mistake.
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        allowed = f", at least {least}" if most is None else f" from {least} to {most}"
        raise ValueError(f"{name}={value!r} must be a whole number{allowed}{why}")


def check_order(least_name: str, least: int, most_name: str, most: int) -> None:
    """Refuses two ends of a range in the wrong order.

    Raises:
      ValueError: names both.
    """
    if least > most:
        raise ValueError(
            f"{least_name}={least} is above {most_name}={most}; give both, the smaller "
            "number first"
        )


def check_flag(name: str, value: Any) -> None:
    """Refuses an option that is not a bool.

    Raises:
      ValueError: names the option and its value.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be True or False")


def _words(least: float, most: float) -> str:
    if least == -math.inf:
        return f"{most:g} or less"
    if most == math.inf:
        return f"{least:g} or more"
    return f"between {least:g} and {most:g}"
