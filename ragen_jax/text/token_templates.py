"""Templates on the device: field values in, token ids out, no tokenizer call.

In: a template and a tokenizer, once, at start-up; then one row's field values at a
time, under jit and vmap. Out: a `TokenSpan` whose ids decode to exactly the text that
`Template.render` gives. What the text says is not decided here.

A part becomes a block of token tables. For one row, each block looks its values up and
gives segments of static width, of which the first tokens count. The segments are laid
side by side; then every output position adds up the slack (width - length) of the
segments that end before it and reads from that much further on.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from envs.templates import Cells, Choice, Grid, Number, Passage, Template
from ragen_jax.text import pieces
from ragen_jax.text.pictures import Picture
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import TokenSpan

Fields = dict[str, Int[Array, "..."]]


@struct.dataclass
class Segments:
    """Tokens of `n` neighbouring segments of one width.

    Attributes:
      tokens: ids, padded with zeros.
      lengths: how many of each segment count; None: all.
    """

    tokens: Int[Array, "n width"]
    lengths: Int[Array, " n"] | None


@struct.dataclass
class TokenTable:
    """The ids of strings that are looked up by index.

    Attributes:
      rows: per entry its ids, padded with zeros, then their number: one look-up finds
        both.
      is_uniform: no entry is padded.
    """

    rows: Int[Array, "entries width_and_1"]
    is_uniform: bool = struct.field(pytree_node=False)

    @property
    def num_entries(self) -> int:
        return self.rows.shape[0]

    def look_up(self, index: Int[Array, " n"]) -> Segments:
        """Segments of the entries. Indices out of range are clipped."""
        entries = _take(self.rows, index)
        lengths = None if self.is_uniform else entries[:, -1]
        return Segments(entries[:, :-1], lengths)


@struct.dataclass
class LiteralBlock:
    """Text that is always there."""

    ids: Int[Array, " width"]

    def segments(self, fields: Fields) -> list[Segments]:
        return [Segments(self.ids[None, :], None)]


@struct.dataclass
class ChoiceBlock:
    """One of several strings."""

    name: str = struct.field(pytree_node=False)
    options: TokenTable

    def segments(self, fields: Fields) -> list[Segments]:
        return [self.options.look_up(fields[self.name][None])]


@struct.dataclass
class NumberBlock:
    """Sign, whole part and fraction; values outside the bounds are clipped."""

    name: str = struct.field(pytree_node=False)
    minimum: int = struct.field(pytree_node=False)
    maximum: int = struct.field(pytree_node=False)
    unit: int = struct.field(pytree_node=False)
    signs: TokenTable
    wholes: TokenTable
    fractions: TokenTable

    def segments(self, fields: Fields) -> list[Segments]:
        value = jnp.clip(fields[self.name], self.minimum, self.maximum)[None]
        size = jnp.abs(value)
        segments = [
            self.signs.look_up((value < 0).astype(jnp.int32)),
            self.wholes.look_up(size // self.unit),
            self.fractions.look_up(size % self.unit),
        ]
        return [s for s in segments if s.tokens.shape[1] > 0]


@struct.dataclass
class RowsBlock:
    """A board, one table entry per row: the row's free cells read as a number."""

    name: str = struct.field(pytree_node=False)
    num_symbols: int = struct.field(pytree_node=False)
    has_border: bool = struct.field(pytree_node=False)
    rows: TokenTable

    def segments(self, fields: Fields) -> list[Segments]:
        board = fields[self.name]
        free = board[1:-1, 1:-1] if self.has_border else board
        place_values = self.num_symbols ** np.arange(free.shape[1] - 1, -1, -1)
        place_values = jnp.asarray(place_values, jnp.int32)
        return [self.rows.look_up(jnp.sum(free * place_values[None, :], axis=1))]


@struct.dataclass
class SymbolsBlock:
    """A board, one table entry per symbol and, last, one for the newline.

    The entry before that is the separator, if cells have one between them.
    """

    name: str = struct.field(pytree_node=False)
    has_separator: bool = struct.field(pytree_node=False)
    symbols: TokenTable

    def segments(self, fields: Fields) -> list[Segments]:
        board = fields[self.name]
        newline = self.symbols.num_entries - 1
        if self.has_separator:
            # After every cell a separator, the last of which becomes the newline.
            pairs = jnp.stack([board, jnp.full_like(board, newline - 1)], axis=2)
            board = pairs.reshape(board.shape[0], -1)[:, :-1]
        ends = jnp.full_like(board[:, :1], newline)
        index = jnp.concatenate([board, ends], axis=1).reshape(-1)
        return [self.symbols.look_up(index)]


