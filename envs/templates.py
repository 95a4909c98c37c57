"""Templates: literal text with symbol fields, rendered to a string on the host.

In: the parts of a template and one array per field. Out: the exact text a model reads.
A template knows nothing about tokens; `ragen_jax.text.token_templates` compiles the
same parts into token tables, so the host prints exactly what the device feeds to the
model.
"""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several fixed strings. Field: int scalar, an index into `options`."""

    name: str
    options: tuple[str, ...]

    def render(self, value) -> str:
        return self.options[int(value)]

    @property
    def pattern(self) -> str:
        """Regular expression of all texts of `render`."""
        return f"(?:{'|'.join(map(re.escape, self.options))})"


@dataclasses.dataclass(frozen=True)
class Grid:
    """A board, every row followed by a newline. Field: int[rows, cols] of symbol ids.

    `border` is the id of the symbol that always fills the outermost ring, or None; a
    tokenization by rows then tabulates the interior only. `meanings` name the symbols,
    for drawings of the board. `separator` stands between the cells of a row; symbols of
    several characters need one.

    Raises:
      ValueError: a symbol contains the separator.
    """

    name: str
    symbols: tuple[str, ...]
    rows: int
    cols: int
    border: int | None = None
    meanings: tuple[str, ...] = ()
    separator: str = ""

    def __post_init__(self):
        if self.separator and any(self.separator in s for s in self.symbols):
            raise ValueError(
                f"symbols={self.symbols!r} of the board {self.name!r} must not contain "
                f"separator={self.separator!r}, which stands between them"
            )

    def render(self, value) -> str:
        rows = ([self.symbols[i] for i in row] for row in np.asarray(value))
        return "".join(self.separator.join(row) + "\n" for row in rows)

    @property
    def pattern(self) -> str:
        """Regular expression of all texts of `render`; its only group is the board."""
        further = f"(?:{re.escape(self.separator)}{self._cell}){{{self.cols - 1}}}"
        return f"((?:{self._cell}{further}\n){{{self.rows}}})"

    @property
    def _cell(self) -> str:
        return f"(?:{'|'.join(map(re.escape, self.symbols))})"

    def read(self, text: str) -> list[list[str]]:
        """Rows of symbols of a rendered board."""
        lines = text.split("\n")[:-1]
        if self.separator:
            return [line.split(self.separator) for line in lines]
        return [re.findall(self._cell, line) for line in lines]


@dataclasses.dataclass(frozen=True)
class Number:
    """A decimal number. Field: int scalar in units of 10**-decimals.

    `minimum` and `maximum` bound the field (same unit). Trailing zeros and a bare
    decimal point are left out: 1090 with two decimals is "10.9", -10 is "-0.1".
    """

    name: str
    minimum: int
    maximum: int
    decimals: int = 0

    def render(self, value) -> str:
        units = int(value)
        whole, fraction = divmod(abs(units), 10**self.decimals)
        digits = f"{fraction:0{self.decimals}d}".rstrip("0") if self.decimals else ""
        sign = "-" if units < 0 else ""
        return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"

    @property
    def pattern(self) -> str:
        """Regular expression of a superset of the texts of `render`."""
        return r"-?\d+(?:\.\d+)?"


@dataclasses.dataclass(frozen=True)
class Cells:
    """The places of marked cells: "Label: (r, c), (r, c)" and a newline.

    Field: bool or 0/1 int[rows, cols]; row-major order, zero-indexed; no text at all
    when no cell is marked. At most `max_cells` cells may be marked.

    With `is_relative` places are steps from the cell in the middle of the field:
    "Label: 2 down, 1 left; 1 up", itself "here".
    """

    name: str
    label: str
    rows: int
    cols: int
    max_cells: int
    is_relative: bool = False

    def render(self, value) -> str:
        cells = np.argwhere(np.asarray(value) != 0)
        places = ["".join(self.place(int(r), int(c))) for r, c in cells]
        first, between, end = self.around
        return f"{first}{between.join(places)}{end}" if places else ""

    @property
    def around(self) -> tuple[str, str, str]:
        """Texts before the first place, between two, and after the last."""
        if self.is_relative:
            return f"{self.label}: ", "; ", "\n"
        return f"{self.label}: (", "), (", ")\n"

    def place(self, row: int, col: int) -> tuple[str, ...]:
        """The text of a cell, digits and words apart."""
        if not self.is_relative:
            return (*str(row), ", ", *str(col))
        steps = (
            (row - self.rows // 2, " up", " down"),
            (col - self.cols // 2, " left", " right"),
        )
        named = [(*str(abs(n)), back if n < 0 else on) for n, back, on in steps if n]
        if not named:
            return ("here",)
        return named[0] if len(named) == 1 else (*named[0], ", ", *named[1])

    @property
    def pattern(self) -> str:
        """Regular expression of a superset of the texts of `render`."""
        step = r"\d+ \w+"
        place = f"(?:here|{step}(?:, {step})?)" if self.is_relative else r"\d+, \d+"
        first, between, end = map(re.escape, self.around)
        return f"(?:{first}{place}(?:{between}{place})*{end})?"


@dataclasses.dataclass(frozen=True)
class Passage:
    """A text made on the host, which is tokenized there and not tabulated.

    Field: int[max_tokens + 1], ids padded with zeros, then their number; or the text
    itself, where there are no tokens. Put literals of the template around it: nothing
    checks how its tokens join others.
    """

    name: str
    max_tokens: int

    def render(self, value) -> str:
        if isinstance(value, str):
            return value
        raise ValueError(
            "the text of a host game exists only as tokens here; to read its "
            "episodes use launch.play or launch.evaluate --output=FILE"
        )

    @property
    def pattern(self) -> str:
        """Regular expression of any text."""
        return r"[\s\S]*?"


Part = str | Choice | Grid | Number | Cells | Passage


@dataclasses.dataclass(frozen=True)
class Template:
    """A sequence of literals and fields. Templates are joined with `+`."""

    parts: tuple[Part, ...]

    def __add__(self, other: "Template") -> "Template":
        return Template(self.parts + other.parts)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in order of appearance."""
        return tuple(part.name for part in self.parts if not isinstance(part, str))

    @property
    def texts(self) -> list[str]:
        """Every string that it can contain, except numbers and what a host writes."""
        texts = []
        for part in self.parts:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, Choice):
                texts += part.options
            elif isinstance(part, Grid):
                texts += part.symbols
            elif isinstance(part, Cells):
                texts.append(f"{part.label}: ")
                if part.is_relative:
                    texts += [" up", " down", " left", " right", "here"]
        return texts

    def render(self, values: Mapping[str, np.ndarray]) -> str:
        """Text of one state. `values` holds one entry per field (extra ones allowed).

        Raises:
          KeyError: a field of the template has no value.
        """
        return "".join(
            part if isinstance(part, str) else part.render(values[part.name])
            for part in self.parts
        )

    def read_boards(self, text: str) -> list[list[list[str]]] | None:
        """The boards of a rendered text, one per `Grid`, as rows of symbols.

        None if this template cannot render the text.
        """
        grids = [part for part in self.parts if isinstance(part, Grid)]
        pattern = "".join(
            re.escape(part) if isinstance(part, str) else part.pattern
            for part in self.parts
        )
        match = re.fullmatch(pattern, text)
        if match is None:
            return None
        return [g.read(board) for g, board in zip(grids, match.groups(), strict=True)]
