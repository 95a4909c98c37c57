"""Byte strings on the device: tables of tokens' bytes, search, and bit sets.

In: token ids of a reply. Out: its bytes, and the positions of given strings, as sets of
bits: one 32-bit word holds 32 positions, so a string of `n` bytes is found in `n`
operations on whole words.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, UInt8, UInt32

State = TypeVar("State")


def find(text: UInt8[Array, " Y"], pattern: bytes, num_cells: int) -> Bool[Array, " X"]:
    """Cells of `text[:num_cells]` at which `pattern` begins.

    `text` must be at least `len(pattern) - 1` cells longer than `num_cells`.
    """
    begins = text[:num_cells] == pattern[0]
    for offset, byte in enumerate(pattern[1:], start=1):
        begins &= text[offset : offset + num_cells] == byte
    return begins


def find_row(
    text: UInt8[Array, " Y"], pattern: UInt8[Array, " P"], num_cells: int
) -> Bool[Array, " X"]:
    """`find` for a traced pattern, which ends at its first 0.

    `text` must be at least `P - 1` cells longer than `num_cells`.
    """
    begins = jnp.ones(num_cells, bool)
    for offset in range(pattern.shape[0]):
        byte = pattern[offset]
        begins &= (text[offset : offset + num_cells] == byte) | (byte == 0)
    return begins


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

    Removed cells must not overlap. The cells freed at the end become 0.
    """
    (num_cells,) = text.shape
    pad = (max_width - 1, num_cells - starts.shape[0])
    padded = jnp.pad(starts, pad)
    removed = jnp.zeros(num_cells, bool)
    for offset in range(max_width):
        begin = max_width - 1 - offset
        removed |= padded[begin : begin + num_cells] & (offset < width)
    shift = running_count(pack(removed), num_cells)
    target = jnp.where(removed, num_cells, jnp.arange(num_cells) - shift)
    return jnp.zeros_like(text).at[target].set(text, mode="drop")