@struct.dataclass
class CellsBlock:
    """Coordinates of marked cells; entry 0 of each table is nothing."""

    name: str = struct.field(pytree_node=False)
    max_cells: int = struct.field(pytree_node=False)
    first: TokenTable
    further: TokenTable
    end: TokenTable

    def segments(self, fields: Fields) -> list[Segments]:
        is_marked = fields[self.name].reshape(-1) != 0
        # Entry of the j-th marked cell: 1 + its number; 0 if there are fewer.
        rank = jnp.cumsum(is_marked) - 1
        is_jth = is_marked[None, :] & (
            rank[None, :] == jnp.arange(self.max_cells)[:, None]
        )
        entry = 1 + jnp.arange(is_marked.shape[0])
        entries = jnp.sum(jnp.where(is_jth, entry[None, :], 0), axis=1)
        end = jnp.any(is_marked).astype(jnp.int32)[None]
        segments = [self.first.look_up(entries[:1])]
        if self.max_cells > 1:
            segments.append(self.further.look_up(entries[1:]))
        return [*segments, self.end.look_up(end)]


@struct.dataclass
class PassageBlock:
    """A text that comes as ids and their number."""

    name: str = struct.field(pytree_node=False)

    def segments(self, fields: Fields) -> list[Segments]:
        value = fields[self.name]
        return [Segments(value[None, :-1], value[-1:])]


@struct.dataclass
class PictureBlock:
    """A board as a picture: an id per cell, none of them text."""

    name: str = struct.field(pytree_node=False)
    first_id: int = struct.field(pytree_node=False)
    row_ends: Int[Array, "1 cols"]

    def segments(self, fields: Fields) -> list[Segments]:
        ids = self.first_id + fields[self.name] + self.row_ends
        return [Segments(ids.reshape(1, -1), None)]


Block = (
    LiteralBlock
    | ChoiceBlock
    | NumberBlock
    | RowsBlock
    | SymbolsBlock
    | CellsBlock
    | PassageBlock
    | PictureBlock
)


@struct.dataclass
class DeviceTemplate:
    """A template as token tables: a pytree, to be passed to jitted functions.

    Attributes:
      blocks: one per part.
      fields: names of the fields it reads.
      max_tokens: `O`, most tokens of a message.
    """

    blocks: tuple[Block, ...]
    fields: tuple[str, ...] = struct.field(pytree_node=False)
    max_tokens: int = struct.field(pytree_node=False)

    @property
    def num_common(self) -> int:
        """Tokens with which all messages begin, but one: every message has more."""
        literal = itertools.takewhile(
            lambda x: isinstance(x, LiteralBlock), self.blocks
        )
        return max(0, sum(len(block.ids) for block in literal) - 1)

    def tokens(self, fields: Fields) -> TokenSpan:
        """Ids of one row's message, zeros from its length on.

        Args:
          fields: one entry per field of the template, shapes as in `envs.templates`;
            extra ones are allowed.

        Raises:
          KeyError: a field of the template has no value.
        """
        return concatenate(self.segments(fields))

    def segments(self, fields: Fields) -> list[Segments]:
        """Like `tokens`, unjoined, for texts that embed other tokens."""
        values = {name: jnp.asarray(fields[name]) for name in self.fields}
        return [s for block in self.blocks for s in block.segments(values)]


def compile_template(
    template: Template,
    tokenizer: Tokenizer,
    tokenization: str,
    *,
    known_ids: dict[str, list[int]] | None = None,
) -> DeviceTemplate:
    """Token tables of a template.

    Args:
      template: the text.
      tokenizer: the model's.
      tokenization: "symbols" (one piece per board cell, any board size) or "rows" (a
        piece per board row; a message has the ids that the tokenizer gives it).
      known_ids: ids of pieces, to which new ones are added. Templates that share boards
        compile faster when they share it; it belongs to one tokenizer.

    Raises:
      ValueError: an unknown tokenization, tables that would be too large, or pieces
        that touch and do not keep their tokens.
    """
    if tokenization not in TOKENIZATIONS:
        raise ValueError(
            f"prompt.tokenization={tokenization!r} is unknown; choose one of "
            f"{', '.join(TOKENIZATIONS)}"
        )
    layouts = pieces.cut(template.parts, tokenization)
    ids = {} if known_ids is None else known_ids
    pieces.encode_pieces(layouts, tokenizer, ids)
    pieces.check_joints(layouts, ids, tokenizer, tokenization)
    blocks = tuple(_block(layout, ids, tokenization) for layout in layouts)
    fields = _field_shapes(template)
    shapes = [jax.eval_shape(block.segments, fields) for block in blocks]
    max_tokens = sum(s.tokens.size for segments in shapes for s in segments)
    return DeviceTemplate(blocks, tuple(dict.fromkeys(template.fields)), max_tokens)


