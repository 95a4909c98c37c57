"""Statements in a thought: its tokens, and the landmark positions it names.

In: the token ids of a reply. Out: the length of its thought, and the positions of
landmarks ("player at (1, 2)") that it states. A statement is a landmark's name, a short
gap, a row, a short gap and a column; or a name with two or four digits directly after
it. The first one about a landmark says where it is, the second one where it will be.
Everything is done on sets of bits (`byte_strings`), one bit per byte of the text.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from envs.base import Landmark, TextGame
from ragen_jax.text import byte_strings
from ragen_jax.text.answers import THINK_END, AnswerParser, HasTokenBytes

# Most bytes between a name and its row, and between row and column.
MAX_GAP_BYTES = 32
MAX_BETWEEN_BYTES = 16
MAX_DIGITS = 3
# Characters that end a sentence; no statement extends over one.
STOPS = b".;\n"
_TAIL = max(MAX_DIGITS + 1, len(THINK_END))


@struct.dataclass
class Statements:
    """Places that a thought states. Axis `M`: landmarks, in the reader's order.

    Attributes:
      is_stated: a cell was named.
      row, col: of that cell, from 0; may be off the board. 0 if none was named.
    """

    is_stated: Bool[Array, "... M"]
    row: Int[Array, "... M"]
    col: Int[Array, "... M"]


@struct.dataclass
class FactReader:
    """Tables of a reader; a pytree, so that it can be an argument of a jitted function.

    Attributes:
      token_bytes: bytes of each token, zero-padded; the last row is the empty token.
      token_lengths: bytes of each token.
      names: of each landmark: its symbol, then its words in small letters.
    """

    token_bytes: UInt8[Array, "V+1 M"]
    token_lengths: Int[Array, " V+1"]
    names: tuple[tuple[bytes, ...], ...] = struct.field(pytree_node=False)

    def read(
        self, tokens: Int[Array, " R"], length: Int[Array, ""]
    ) -> tuple[Statements, Statements]:
        """The first and the second statements of one reply; `vmap` it over rows.

        Args:
          tokens: ids; those outside the tokenizer's vocabulary count as empty.
          length: how many of them count.
        """
        text = byte_strings.join(
            self.token_bytes, self.token_lengths, tokens, length, tail=self._tail
        )
        marks = _mark(text, text.shape[0] - self._tail, self.names)
        statements = [_two_statements(text, marks, i) for i in range(len(self.names))]
        return jax.tree.map(lambda *x: jnp.stack(x), *statements)

    @property
    def _tail(self) -> int:
        """Cells after a text, so that a name at its end can be compared."""
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
    # Unlike in the answer parser long tokens stay whole, since the length of gaps
    # counts.
    table, lengths = byte_strings.tabulate([*tokenizer.token_bytes, b""])
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
      borders: cells besides digits that a gap must not contain: stops and first cells
        of names.
      starts, ends: of each landmark's names; an end is the cell after the last one.
      thought_end: first cell after the thought, 0 without a thought.
    """

    digits: UInt32[Array, " W"]
    borders: UInt32[Array, " W"]
    starts: tuple[UInt32[Array, " W"], ...]
    ends: tuple[UInt32[Array, " W"], ...]
    thought_end: Int[Array, ""]


def _mark(
    text: UInt8[Array, " Y"], num_bytes: int, names: tuple[tuple[bytes, ...], ...]
) -> _Marks:
    lower = byte_strings.to_lower(text)
    is_letter = lower - jnp.uint8(ord("a")) < 26
    # All sets have one cell more than the text, for names that end with it.
    letters = byte_strings.pack(is_letter[: num_bytes + 1])

    def pack(mask: Bool[Array, " X"]) -> UInt32[Array, " W"]:
        return byte_strings.pack(jnp.pad(mask, (0, 1)))

    starts, ends = [], []
    for symbol, *words in names:
        begins, after = jnp.zeros_like(letters), jnp.zeros_like(letters)
        # Symbols are compared as they are, words without regard to case.
        for name, where in [(symbol, text), *((word, lower) for word in words)]:
            matches = pack(byte_strings.find(where, name, num_bytes))
            # Whole words only: no letter directly before or after.
            if name[:1].isalpha():
                matches &= ~byte_strings.raised(letters, 1)
            if name[-1:].isalpha():
                matches &= ~byte_strings.lowered(letters, len(name))
            begins |= matches
            after |= byte_strings.raised(matches, len(name))
        starts.append(begins)
        ends.append(after)
    stops = [text[:num_bytes] == stop for stop in STOPS]
    borders = pack(functools.reduce(jnp.logical_or, stops))
    for begins in starts:
        borders |= begins
    ends_thought = pack(byte_strings.find(text, THINK_END, num_bytes))
    has_thought = jnp.any(ends_thought != 0)
    return _Marks(
        digits=pack(text[:num_bytes] - jnp.uint8(ord("0")) < 10),
        borders=borders,
        starts=tuple(starts),
        ends=tuple(ends),
        thought_end=jnp.where(has_thought, byte_strings.first(ends_thought), 0),
    )


