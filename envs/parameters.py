"""Ranges in which the numbers of a game mean something.

In: the fields of a game's `EnvParams`, declared with `number`. Out: a sentence on the
first value outside its range.
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
    """The first value of an `EnvParams` outside its range; None: there is none."""
    for field in dataclasses.fields(params):
        lowest = _AT_LEAST.get(field.name, -math.inf)
        least, most = field.metadata.get("range", (lowest, math.inf))
        value = getattr(params, field.name)
        if not least <= value <= most:
            return f"{field.name} = {value!r}; it must be {_words(least, most)}"
    return None


def _words(least: float, most: float) -> str:
    if least == -math.inf:
        return f"{most:g} or less"
    if most == math.inf:
        return f"{least:g} or more"
    return f"between {least:g} and {most:g}"
