"""Tables in Markdown, for pages."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, without a line break at its end."""
    return "\n".join(map(row, (head, ["---"] * len(head), *rows)))


def row(cells: Sequence[object]) -> str:
    """One line of a table. A bar in a cell is escaped: it would end the cell."""
    texts = (str(cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


def replace_marked(page: str, name: str, text: str) -> str:
    """The page with `text` between `<!-- name -->` and the next `<!-- end -->`.

    Raises:
      ValueError: the page lacks one of the two comments.
    """
    begin, end = f"<!-- {name} -->", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page lacks {begin}, or {end} after it; add both")
    return f"{before}{begin}\n{text}{end}{after}"


def escape(text: str) -> str:
    """Text without the markup of Markdown and HTML, on one line; bars are `row`'s."""
    text = " ".join(text.split())
    return "".join(f"\\{x}" if x in "\\`*_[]<>#~&" else x for x in text)