def _two_statements(
    text: UInt8[Array, " Y"], marks: _Marks, index: int
) -> tuple[Statements, Statements]:
    """The first two statements about one landmark in one row."""
    inside = byte_strings.below(marks.thought_end, marks.digits.shape[0])
    _, both = lax.scan(
        lambda starts, _: _next_statement(text, marks, index, starts),
        marks.starts[index] & inside,
        length=2,
    )
    first, second = (jax.tree.map(lambda x, i=i: x[i], both) for i in range(2))
    return first, second


def _next_statement(
    text: UInt8[Array, " Y"], marks: _Marks, index: int, starts: UInt32[Array, " W"]
) -> tuple[UInt32[Array, " W"], Statements]:
    """The first statement that begins with one of these names, and the names after."""

    def goes_on(carry):
        left, statement = carry
        return jnp.any(left != 0) & ~statement.is_stated

    def look(carry):
        left, _ = carry
        begin = byte_strings.first(left)
        ends = _from(marks.ends[index], begin + 1)
        statement = _statement_after(text, marks, byte_strings.first(ends))
        return _from(left, begin + 1), statement

    zero = jnp.int32(0)
    nothing = Statements(is_stated=jnp.bool_(False), row=zero, col=zero)
    left, statement = lax.while_loop(goes_on, look, (starts, nothing))
    keep = statement.is_stated
    return left, Statements(
        is_stated=keep,
        row=jnp.where(keep, statement.row, 0),
        col=jnp.where(keep, statement.col, 0),
    )


def _statement_after(
    text: UInt8[Array, " Y"], marks: _Marks, end: Int[Array, ""]
) -> Statements:
    """Statement about a name that ends before cell `end`."""
    first, first_end = _digits_from(marks, end)
    second, second_end = _digits_from(marks, first_end)
    # Digits directly after the name: half of them are the row, half the column.
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
    """First run of digits from a cell on: its first cell and the one after it."""
    begin = byte_strings.first(_from(marks.digits, start))
    return begin, byte_strings.first(_from(~marks.digits, begin))


def _is_gap(
    marks: _Marks, begin: Int[Array, ""], end: Int[Array, ""], most: int
) -> Bool[Array, ""]:
    """Whether the cells from `begin` up to `end` may separate two parts."""
    border = byte_strings.first(_from(marks.borders, begin))
    size = end - begin
    return (size >= 1) & (size <= most) & (end <= border) & (end < marks.thought_end)


def _from(cells: UInt32[Array, " W"], start: Int[Array, ""]) -> UInt32[Array, " W"]:
    return cells & ~byte_strings.below(start, cells.shape[0])


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


def count_thought(
    parser: AnswerParser, tokens: Int[Array, " R"], length: Int[Array, ""]
) -> Int[Array, ""]:
    """Number of tokens of a reply's thought, 0 without a thought; `vmap` it over rows.

    Args:
      parser: the game's; of its tables of bytes.
      tokens: ids, as sampled.
      length: how many of them count.
    """
    table, lengths = parser.token_bytes, parser.token_lengths
    text = byte_strings.join(table, lengths, tokens, length, tail=len(THINK_END))
    num_bytes = text.shape[0] - len(THINK_END)
    tags = byte_strings.pack(byte_strings.find(text, THINK_END, num_bytes))
    has_end, tag = jnp.any(tags != 0), byte_strings.first(tags)
    is_known = (tokens >= 0) & (tokens < lengths.shape[0] - 1)
    sizes = jnp.where(is_known, lengths.at[tokens].get(mode="clip"), 0)
    ends = jnp.cumsum(sizes)
    is_thought = (ends <= tag) & (jnp.arange(tokens.shape[0]) < length)
    num_tokens = jnp.sum(is_thought)
    end = jnp.sum(jnp.where(is_thought, sizes, 0))
    is_content = ~byte_strings.is_white(text) & (jnp.arange(text.shape[0]) < end)
    return jnp.where(has_end & jnp.any(is_content), num_tokens, 0)


def build_facts(env: TextGame, tokenizer: HasTokenBytes) -> FactReader:
    """Reader of the landmarks' places in thoughts.

    Raises:
      ValueError: the environment has no landmarks.
    """
    names = [(env.symbols[mark.symbol], mark.words) for mark in landmarks_of(env)]
    return build_fact_reader(tokenizer, names)


def landmarks_of(env: TextGame) -> tuple[Landmark, ...]:
    """Landmarks whose places thoughts can state.

    Raises:
      ValueError: the game has none.
    """
    if not env.landmarks:
        raise ValueError(
            f"{env.name} has no landmarks whose place a thought could state; set "
            "bonus.facts and bonus.prediction to None, or give the class of an array "
            "game `landmarks`"
        )
    return env.landmarks


def is_there(
    board: Int[Array, "rows cols"],
    landmarks: tuple[Landmark, ...],
    statements: Statements,
) -> Bool[Array, " M"]:
    """Landmarks whose stated places are right."""
    rows, cols = board.shape
    is_on_board = statements.is_stated
    is_on_board &= (statements.row < rows) & (statements.col < cols)
    row, col = (
        jnp.minimum(place, size - 1)
        for place, size in ((statements.row, rows), (statements.col, cols))
    )
    symbols = board[row, col]
    is_right = [
        jnp.any(symbols[i] == jnp.array(landmark.shown_as, symbols.dtype))
        for i, landmark in enumerate(landmarks)
    ]
    return is_on_board & jnp.stack(is_right)
