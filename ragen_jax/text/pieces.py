"""Cuts a template into pieces and checks that they may be tokenized separately.

In: the parts of a template. Out: `Layout`s: for each part its tables of entries, an
entry being the pieces of one value, and its `Joints`: which pieces can touch. A piece
is tokenized once and always has the same ids, so the cuts must be where the tokenizer
cuts, too. With Qwen's pre-tokenizer they are if

- a board row includes its newline, and no piece after it starts with one;
- `), (` is one piece, digits are one piece each;
- a blank before a field that starts with a word or a sign belongs to that field;
- line ends belong to the piece before them unless that ends in a digit or a letter.

The first three are done here; the last is a rule for the wording of templates. At
start-up `check_joints` refuses every template whose pieces would merge.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from envs.templates import Cells, Choice, Grid, Number, Part, Passage
from ragen_jax.text.pictures import Picture
from ragen_jax.text.tokenizer import Tokenizer

Entry = tuple[str, ...]

# Most rows of a table; 6 free cells of 7 symbols (Sokoban 8 wide) are 117,649.
MAX_ROWS = 2**18
# Largest whole part of a number in a table.
MAX_WHOLE = 99_999
MAX_DECIMALS = 4
# Sets of pieces at a border up to this size are checked in full, larger ones by
# representatives.
FULL_CHECK_PIECES = 64


@dataclasses.dataclass(frozen=True)
class Joints:
    """Where the pieces of a text can touch.

    Attributes:
      first, last: pieces the text can start and end with, as keys (in order).
      pairs: pieces that can touch inside.
      may_vanish: the text can be empty, so that its neighbours touch.
    """

    first: dict[str, None]
    last: dict[str, None]
    pairs: dict[tuple[str, str], None]
    may_vanish: bool

    def then(self, other: "Joints") -> "Joints":
        """This text followed by the other."""
        return Joints(
            self.first | (other.first if self.may_vanish else {}),
            (self.last if other.may_vanish else {}) | other.last,
            self.pairs | other.pairs | _product(self.last, other.first),
            self.may_vanish and other.may_vanish,
        )

    def repeated(self) -> "Joints":
        """This text once or more."""
        pairs = self.pairs | _product(self.last, self.first)
        return dataclasses.replace(self, pairs=pairs)

    def optional(self) -> "Joints":
        """This text or nothing."""
        return dataclasses.replace(self, may_vanish=True)

    def representatives(self, ids: Mapping[str, Sequence[int]]) -> "Joints":
        """These joints with one piece for all that are alike at the border.

        Pieces are alike if they have the same two characters and the same token there:
        a merge over a border depends on the characters and the tokens next to it.
        """
        first, last = self.first, self.last
        if len(first) > FULL_CHECK_PIECES:
            alike = {(p[:2], ids[p][0]): p for p in reversed(first)}
            first = dict.fromkeys(alike.values())
        if len(last) > FULL_CHECK_PIECES:
            alike = {(p[-2:], ids[p][-1]): p for p in reversed(last)}
            last = dict.fromkeys(alike.values())
        return dataclasses.replace(self, first=first, last=last)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A part of a template, cut into pieces.

    Attributes:
      part: the field, or the literal.
      tables: tables of entries; their number and order depend on the kind of part.
      joints: where the pieces of one element touch.
      repeats: the part is one or more such elements in a row (rows of a board).
    """

    part: Part
    tables: tuple[tuple[Entry, ...], ...]
    joints: Joints
    repeats: bool = False

    @property
    def pieces(self) -> dict[str, None]:
        """Every piece, as keys, in order."""
        entries = itertools.chain.from_iterable(self.tables)
        return dict.fromkeys(itertools.chain.from_iterable(entries))

    @property
    def name(self) -> str:
        """The field's name, for messages."""
        return "literal" if isinstance(self.part, str) else f"field {self.part.name!r}"


def cut(parts: Sequence[Part], tokenization: str) -> list[Layout]:
    """Cuts the parts of a template.

    Raises:
      ValueError: a table would be too large.
    """
    if tokenization == "rows":
        parts = [piece for part in parts for piece in _without_border(part)]
    layouts = []
    lead = ""
    for part, following in itertools.pairwise([*_merged(parts), ""]):
        if isinstance(part, str):
            part, lead = _split_lead(part, following)
            if part:
                layouts.append(_literal(part))
        elif type(part) is Grid and tokenization == "symbols":
            layouts.append(_symbols(part))
        else:
            layouts.append(LAYOUTS[type(part)](part, lead))
            lead = ""
    return layouts