def rarely(
    is_needed: Bool[Array, ""],
    function: Callable[..., State],
    state: State,
    *inputs: Array,
) -> State:
    """`function(state, *inputs)` if needed, else `state`; free if no row needs it.

    Under `vmap` a `cond` becomes a selection that always computes both sides. This
    function stays one branch of the whole batch, taken if any row needs it. All traced
    values that `function` depends on must be arguments.
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


WORD_BITS = 32
# The cells with an even index, in every word.
EVEN = np.uint32(0x55555555)
_ONES = np.uint32(0xFFFFFFFF)


def pack(mask: Bool[Array, " X"]) -> UInt32[Array, " W"]:
    """Packs a mask into words, zero-padded."""
    num_words = -(-mask.shape[0] // WORD_BITS)
    padded = jnp.pad(mask, (0, num_words * WORD_BITS - mask.shape[0]))
    cells = padded.reshape(num_words, WORD_BITS).astype(jnp.uint32)
    return jnp.sum(cells << _places(), axis=1, dtype=jnp.uint32)


def below(index: Int[Array, ""], num_words: int) -> UInt32[Array, " W"]:
    """The cells before `index`, which may lie outside the buffer."""
    size = index - WORD_BITS * jnp.arange(num_words)
    # Shifting by the width of a word is undefined, so shift by at most 31.
    some = (jnp.uint32(1) << (size.astype(jnp.uint32) % WORD_BITS)) - 1
    return jnp.where(size >= WORD_BITS, _ONES, jnp.where(size > 0, some, 0))


def raised(bits: UInt32[Array, " W"], by: int) -> UInt32[Array, " W"]:
    """Every cell moved up by `by` cells, `0 < by < 32`; those past the end are lost."""
    from_before = jnp.pad(bits[:-1], (1, 0)) >> (WORD_BITS - by)
    return (bits << by) | from_before


def lowered(bits: UInt32[Array, " W"], by: int) -> UInt32[Array, " W"]:
    """Every cell moved down by `by` cells, `0 < by < 32`; those below 0 are lost."""
    from_next = jnp.pad(bits[1:], (0, 1)) << (WORD_BITS - by)
    return (bits >> by) | from_next


def add(
    a: UInt32[Array, " W"], b: UInt32[Array, " W"], carry: bool = False
) -> UInt32[Array, " W"]:
    """The sum of two long numbers, plus one with a `carry`, modulo their range."""
    (num_words,) = a.shape
    total = a + b
    if num_words == 1:
        return total + jnp.uint32(carry)
    # A word carries if it overflows, or if it is all ones and gets a carry. Which words
    # get one is a sum again, of one bit per word.
    overflows, passes = pack(total < a), pack(total == _ONES)
    incoming = raised(overflows, 1) | below(jnp.int32(carry), overflows.shape[0])
    incoming = add(passes, incoming) ^ passes
    return total + unpack(incoming, num_words).astype(jnp.uint32)


def unpack(bits: UInt32[Array, " W"], num_cells: int) -> Bool[Array, " X"]:
    """The mask of a set."""
    cells = (bits[:, None] >> _places()) & 1
    return cells.reshape(-1)[:num_cells] == 1


def first(bits: UInt32[Array, " W"]) -> Int[Array, ""]:
    """The first cell of a set, `32 * W` if it is empty."""
    # The zeros below the lowest set bit, counted as the ones of `~bits & (bits - 1)`.
    trailing = lax.population_count(~bits & (bits - 1)).astype(jnp.int32)
    (num_words,) = bits.shape
    cells = WORD_BITS * jnp.arange(num_words) + trailing
    return jnp.min(jnp.where(bits == 0, WORD_BITS * num_words, cells))


def last(bits: UInt32[Array, " W"]) -> Int[Array, ""]:
    """The last cell of a set, -1 if it is empty."""
    leading = lax.clz(bits).astype(jnp.int32)
    cells = WORD_BITS * jnp.arange(bits.shape[0]) + (WORD_BITS - 1) - leading
    return jnp.max(jnp.where(bits == 0, -1, cells))


def count(bits: UInt32[Array, " W"]) -> Int[Array, ""]:
    """Number of cells in a set."""
    return jnp.sum(lax.population_count(bits).astype(jnp.int32))


def running_count(bits: UInt32[Array, " W"], num_cells: int) -> Int[Array, " X"]:
    """Number of cells of a set up to and including each cell."""
    sizes = lax.population_count(bits).astype(jnp.int32)
    before = jnp.cumsum(sizes) - sizes
    so_far = bits[:, None] & (_ONES >> (WORD_BITS - 1 - _places()))
    counts = before[:, None] + lax.population_count(so_far).astype(jnp.int32)
    return counts.reshape(-1)[:num_cells]


def _places() -> UInt32[Array, "1 32"]:
    return jnp.arange(WORD_BITS, dtype=jnp.uint32)[None, :]


# Tokens longer than this are shortened if that cannot change any parse.
LONG_TOKEN_BYTES = 16
# Longer than the inside of any literal (`im_start`), see `shorten_token`.
MIN_KEPT_BYTES = 10


def tabulate(
    rows: Sequence[bytes],
) -> tuple[UInt8[Array, "X Y"], Int[Array, " X"]]:
    """Byte strings as a zero-padded uint8 table and their lengths."""
    lengths = np.array([len(row) for row in rows], np.int32)
    width = max(1, int(lengths.max()))
    table = np.frombuffer(b"".join(row.ljust(width, b"\0") for row in rows), np.uint8)
    # `jnp.asarray` would compile a copy for every shape.
    return jax.device_put((table.reshape(len(rows), width), lengths))


def join(
    token_bytes: UInt8[Array, "V+1 M"],
    token_lengths: Int[Array, " V+1"],
    tokens: Int[Array, " R"],
    length: Int[Array, ""],
    *,
    tail: int,
) -> UInt8[Array, " N+tail"]:
    """The bytes of a reply, zero-padded to `N = R * M` and `tail` cells.

    Args:
      token_bytes, token_lengths: see `tabulate`; the last row is the empty token.
      tokens: ids; those outside the table count as empty.
      length: how many of them count.
      tail: cells after the longest possible reply.
    """
    num_tokens, width = token_bytes.shape[0] - 1, token_bytes.shape[1]
    counts = jnp.arange(tokens.shape[0]) < length
    counts &= (tokens >= 0) & (tokens < num_tokens)
    tokens = jnp.where(counts, tokens, num_tokens)
    lengths = token_lengths[tokens]
    starts = jnp.cumsum(lengths) - lengths

    def write(i: Int[Array, ""], text: UInt8[Array, " X"]) -> UInt8[Array, " X"]:
        # Each token's padding is overwritten by the token after it.
        return lax.dynamic_update_slice(text, token_bytes[tokens[i]], (starts[i],))

    empty = jnp.zeros(tokens.shape[0] * width + tail, jnp.uint8)
    return lax.fori_loop(0, tokens.shape[0], write, empty)


def shorten_token(token: bytes, *, longest_name: int) -> bytes:
    """A token with the same effect on every parse, shortened if possible.

    Real vocabularies have some tokens of up to 128 bytes (blanks, dashes), and every
    token of a reply takes as many bytes of buffer as the longest token. Two kinds of
    runs inside long tokens lose their middle, which changes no parse of any text around
    the token. `k` bytes of a run are kept, more than any name has.

    * Runs of white space. No literal or separator contains white space. At the border
      of a piece it is stripped; inside a piece, `k` bytes already make the piece longer
      than any name. Between tags any amount is equal.
    * Runs without `<`, `>` and `|` that neither begin nor end with white space. No
      literal or separator can overlap such a run: it would have to span it, and `k`
      bytes are too many for that. The run is neither removed nor split; between tags it
      breaks the form as before; and the piece around it is listed and longer than any
      name, as before.

    Other long tokens are returned whole: they cost memory, never exactness.
    """
    if len(token) <= LONG_TOKEN_BYTES:
        return token
    half = (max(MIN_KEPT_BYTES, longest_name + 1) + 1) // 2
    token = re.sub(rb"(\s{%d})\s+(\s{%d})" % (half, half), rb"\1\2", token)
    head = rb"([^<>|\s][^<>|]{%d})" % (half - 1)
    tail = rb"([^<>|]{%d}[^<>|\s])" % (half - 1)
    return re.sub(head + rb"[^<>|]+" + tail, rb"\1\2", token)
