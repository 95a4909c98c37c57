"""The leaderboard as one HTML file: a table that can be sorted, and every row's facts.

In: texts and numbers. Out: text. All of it stands in the document, so that it reads
without the script, which only sorts. Texts come from files of others: they are escaped.
"""

import dataclasses
import html
from collections.abc import Mapping, Sequence

from ragen_jax.report.page import fill_page

NOT_PLAYED = "n/a"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number in a table.

    Attributes:
      text, interval: what is shown; the interval may be empty.
      value: what it is sorted by; None: after all others.
    """

    text: str
    interval: str = ""
    value: float | None = None


@dataclasses.dataclass(frozen=True)
class PageRow:
    """A row of the page.

    Attributes:
      name: of the policy.
      rank: among policies; None for reference players.
      mean: over its entries.
      success, regret: by entry; entries that were not played are missing.
      facts: name and text.
      commands: that made it.
    """

    name: str
    rank: int | None
    mean: Cell
    success: Mapping[str, Cell]
    regret: Mapping[str, Cell]
    facts: Sequence[tuple[str, str]]
    commands: Sequence[str]


def make_leaderboard_page(
    lead: str, best: Mapping[str, str], rows: Sequence[PageRow]
) -> str:
    """The page.

    Args:
      lead: what the numbers mean.
      best: entries in order, and the best possible success of each.
      rows: in order.
    """
    return fill_page(
        "leaderboard.html",
        styles=("style.css", "leaderboard.css"),
        scripts=("leaderboard.js",),
        lead=html.escape(lead),
        table=_table(best, rows),
        rows="\n".join(_details(best, row) for row in rows),
    )


def _table(best: Mapping[str, str], rows: Sequence[PageRow]) -> str:
    # Entries have two columns each, after name, rank and mean.
    groups = "".join(
        f'<th colspan="2" scope="colgroup">{html.escape(entry)}'
        f'<span class="interval">best possible {html.escape(text)}</span></th>'
        for entry, text in best.items()
    )
    first = ("name", "ascending"), ("rank", "ascending"), ("mean", "descending")
    named = "".join(
        _head(column, name, order, f' rowspan="2"{" class=name" * (name == "name")}')
        for column, (name, order) in enumerate(first)
    )
    pairs = "".join(
        _head(column, name, order)
        for i in range(len(best))
        for column, name, order in (
            (3 + 2 * i, "success", "descending"),
            (4 + 2 * i, "regret", "ascending"),
        )
    )
    body = "\n".join(_body_row(best, row) for row in rows)
    return (
        f'<table class="standings">\n<thead><tr>{named}{groups}</tr>\n'
        f"<tr>{pairs}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    )


def _head(column: int, name: str, order: str, attributes: str = "") -> str:
    """A head that sorts its column, at first in an order."""
    return (
        f'<th scope="col" data-column="{column}" data-first="{order}"{attributes}>'
        f"{name}</th>"
    )


def _body_row(best: Mapping[str, str], row: PageRow) -> str:
    name = html.escape(row.name)
    rank = (
        Cell("–", value=None) if row.rank is None else Cell(str(row.rank), "", row.rank)
    )
    absent = Cell(NOT_PLAYED)
    cells = [rank, row.mean]
    for entry in best:
        cells += [row.success.get(entry, absent), row.regret.get(entry, absent)]
    return (
        f'<tr><th scope="row" class="name" data-value="{name}">{name}</th>'
        f"{''.join(map(_cell, cells))}</tr>"
    )


def _cell(cell: Cell) -> str:
    value = "" if cell.value is None else f"{cell.value:.6f}"
    return f'<td data-value="{value}">{_shown(cell)}</td>'


def _shown(cell: Cell) -> str:
    interval = cell.interval and f' <span class="interval">{cell.interval}</span>'
    return html.escape(cell.text) + interval


def _details(best: Mapping[str, str], row: PageRow) -> str:
    """A row's scores one below the other, and how they were made."""
    facts = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
        for name, text in row.facts
    )
    commands = "".join(f"<pre>{html.escape(text)}</pre>" for text in row.commands)
    names = "entry", "success", "best possible"
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    scores = "".join(
        f'<tr><th scope="row">{html.escape(entry)}</th><td>{_shown(cell)}</td>'
        f"<td>{html.escape(best[entry])}</td></tr>\n"
        for entry, cell in row.success.items()
    )
    return (
        f"<details><summary>{html.escape(row.name)}: {_shown(row.mean)}</summary>\n"
        f"<dl>{facts}</dl>\n{commands or '<p>Command unknown.</p>'}\n"
        f'<div class="scroll tall"><table><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{scores}</tbody>"
        "</table></div></details>"
    )