def check_neighbours(
    first: Template,
    second: Template,
    tokenizer: Tokenizer,
    tokenization: str,
    known_ids: dict[str, list[int]],
) -> None:
    """Checks that two templates, compiled separately, may follow one another.

    Args:
      known_ids: ids of all their pieces, see `compile_template`.

    Raises:
      ValueError: pieces that touch there do not keep their tokens.
    """
    layouts = [
        layout
        for template in (first, second)
        for layout in pieces.cut(template.parts, tokenization)
    ]
    pieces.check_joints(layouts, known_ids, tokenizer, tokenization)


def concatenate(segments: list[Segments]) -> TokenSpan:
    """Joins the segments of one row without the tokens that do not count."""
    source = jnp.concatenate([s.tokens.reshape(-1) for s in segments])
    width = source.shape[0]
    num_fixed = _leading_fixed(segments)
    position = jnp.arange(num_fixed, width, dtype=jnp.int32)
    index, end = position, jnp.int32(0)
    for segment in segments:
        count, size = segment.tokens.shape
        if segment.lengths is None:
            end = end + count * size
            continue
        ends = end + jnp.cumsum(segment.lengths)
        has_ended = position[None, :] >= ends[:, None]
        slack = (size - segment.lengths)[:, None]
        index = index + jnp.sum(jnp.where(has_ended, slack, 0), axis=0)
        end = ends[-1]
    moved = jnp.where(position < end, _take(source, index), 0)
    return TokenSpan(jnp.concatenate([source[:num_fixed], moved]), end)


def _take(array: Int[Array, "m ..."], index: Int[Array, " n"]) -> Int[Array, "n ..."]:
    """Rows of an array; negative indices do not wrap, which would cost time."""
    return array.at[index].get(mode="clip", wrap_negative_indices=False)


def _leading_fixed(segments: list[Segments]) -> int:
    """Tokens before the first segment of variable length, which never move."""
    total = 0
    for segment in segments:
        if segment.lengths is not None:
            break
        total += segment.tokens.size
    return total


def _field_shapes(template: Template) -> dict[str, jax.ShapeDtypeStruct]:
    def shape(part):
        if isinstance(part, Passage):
            return jax.ShapeDtypeStruct((part.max_tokens + 1,), jnp.int32)
        has_cells = isinstance(part, Grid | Cells)
        size = (part.rows, part.cols) if has_cells else ()
        return jax.ShapeDtypeStruct(size, jnp.int32)

    return {
        part.name: shape(part) for part in template.parts if not isinstance(part, str)
    }


def _block(layout: pieces.Layout, ids: dict, tokenization: str) -> Block:
    part = layout.part
    if isinstance(part, str):
        return LiteralBlock(jax.device_put(np.asarray(ids[part], np.int32)))
    tables = [_table(entries, ids) for entries in layout.tables]
    if isinstance(part, Choice):
        return ChoiceBlock(part.name, *tables)
    if isinstance(part, Number):
        unit = 10**part.decimals
        return NumberBlock(part.name, part.minimum, part.maximum, unit, *tables)
    if isinstance(part, Cells):
        return CellsBlock(part.name, part.max_cells, *tables)
    if isinstance(part, Passage):
        return PassageBlock(part.name)
    if isinstance(part, Picture):
        ends = jax.device_put(part.row_ends)
        return PictureBlock(part.name, part.first_id, ends)
    if tokenization == "symbols":
        return SymbolsBlock(part.name, bool(part.separator), *tables)
    return RowsBlock(part.name, len(part.symbols), part.border is not None, *tables)


def _table(entries: tuple[pieces.Entry, ...], ids: dict) -> TokenTable:
    rows = [[i for piece in entry for i in ids[piece]] for entry in entries]
    lengths = np.array([len(row) for row in rows], np.int32)
    width = lengths.max()
    table = np.zeros((len(rows), width + 1), np.int32)
    table[:, -1] = lengths
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    return TokenTable(jax.device_put(table), bool((lengths == width).all()))


TOKENIZATIONS = ("symbols", "rows")
