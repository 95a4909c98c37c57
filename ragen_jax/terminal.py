"""Text for people at a terminal: lines and tables within its columns.

A file gets every line whole, since it may be searched line by line.
"""

import math
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

_GAP = "  "
_USUAL_COLUMNS = 80


def columns(file: TextIO) -> float:
    """Columns of the terminal that a text goes to; infinitely many for a file."""
    if not file.isatty():
        return math.inf
    chosen = os.environ.get("COLUMNS", "")
    if chosen.isdecimal() and int(chosen) > 0:
        return int(chosen)
    # Some terminals do not know their size.
    return os.get_terminal_size(file.fileno()).columns or _USUAL_COLUMNS


def say(text: str, file: TextIO | None = None) -> None:
    """Print a text at once, folded where its terminal ends; default: to stdout."""
    file = sys.stdout if file is None else file
    print(fold(text, columns(file)), file=file, flush=True)


def fold(text: str, width: float) -> str:
    """Lines of at most `width` columns; what follows a line's first is indented.

    Words longer than that stay whole: they are paths and digests, to be copied.
    """
    if math.isinf(width):
        return text
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


def fit(line: str, parts: Iterable[str], width: float) -> str:
    """The line with the parts that have room on it; the first without ends it."""
    for part in parts:
        if len(line) + len(_GAP) + len(part) > width:
            break
        line += f"{_GAP}{part}"
    return line


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], width: float = math.inf
) -> str:
    """A table whose columns are aligned.

    Those that do not fit into `width` stand below their row, as `head: cell`.
    """
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
    ends = [sum(widths[: n + 1]) + n * len(_GAP) for n in range(len(widths))]
    num_beside = max(1, sum(end <= width for end in ends))
    lines = []
    for row in (head, *rows):
        beside = zip(row[:num_beside], widths, strict=False)
        lines.append(_GAP.join(f"{cell:<{size}}" for cell, size in beside).rstrip())
        if row is not head:
            below = zip(head[num_beside:], row[num_beside:], strict=True)
            lines += [fold(f"  {name}: {cell}", width) for name, cell in below if cell]
    return "\n".join(lines)
