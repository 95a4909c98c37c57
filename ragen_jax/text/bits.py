"""Sets of cells as bits, 32 to a word, for searching byte buffers.

In: masks over the cells of a buffer. Out: words, and positions read from them. Bit
`i % 32` of word `i // 32` stands for cell `i`. What a loop over cells would do (cross a
run, number what it meets) is an addition here: its carry runs through the ones, as in
simdjson (Langdale and Lemire, arXiv 1902.08318, section 3.1.1). A search of a whole
batch is then a handful of word operations, and neither a scan nor a gather.

Written for one row, for `vmap`. `X` cells, `W` words.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

WORD_BITS = 32
# The cells with an even index, in every word.
EVEN = jnp.uint32(0x55555555)
_ONES = jnp.uint32(0xFFFFFFFF)


def pack(mask: Bool[Array, " X"]) -> UInt32[Array, " W"]:
    """The cells of a mask; those behind its end are not in the set."""
    num_words = -(-mask.shape[0] // WORD_BITS)
    padded = jnp.pad(mask, (0, num_words * WORD_BITS - mask.shape[0]))
    cells = padded.reshape(num_words, WORD_BITS).astype(jnp.uint32)
    return jnp.sum(cells << _places(), axis=1, dtype=jnp.uint32)


def below(index: Int[Array, ""], num_words: int) -> UInt32[Array, " W"]:
    """The cells before `index`, which may lie outside the buffer."""
    size = index - WORD_BITS * jnp.arange(num_words)
    # Shifting by the width of a word is undefined, so never by more than 31.
    some = (jnp.uint32(1) << (size.astype(jnp.uint32) % WORD_BITS)) - 1
    return jnp.where(size >= WORD_BITS, _ONES, jnp.where(size > 0, some, 0))


def raised(bits: UInt32[Array, " W"], by: int) -> UInt32[Array, " W"]:
    """Every cell `by` cells further on, `0 < by < 32`; what leaves is dropped."""
    from_before = jnp.pad(bits[:-1], (1, 0)) >> (WORD_BITS - by)
    return (bits << by) | from_before


def lowered(bits: UInt32[Array, " W"], by: int) -> UInt32[Array, " W"]:
    """Every cell `by` cells earlier, `0 < by < 32`; what leaves is dropped."""
    from_behind = jnp.pad(bits[1:], (0, 1)) << (WORD_BITS - by)
    return (bits >> by) | from_behind


def add(
    a: UInt32[Array, " W"], b: UInt32[Array, " W"], carry: bool = False
) -> UInt32[Array, " W"]:
    """The sum of two long numbers, plus one with a `carry`, modulo their range."""
    (num_words,) = a.shape
    total = a + b
    if num_words == 1:
        return total + jnp.uint32(carry)
    # A word passes a carry on if it made one or is all ones. Which words get one is
    # the same question again, asked of one bit per word.
    overflows, passes = pack(total < a), pack(total == _ONES)
    incoming = raised(overflows, 1) | below(jnp.int32(carry), overflows.shape[0])
    incoming = add(passes, incoming) ^ passes
    return total + unpack(incoming, num_words).astype(jnp.uint32)


def unpack(bits: UInt32[Array, " W"], num_cells: int) -> Bool[Array, " X"]:
    """The mask of a set."""
    cells = (bits[:, None] >> _places()) & 1
    return cells.reshape(-1)[:num_cells] == 1


def first(bits: UInt32[Array, " W"]) -> Int[Array, ""]:
    """The first cell, `32 * W` where there is none."""
    trailing = lax.population_count(~bits & (bits - 1)).astype(jnp.int32)
    (num_words,) = bits.shape
    cells = WORD_BITS * jnp.arange(num_words) + trailing
    return jnp.min(jnp.where(bits == 0, WORD_BITS * num_words, cells))


def last(bits: UInt32[Array, " W"]) -> Int[Array, ""]:
    """The last cell, -1 where there is none."""
    leading = lax.clz(bits).astype(jnp.int32)
    cells = WORD_BITS * jnp.arange(bits.shape[0]) + (WORD_BITS - 1) - leading
    return jnp.max(jnp.where(bits == 0, -1, cells))


def count(bits: UInt32[Array, " W"]) -> Int[Array, ""]:
    """How many cells there are."""
    return jnp.sum(lax.population_count(bits).astype(jnp.int32))


def running_count(bits: UInt32[Array, " W"], num_cells: int) -> Int[Array, " X"]:
    """How many cells there are up to and including each one."""
    sizes = lax.population_count(bits).astype(jnp.int32)
    before = jnp.cumsum(sizes) - sizes
    so_far = bits[:, None] & (_ONES >> (WORD_BITS - 1 - _places()))
    counts = before[:, None] + lax.population_count(so_far).astype(jnp.int32)
    return counts.reshape(-1)[:num_cells]


def _places() -> UInt32[Array, "1 32"]:
    return jnp.arange(WORD_BITS, dtype=jnp.uint32)[None, :]
