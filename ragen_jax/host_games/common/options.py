"""Checks of the options of games.

In: an option's name and its value. Out: nothing, or a ValueError that says the value
and what is allowed.
"""

import math
from collections.abc import Collection


def check_one_of(name: str, value: object, allowed: Collection) -> None:
    """Raises ValueError unless `value` is one of `allowed`."""
    # A list compares, where a set or a dict would have to hash the value.
    if value not in list(allowed):
        raise ValueError(f"{name} is {value!r}; use {' or '.join(map(str, allowed))}")


def check_bool(name: str, value: object) -> None:
    """Raises ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; use True or False")


def check_whole(
    name: str, value: object, least: int = 1, most: float = math.inf
) -> None:
    """Raises ValueError unless `value` is an integer from `least` to `most`."""
    # True and False are integers to Python.
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:
        is_open = most == math.inf
        bound = f"of at least {least}" if is_open else f"from {least} to {most}"
        raise ValueError(f"{name} is {value!r}; use a whole number {bound}")


def check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> None:
    """Raises ValueError unless `value` is a finite number within the bounds.

    Args:
      name: of the option.
      value: int or float, but not bool.
      above, below: bounds that the value must not reach.
      least, most: bounds that it may reach.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_finite = is_number and math.isfinite(value)
    if not is_finite or not (above < value < below and least <= value <= most):
        words = ("above", "below", "of at least", "of at most")
        bounds = zip(words, (above, below, least, most), strict=True)
        given = [f" {word} {bound:g}" for word, bound in bounds if math.isfinite(bound)]
        rule = f"use a finite number{' and'.join(given)}"
        raise ValueError(f"{name} is {value!r}; {rule}")


def check_task(task: int | None, num_tasks: int) -> None:
    """Raises ValueError for the number of a task that the split does not have."""
    if task is not None and not 0 <= task < num_tasks:
        raise ValueError(f"task is {task}; use 0 to {num_tasks - 1}")


def refuse_given(reason: str, **options: object) -> None:
    """Raises ValueError if one of the options is not None.

    Args:
      reason: why they have no effect and what to do, after "OPTION is VALUE".
      options: by their names.
    """
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} is {value!r} {reason}, or leave {name} out")
