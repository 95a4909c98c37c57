"""Rows are computed at the shortest of a few widths that holds them.

Padding costs as much as text, and every width is compiled once: a handful of widths
saves most of the padding of rows whose lengths differ.
"""

import bisect
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Shaped

T = TypeVar("T")


def row_widths(longest: int, count: int) -> list[int]:
    """At most `count` widths in equal steps, the last one `longest`."""
    return sorted({-(-longest * (i + 1) // count) for i in range(count)})


def shared_length(needed: int, longest: int, count: int) -> int:
    """The shortest of at most `count` lengths that holds `needed` tokens.

    They are `longest` and the next powers of two below it. Games whose longest texts
    differ so share all lengths but one, and what is compiled for a length.

    Raises:
      ValueError: none does.
    """
    if needed > longest:
        raise ValueError(f"{needed} tokens do not fit into {longest}")
    powers = [1 << i for i in range((longest - 1).bit_length())]
    lengths = [*powers[max(0, len(powers) - count + 1) :], longest]
    return lengths[bisect.bisect_left(lengths, needed)]


def at_width(
    function: Callable[[PyTree], T],
    rows: PyTree[Shaped[Array, "b ..."]],
    lengths: Int[Array, " b"],
    *,
    longest: int,
    count: int,
) -> T:
    """`function` of the rows, cut to the shortest of `count` widths. Call it in `jit`.

    Args:
      function: of rows of any width; its result has one shape for all widths.
      rows: arrays [b] and [b, longest].
      lengths: tokens of each row that count.
      longest, count: see `row_widths`.
    """
    widths = row_widths(longest, count)
    if len(widths) == 1:
        return function(rows)

    def branch(width: int):
        return lambda rows: function(
            jax.tree.map(lambda x: x[:, :width] if x.ndim > 1 else x, rows)
        )

    needed = jnp.searchsorted(jnp.array(widths), jnp.max(lengths))
    return jax.lax.switch(needed, [branch(width) for width in widths], rows)
