"""Facts: which cells a thought names, read on the device.

In: the ids of one reply. Out: `Statements`, the row and column that the thought states
for each landmark, if it does. Knows names, not games: whether a statement is true is
the caller's question.

The rules. The thought is what stands before the first `</think>`; without that there is
none. A landmark's name is its symbol, capitals mattering, or one of its words, capitals
not mattering; an ASCII letter at either end of a name must not touch another one
outside it. A name states a cell, numbered from 0, if it is followed

- at once by two digits, or by four: the row and the column ("P12", "P1104"), or
- by 1 to 32 bytes, one to three digits, 1 to 16 bytes and one to three digits ("player
  at (1, 2)", "the box is in row 1, column 2"), with no digit, `.`, `;`, newline or
  name of a landmark in those bytes.

Digits are read to their end. The first name that states a cell counts.
`tests/reference/facts_oracle.py` states the same rules as regexes.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from ragen_jax.text import bits, byte_search, byte_tables
from ragen_jax.text.answers import THINK_END, HasTokenBytes

MAX_GAP_BYTES = 32
MAX_BETWEEN_BYTES = 16
MAX_DIGITS = 3
STOPS = b".;\n"
_TAIL = max(MAX_DIGITS + 1, len(THINK_END))


@struct.dataclass
class Statements:
    """What a thought states. Axis `M`: landmarks, in the reader's order.

    Attributes:
      is_stated: a cell was named.
      row, col: of that cell, from 0; may lie off the board. 0 where none was named.
    """

    is_stated: Bool[Array, "... M"]
    row: Int[Array, "... M"]
    col: Int[Array, "... M"]


@struct.dataclass
class FactReader:
    """Tables of a reader; a pytree, so that it can be an argument of a jitted function.

    Attributes:
      token_bytes: bytes of each token, zeros behind; the last row is the empty token.
      token_lengths: bytes of each token.
      names: of each landmark: its symbol, then its words in small letters.
    """

    token_bytes: UInt8[Array, "V+1 M"]
    token_lengths: Int[Array, " V+1"]
    names: tuple[tuple[bytes, ...], ...] = struct.field(pytree_node=False)

    def read(self, tokens: Int[Array, " R"], length: Int[Array, ""]) -> Statements:
        """What one reply states; `vmap` it over rows.

        Args:
          tokens: ids; those outside the tokenizer's vocabulary count as empty.
          length: how many of them count.
        """
        text = byte_tables.join(
            self.token_bytes, self.token_lengths, tokens, length, tail=self._tail
        )
        marks = _mark(text, text.shape[0] - self._tail, self.names)
        found = [_first_statement(text, marks, i) for i in range(len(self.names))]
        return jax.tree.map(lambda *x: jnp.stack(x), *found)

    @property
    def _tail(self) -> int:
        """Cells behind a text so that whatever begins in it can be compared."""
        longest = max(len(name) for names in self.names for name in names)
        return max(_TAIL, longest + 1)


def build_fact_reader(
    tokenizer: HasTokenBytes, names: Sequence[tuple[str, tuple[str, ...]]]
) -> FactReader:
    """Builds the tables of a reader.

    Args:
      tokenizer: its `token_bytes` gives the bytes of every id, b"" for special tokens.
      names: of each landmark: its symbol, and the words for it.
    """
    # Long tokens stay whole, unlike the answer parser's: the length of gaps counts.
    table, lengths = byte_tables.tabulate([*tokenizer.token_bytes, b""])
    spelled = tuple(
        (symbol.encode(), *(word.lower().encode() for word in words))
        for symbol, words in names
    )
    return FactReader(token_bytes=table, token_lengths=lengths, names=spelled)


@struct.dataclass
class _Marks:
    """Sets of cells of a text. Axis `W`: words of bits.

    Attributes:
      digits: ASCII digits.
      borders: cells that no gap may hold besides digits: stops and starts of names.
      starts, ends: of each landmark's names; an end is the cell behind.
      thought_end: first cell that is no part of the thought, 0 where there is none.
    """

    digits: UInt32[Array, " W"]
    borders: UInt32[Array, " W"]
    starts: tuple[UInt32[Array, " W"], ...]
    ends: tuple[UInt32[Array, " W"], ...]
    thought_end: Int[Array, ""]


def _mark(
    text: UInt8[Array, " Y"], num_bytes: int, names: tuple[tuple[bytes, ...], ...]
) -> _Marks:
    lower = byte_search.to_lower(text)
    is_letter = lower - jnp.uint8(ord("a")) < 26
    # All sets have a cell for the end of the text.
    letters = bits.pack(is_letter[: num_bytes + 1])

    def pack(mask: Bool[Array, " X"]) -> UInt32[Array, " W"]:
        return bits.pack(jnp.pad(mask, (0, 1)))

    starts, ends = [], []
    for symbol, *words in names:
        begins, behind = jnp.zeros_like(letters), jnp.zeros_like(letters)
        for name, where in [(symbol, text), *((word, lower) for word in words)]:
            found = pack(byte_search.find(where, name, num_bytes))
            if name[:1].isalpha():
                found &= ~bits.raised(letters, 1)
            if name[-1:].isalpha():
                found &= ~bits.lowered(letters, len(name))
            begins |= found
            behind |= bits.raised(found, len(name))
        starts.append(begins)
        ends.append(behind)
    stops = [text[:num_bytes] == stop for stop in STOPS]
    borders = pack(functools.reduce(jnp.logical_or, stops))
    for begins in starts:
        borders |= begins
    ends_thought = pack(byte_search.find(text, THINK_END, num_bytes))
    has_thought = jnp.any(ends_thought != 0)
    return _Marks(
        digits=pack(text[:num_bytes] - jnp.uint8(ord("0")) < 10),
        borders=borders,
        starts=tuple(starts),
        ends=tuple(ends),
        thought_end=jnp.where(has_thought, bits.first(ends_thought), 0),
    )


def _first_statement(text: UInt8[Array, " Y"], marks: _Marks, index: int) -> Statements:
    """The first of a landmark's names that states a cell: one row, one landmark."""

    def goes_on(carry):
        left, statement = carry
        return jnp.any(left != 0) & ~statement.is_stated

    def look(carry):
        left, _ = carry
        begin = bits.first(left)
        ends = _from(marks.ends[index], begin + 1)
        statement = _statement_behind(text, marks, bits.first(ends))
        return _from(left, begin + 1), statement

    zero = jnp.int32(0)
    nothing = Statements(is_stated=jnp.bool_(False), row=zero, col=zero)
    inside = bits.below(marks.thought_end, marks.digits.shape[0])
    _, statement = lax.while_loop(
        goes_on, look, (marks.starts[index] & inside, nothing)
    )
    keep = statement.is_stated
    return Statements(
        is_stated=keep,
        row=jnp.where(keep, statement.row, 0),
        col=jnp.where(keep, statement.col, 0),
    )


