"""Tables in Markdown, for pages and for the console."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, without a line break at its end."""
    return "\n".join(map(row, (head, ["---"] * len(head), *rows)))


def row(cells: Sequence[object]) -> str:
    """One line of a table. A bar in a cell is escaped: it would end the cell."""
    texts = (str(cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


def escape(text: str) -> str:
    """Text without the markup of Markdown and HTML, on one line; bars are `row`'s."""
    text = " ".join(text.split())
    return "".join(f"\\{x}" if x in "\\`*_[]<>#~&" else x for x in text)
