"""Searching in byte buffers with vector operations, one buffer at a time.

In: `uint8` buffers whose tail is padding, masks and small codes over their cells. Out:
masks, positions, copies. Knows nothing about tags or games. Everything is written for
one row and made to stay cheap under `vmap` on a CPU, which is why there is no `cumsum`,
gather of bytes or `cond` in here: XLA's running maximum of 320 cells costs five times a
scan over doubling strides, and a gather of all bytes twice a whole parse.

`X` is the number of cells of a buffer.
"""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt8

State = TypeVar("State")


def index_dtype(num_cells: int) -> jnp.dtype:
    """The narrowest integer that can count the cells of a buffer and a few more."""
    if num_cells < 2**7 - 2**4:
        return jnp.dtype(jnp.int8)
    return jnp.dtype(jnp.int16 if num_cells < 2**15 - 2**8 else jnp.int32)


def positions(num_cells: int) -> Int[Array, " X"]:
    """The index of every cell."""
    return jnp.arange(num_cells, dtype=index_dtype(num_cells))


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


def first(mask: Bool[Array, " X"]) -> Int[Array, ""]:
    """Index of the first True cell, `X` where there is none."""
    (num_cells,) = mask.shape
    return _fold(jnp.minimum, jnp.where(mask, positions(num_cells), num_cells))


def last(mask: Bool[Array, " X"]) -> Int[Array, ""]:
    """Index of the last True cell, -1 where there is none."""
    return _fold(jnp.maximum, jnp.where(mask, positions(mask.shape[0]), -1))


def is_white(text: UInt8[Array, "..."]) -> Bool[Array, "..."]:
    """ASCII white space: blank, tab, newline, vertical tab, form feed, return."""
    # Unsigned arithmetic wraps, so one comparison covers 9..13.
    return (text == ord(" ")) | (text - jnp.uint8(9) < 5)


def to_lower(text: UInt8[Array, "..."]) -> UInt8[Array, "..."]:
    """ASCII capitals to small letters; all other bytes stay."""
    is_capital = text - jnp.uint8(ord("A")) < 26
    return jnp.where(is_capital, text | jnp.uint8(0x20), text)


def fill_from_left(
    codes: UInt8[Array, " X"], before: int, *, first_stride: int = 1
) -> UInt8[Array, " X"]:
    """Gives each 0 the nearest code other than 0 to its left.

    Looks only at multiples of `first_stride` (a power of two) to the left; `before` is
    the code of all cells left of the buffer.
    """

    def fill(here: UInt8[Array, " X"], left: UInt8[Array, " X"]) -> UInt8[Array, " X"]:
        return jnp.where(here != 0, here, left)

    return _scan_from_left(fill, codes, before, first_stride)


def running_count(mask: Bool[Array, " X"]) -> Int[Array, " X"]:
    """How many cells up to and including each one are True."""
    return _scan_from_left(jnp.add, mask.astype(index_dtype(mask.shape[0])), 0, 1)


def fill_from_right(
    codes: UInt8[Array, " X"],
    after: int,
    *,
    first_stride: int = 1,
    reach: int | None = None,
) -> UInt8[Array, " X"]:
    """Gives each 0 the nearest code other than 0 to its right.

    `after` is the code of all cells right of the buffer. With a `reach`, stops once
    runs of 0 up to that long are filled; a later call whose `first_stride` is the
    smallest power of two above that reach goes on from there.
    """
    strides = _strides(first_stride, codes.shape[0] if reach is None else reach)
    codes = jnp.pad(codes, (0, sum(strides)), constant_values=after)
    for stride in strides:
        here, right = codes[: codes.shape[0] - stride], codes[stride:]
        codes = jnp.where(here != 0, here, right)
    return codes


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
    shift = running_count(removed)
    target = jnp.where(removed, num_cells, positions(num_cells) - shift)
    return jnp.zeros_like(text).at[target].set(text, mode="drop")


def rarely(
    is_needed: Bool[Array, ""],
    function: Callable[..., State],
    state: State,
    *inputs: Array,
) -> State:
    """`function(state, *inputs)` where needed, else `state`; free if no row needs it.

    Under `vmap` a `cond` turns into a selection that always pays for both sides. A loop
    of at most one pass is left out as long as no row of the whole batch asks for it.
    Everything the work depends on must be an argument: what a loop's body closes over
    is constant in the loop, and XLA moves constant work out in front of it.
    """

    def run_once(carry: tuple[Bool[Array, ""], State]):
        is_needed, state = carry
        # Rows in no need get zeros: a dependence that keeps the work in the loop.
        own = (jnp.where(is_needed, array, 0) for array in inputs)
        return jnp.zeros_like(is_needed), function(state, *own)

    return lax.while_loop(lambda carry: carry[0], run_once, (is_needed, state))[1]


def _strides(first_stride: int, reach: int) -> list[int]:
    """Powers of two from `first_stride` on that together span `reach` cells."""
    strides, stride = [], first_stride
    while stride <= reach:
        strides.append(stride)
        stride *= 2
    return strides


def _scan_from_left(
    function: Callable[[Array, Array], Array],
    cells: Array,
    before: int,
    first_stride: int,
) -> Array:
    """Combines each cell with those to its left, in strides that double.

    A loop rather than straight code: XLA would fuse the steps with what comes before
    and after and compute the same cells many times over.
    """
    (num_cells,) = cells.shape
    strides = _strides(first_stride, num_cells)
    margin = strides[-1] if strides else 0
    padded = jnp.pad(cells, (margin, 0), constant_values=before)

    def step(i: Int[Array, ""], padded: Array) -> Array:
        stride = jnp.left_shift(first_stride, i)
        left = lax.dynamic_slice(padded, (margin - stride,), (num_cells,))
        combined = function(padded[margin:], left)
        return lax.dynamic_update_slice(padded, combined, (margin,))

    return lax.fori_loop(0, len(strides), step, padded)[margin:]


def _fold(
    function: Callable[[Array, Array], Array], cells: Int[Array, " X"]
) -> Int[Array, ""]:
    """Folds a buffer with an idempotent function, halving it: fast vector code."""
    while cells.shape[0] > 1:
        half = (cells.shape[0] + 1) // 2
        cells = function(cells[:half], cells[cells.shape[0] - half :])
    return cells[0]