def _statement_behind(
    text: UInt8[Array, " Y"], marks: _Marks, end: Int[Array, ""]
) -> Statements:
    """What a name that ends before cell `end` states."""
    first, first_end = _digits_from(marks, end)
    second, second_end = _digits_from(marks, first_end)
    # At once: the digits in two halves.
    size = first_end - first
    is_pair = (first == end) & ((size == 2) | (size == 4))
    middle = first + size // 2
    is_prose = _is_gap(marks, end, first, MAX_GAP_BYTES)
    is_prose &= _is_gap(marks, first_end, second, MAX_BETWEEN_BYTES)
    is_prose &= (size <= MAX_DIGITS) & (second_end - second <= MAX_DIGITS)
    row_end = jnp.where(is_pair, middle, first_end)
    col = jnp.where(is_pair, middle, second)
    col_end = jnp.where(is_pair, first_end, second_end)
    return Statements(
        is_stated=(is_pair & (first_end <= marks.thought_end)) | is_prose,
        row=_number(text, first, row_end),
        col=_number(text, col, col_end),
    )


def _digits_from(
    marks: _Marks, start: Int[Array, ""]
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """First run of digits from a cell on: its first cell and the one behind it."""
    begin = bits.first(_from(marks.digits, start))
    return begin, bits.first(_from(~marks.digits, begin))


def _is_gap(
    marks: _Marks, begin: Int[Array, ""], end: Int[Array, ""], most: int
) -> Bool[Array, ""]:
    """Whether the cells from `begin` up to `end` may lie between two parts."""
    border = bits.first(_from(marks.borders, begin))
    size = end - begin
    return (size >= 1) & (size <= most) & (end <= border) & (end < marks.thought_end)


def _from(cells: UInt32[Array, " W"], start: Int[Array, ""]) -> UInt32[Array, " W"]:
    """The cells of a set from `start` on."""
    return cells & ~bits.below(start, cells.shape[0])


def _number(
    text: UInt8[Array, " Y"], begin: Int[Array, ""], end: Int[Array, ""]
) -> Int[Array, ""]:
    """The number in `text[begin:end]`, at most `MAX_DIGITS` digits."""
    digits = lax.dynamic_slice(text, (begin,), (MAX_DIGITS,)).astype(jnp.int32)
    number = jnp.int32(0)
    for i in range(MAX_DIGITS):
        digit = digits[i] - ord("0")
        number = jnp.where(begin + i < end, 10 * number + digit, number)
    return number