def encode_pieces(
    layouts: Sequence[Layout], tokenizer: Tokenizer, ids: dict[str, list[int]]
) -> None:
    """Adds the ids of every piece to `ids`, unless they are known already.

    Raises:
      ValueError: the tokenizer decodes the ids of a piece to another text.
    """
    pieces = dict.fromkeys(p for layout in layouts for p in layout.pieces)
    pieces = [piece for piece in pieces if piece not in ids]
    rows = tokenizer.encode_batch(pieces)
    for piece, text in zip(pieces, tokenizer.decode_batch(rows), strict=True):
        if text != piece:
            raise ValueError(
                f"the tokenizer turns {piece!r} into {text!r}: it cannot carry this "
                "text; use other symbols or another tokenizer"
            )
    ids.update(zip(pieces, rows, strict=True))


def check_joints(
    layouts: Sequence[Layout],
    ids: Mapping[str, Sequence[int]],
    tokenizer: Tokenizer,
    tokenization: str,
) -> None:
    """Checks every two pieces that can touch.

    "rows": tokenized together, two pieces have the ids of each. "symbols": the ids are
    those of the pieces by definition; decoded together they must give the two texts.

    Raises:
      ValueError: two pieces merge; the message names them.
    """
    joints = Joints({}, {}, {}, True)
    for layout in layouts:
        element = layout.joints.representatives(ids)
        joints = joints.then(element.repeated() if layout.repeats else element)
    pairs = list(joints.pairs)
    if tokenization == "rows":
        expected = [[*ids[a], *ids[b]] for a, b in pairs]
        together = tokenizer.encode_batch([a + b for a, b in pairs])
    else:
        expected = [a + b for a, b in pairs]
        together = tokenizer.decode_batch([[*ids[a], *ids[b]] for a, b in pairs])
    for (a, b), right, wrong in zip(pairs, expected, together, strict=True):
        if right != wrong:
            raise ValueError(
                f"{_owner(a, layouts)} {_quoted(a)} and {_owner(b, layouts)} "
                f"{_quoted(b)} may touch, but tokenized together they are not the "
                "tokens of each: reword the text (line ends belong to the piece before "
                "them) or set prompt.tokenization='symbols'"
            )


def _owner(piece: str, layouts: Sequence[Layout]) -> str:
    return next(layout.name for layout in layouts if piece in layout.pieces)


def _quoted(piece: str) -> str:
    return repr(piece) if len(piece) <= 60 else f"{piece[:28]!r}...{piece[-28:]!r}"


def _product(a: Iterable[str], b: Iterable[str]) -> dict[tuple[str, str], None]:
    return dict.fromkeys(itertools.product(a, b))


def _one_of(entries: Iterable[Entry]) -> Joints:
    """Any of the entries."""
    entries = list(entries)
    texts = [entry for entry in entries if entry]
    return Joints(
        dict.fromkeys(entry[0] for entry in texts),
        dict.fromkeys(entry[-1] for entry in texts),
        dict.fromkeys(pair for entry in texts for pair in itertools.pairwise(entry)),
        len(texts) < len(entries),
    )


