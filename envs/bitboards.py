"""Boards as bits: one bit per cell, cells numbered row by row, 32 cells to a word.

In: cell numbers and masks. Out: sets of cells with the operators of sets. The words are
kept as a tuple of separate arrays, so that a batch of boards is a handful of plain
vectors: every operation is elementwise and a whole flood fill costs a few instructions
per board. No rules of any game in here.

Moving a set by one cell is a shift of all bits. Nothing checks for row ends: callers
intersect with a set that leaves the border of the board out.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, UInt32

WORD_BITS = 32
# Up, down, left, right, as (row, column) steps.
DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))


@struct.dataclass
class Bitboard:
    """A set of cells; `words[j]` holds the cells from `32 * j` on, lowest bit first.

    Leading axes of the words are those of a batch of sets.
    """

    words: tuple[UInt32[Array, "..."], ...]

    def __and__(self, other: "Bitboard") -> "Bitboard":
        return _combine(jnp.bitwise_and, self, other)

    def __or__(self, other: "Bitboard") -> "Bitboard":
        return _combine(jnp.bitwise_or, self, other)

    def __invert__(self) -> "Bitboard":
        return Bitboard(tuple(~word for word in self.words))

    def shift(self, offset: int) -> "Bitboard":
        """The set moved by `offset` cells; cells moved off either end are lost."""
        skipped, bits = divmod(abs(offset), WORD_BITS)
        order = 1 if offset >= 0 else -1
        words = self.words[::order]
        zero = jnp.zeros_like(words[0])
        words = ((zero,) * skipped + words)[: len(words)]
        if bits:
            up = jnp.left_shift if offset >= 0 else jnp.right_shift
            down = jnp.right_shift if offset >= 0 else jnp.left_shift
            carried = (zero, *(down(w, np.uint32(WORD_BITS - bits)) for w in words))
            words = tuple(
                up(w, np.uint32(bits)) | c for w, c in zip(words, carried, strict=False)
            )
        return Bitboard(words[::order])

    def spread(self, offsets: Sequence[int]) -> "Bitboard":
        """Union of the sets moved by each of the offsets."""
        return functools.reduce(
            Bitboard.__or__, (self.shift(offset) for offset in offsets)
        )

    def where(self, condition: Bool[Array, "..."]) -> "Bitboard":
        """The set where the condition holds, else the empty set."""
        return Bitboard(tuple(jnp.where(condition, w, 0) for w in self.words))

    def contains(self, cell: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether the cell is in the set; False for numbers outside the board."""
        return (self & single(cell, len(self.words))).is_nonempty()

    def is_nonempty(self) -> Bool[Array, "..."]:
        """Whether the set has any cell."""
        return functools.reduce(jnp.bitwise_or, self.words) != 0

    def to_mask(self, num_cells: int) -> Bool[Array, " cells"]:
        """The set as one flag per cell."""
        positions = jnp.arange(WORD_BITS, dtype=jnp.uint32)
        bits = jnp.stack(self.words)[:, None] >> positions[None, :]
        return (bits & 1).astype(bool).reshape(-1)[:num_cells]


def num_words(num_cells: int) -> int:
    """Words that hold a board of this many cells."""
    return -(-num_cells // WORD_BITS)


def neighbour_offsets(cols: int) -> tuple[int, ...]:
    """Differences between the numbers of neighbouring cells, as in `DIRECTIONS`."""
    return tuple(row * cols + col for row, col in DIRECTIONS)


def single(cell: Int[Array, "..."], words: int) -> Bitboard:
    """The set of one cell; empty when the number is outside the board."""
    cell = jnp.asarray(cell, jnp.int32)
    bit = jnp.uint32(1) << (cell & (WORD_BITS - 1)).astype(jnp.uint32)
    word = cell >> 5
    zero = jnp.uint32(0)
    return Bitboard(tuple(jnp.where(word == j, bit, zero) for j in range(words)))


def empty(words: int) -> Bitboard:
    """The set of no cell."""
    return Bitboard((jnp.uint32(0),) * words)


def from_mask(mask: Bool[Array, " cells"]) -> Bitboard:
    """The set of the flagged cells."""
    words = num_words(mask.size)
    padded = jnp.pad(mask.reshape(-1), (0, words * WORD_BITS - mask.size))
    positions = jnp.arange(WORD_BITS, dtype=jnp.uint32)
    bits = padded.reshape(words, WORD_BITS).astype(jnp.uint32) << positions[None, :]
    return Bitboard(tuple(bits.sum(axis=1, dtype=jnp.uint32)))


def flood(
    start: Bitboard, free: Bitboard, *, offsets: Sequence[int], steps: int
) -> Bitboard:
    """Cells of `free` within `steps` moves of `start`, `start` included."""

    def grow(_, region):
        return region | (region.spread(offsets) & free)

    return jax.lax.fori_loop(0, steps, grow, start)


def _combine(operation, left: Bitboard, right: Bitboard) -> Bitboard:
    pairs = zip(left.words, right.words, strict=True)
    return Bitboard(tuple(operation(a, b) for a, b in pairs))
