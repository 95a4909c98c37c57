"""Searching in byte buffers with vector operations, one buffer at a time.

In: `uint8` buffers whose tail is padding. Out: masks and copies. Knows nothing about
tags or games. Everything is written for one row and made to stay cheap under `vmap` on
a CPU, which is why there is no gather of bytes in here: one of all bytes costs more
than a whole parse. What needs runs or positions works on `ragen_jax.text.bits`.

`X` is the number of cells that are searched, `Y` that of the buffer, padding included.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt8

from ragen_jax.text import bits

State = TypeVar("State")


def find(text: UInt8[Array, " Y"], pattern: bytes, num_cells: int) -> Bool[Array, " X"]:
    """Cells of `text[:num_cells]` at which `pattern` begins.

    `text` must be at least `len(pattern) - 1` cells longer than `num_cells`.
    """
    found = text[:num_cells] == pattern[0]
    for offset, byte in enumerate(pattern[1:], start=1):
        found &= text[offset : offset + num_cells] == byte
    return found


def find_row(
    text: UInt8[Array, " Y"], pattern: UInt8[Array, " P"], num_cells: int
) -> Bool[Array, " X"]:
    """`find` for a traced pattern, which ends at its first 0.

    `text` must be at least `P - 1` cells longer than `num_cells`.
    """
    found = jnp.ones(num_cells, bool)
    for offset in range(pattern.shape[0]):
        byte = pattern[offset]
        found &= (text[offset : offset + num_cells] == byte) | (byte == 0)
    return found


def is_white(text: UInt8[Array, "..."]) -> Bool[Array, "..."]:
    """ASCII white space: blank, tab, newline, vertical tab, form feed, return."""
    # Unsigned arithmetic wraps, so one comparison covers 9..13.
    return (text == ord(" ")) | (text - jnp.uint8(9) < 5)


def to_lower(text: UInt8[Array, "..."]) -> UInt8[Array, "..."]:
    """ASCII capitals to small letters; all other bytes stay."""
    is_capital = text - jnp.uint8(ord("A")) < 26
    return jnp.where(is_capital, text | jnp.uint8(0x20), text)


def remove(
    text: UInt8[Array, " Y"],
    starts: Bool[Array, " X"],
    width: Int[Array, ""],
    *,
    max_width: int,
) -> UInt8[Array, " Y"]:
    """Removes the `width` cells from each start on and closes the gaps.

    What is removed must not overlap. The freed cells at the end become 0.
    """
    (num_cells,) = text.shape
    pad = (max_width - 1, num_cells - starts.shape[0])
    padded = jnp.pad(starts, pad)
    removed = jnp.zeros(num_cells, bool)
    for offset in range(max_width):
        begin = max_width - 1 - offset
        removed |= padded[begin : begin + num_cells] & (offset < width)
    shift = bits.running_count(bits.pack(removed), num_cells)
    target = jnp.where(removed, num_cells, jnp.arange(num_cells) - shift)
    return jnp.zeros_like(text).at[target].set(text, mode="drop")


def rarely(
    is_needed: Bool[Array, ""],
    function: Callable[..., State],
    state: State,
    *inputs: Array,
) -> State:
    """`function(state, *inputs)` where needed, else `state`; free if no row needs it.

    Under `vmap` a `cond` turns into a selection that always pays for both sides. This
    one stays a branch: of the whole batch, taken when any row asks for it. Everything
    traced that the work depends on must be an argument.
    """

    @jax.custom_batching.custom_vmap
    def choose(is_needed, state, *inputs):
        return lax.cond(is_needed, lambda: function(state, *inputs), lambda: state)

    @choose.def_vmap
    def choose_over_rows(num_rows, is_batched, is_needed, state, *inputs):
        def spread(x: Array, is_batched: bool) -> Array:
            return x if is_batched else jnp.broadcast_to(x, (num_rows, *x.shape))

        is_needed = spread(is_needed, is_batched[0])
        state = jax.tree.map(spread, state, is_batched[1])
        axes = jax.tree.map(lambda of_rows: 0 if of_rows else None, is_batched[2:])

        def change_row(is_needed, state, *inputs):
            select = functools.partial(jnp.where, is_needed)
            return jax.tree.map(select, function(state, *inputs), state)

        def change() -> State:
            change_rows = jax.vmap(change_row, in_axes=(0, 0, *axes))
            return change_rows(is_needed, state, *inputs)

        state = lax.cond(jnp.any(is_needed), change, lambda: state)
        return state, jax.tree.map(lambda _: True, state)

    return choose(is_needed, state, *inputs)