def _merged(parts: Sequence[Part]) -> list[Part]:
    """The parts with neighbouring literals joined and empty ones dropped."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return merged


def _split_lead(literal: str, following: Part) -> tuple[str, str]:
    """Splits a last blank from a literal if it should belong to the next field."""
    wants_blank = isinstance(following, Choice) or (
        isinstance(following, Number) and following.minimum < 0
    )
    if wants_blank and literal.endswith(" "):
        return literal[:-1], " "
    return literal, ""


def _without_border(part: Part) -> list[Part]:
    """A board with a border as three parts: a literal, the inner rows, a literal."""
    if type(part) is not Grid or part.border is None:
        return [part]
    wall = part.separator.join([part.symbols[part.border]] * part.cols) + "\n"
    if part.rows < 3 or part.cols < 3:
        return [wall * part.rows]
    return [wall, part, wall]


def _literal(text: str) -> Layout:
    table = ((text,),)
    return Layout(text, (table,), _one_of(table))


def _choice(part: Choice, lead: str) -> Layout:
    texts = [lead + option for option in part.options]
    table = tuple((text,) if text else () for text in texts)
    return Layout(part, (table,), _one_of(table))


def _number(part: Number, lead: str) -> Layout:
    """Tables: sign (not negative, negative), whole part, fraction."""
    unit = 10**part.decimals
    whole = max(abs(part.minimum), abs(part.maximum)) // unit
    if whole > MAX_WHOLE or part.decimals > MAX_DECIMALS:
        raise ValueError(
            f"field {part.name!r} reaches {whole} with {part.decimals} decimals; "
            f"numbers in text go up to {MAX_WHOLE} with {MAX_DECIMALS}"
        )
    signs = ((lead,) if lead else (), (f"{lead}-",))
    wholes = tuple(tuple(str(i)) for i in range(whole + 1))
    decimals = [f"{i:0{part.decimals}d}".rstrip("0") for i in range(1, unit)]
    fractions = ((), *((".", *digits) for digits in decimals))
    signs = signs if part.minimum < 0 else signs[:1]
    joints = _one_of(signs).then(_one_of(wholes)).then(_one_of(fractions))
    return Layout(part, (signs, wholes, fractions), joints)


def _rows(part: Grid, lead: str) -> Layout:
    """Table: all possible rows, ordered as base-n numbers over their free cells."""
    del lead
    free = part.cols if part.border is None else part.cols - 2
    if len(part.symbols) ** free > MAX_ROWS:
        raise ValueError(
            f"field {part.name!r}: a table of rows of {free} free cells of "
            f"{len(part.symbols)} symbols needs {len(part.symbols) ** free} entries, "
            f"over {MAX_ROWS}; set prompt.tokenization='symbols' or use a smaller board"
        )
    edge = () if part.border is None else (part.symbols[part.border],)
    cells = itertools.product(part.symbols, repeat=free)
    table = tuple((part.separator.join((*edge, *r, *edge)) + "\n",) for r in cells)
    return Layout(part, (table,), _one_of(table), repeats=True)


def _symbols(part: Grid) -> Layout:
    """Table: the symbols, the separator if there is one, then the newline."""
    symbols, newline = tuple((symbol,) for symbol in part.symbols), ("\n",)
    if not part.separator:
        row = _one_of(symbols).repeated().then(_one_of([newline]))
        return Layout(part, ((*symbols, newline),), row, repeats=True)
    cell, separator = _one_of(symbols), (part.separator,)
    further = _one_of([separator]).then(cell).repeated().optional()
    row = cell.then(further).then(_one_of([newline]))
    return Layout(part, ((*symbols, separator, newline),), row, repeats=True)


def _cells(part: Cells, lead: str) -> Layout:
    """Tables (nothing, then one entry per cell): first cell, further cells; the end."""
    del lead
    cells = itertools.product(range(part.rows), range(part.cols))
    places = [part.place(row, col) for row, col in cells]
    before, between, after = part.around
    first = ((), *(_behind(before, place) for place in places))
    further = ((), *(_behind(between, place) for place in places))
    end = ((), (after,))
    joints = _one_of(first[1:])
    if part.max_cells > 1:
        joints = joints.then(_one_of(further[1:]).repeated().optional())
    joints = joints.then(_one_of(end[1:])).optional()
    return Layout(part, (first, further, end), joints)


def _behind(text: str, place: tuple[str, ...]) -> tuple[str, ...]:
    """A place behind a text that ends with a space, which a word takes to itself."""
    return (text, *place) if place[0].isdigit() else (text + place[0], *place[1:])


def _untabulated(part: Passage | Picture, lead: str) -> Layout:
    """No table and no pieces: its tokens come from the host, or are no text."""
    del lead
    return Layout(part, (), Joints({}, {}, {}, False))


LAYOUTS = {
    Choice: _choice,
    Number: _number,
    Grid: _rows,
    Cells: _cells,
    Passage: _untabulated,
    Picture: _untabulated,
}
