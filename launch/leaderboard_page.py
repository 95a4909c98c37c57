"""The leaderboard as one HTML file: a table that can be sorted, and every row's facts.

In: a board. Out: text. The document holds everything and reads without the script,
which only sorts. Texts come from other people's files: they are escaped.
"""

import html

from ragen_jax.evaluation.leaderboard import Board, Mean, Row, describe
from ragen_jax.evaluation.results import interval
from ragen_jax.report.page import fill_page

# Cell, what it is sorted by; None: after all others.
_NOT_PLAYED = ("n/a", None)
_COLUMNS = ("entry", "success", "best possible")


def make_leaderboard_page(board: Board) -> str:
    return fill_page(
        "leaderboard.html",
        styles=("style.css", "leaderboard.css"),
        scripts=("edges.js", "leaderboard.js"),
        lead=html.escape(describe(board)),
        table=_table(board),
        rows="\n".join(_details(board, row, mean) for _, row, mean in board.places()),
    )


def _table(board: Board) -> str:
    # Entries have two columns each, after name, rank and mean.
    groups = "".join(
        f'<th colspan="2" scope="colgroup">{html.escape(entry)}'
        f'<span class="interval">best possible {html.escape(board.best(entry))}</span>'
        "</th>"
        for entry in board.entries
    )
    first = ("name", "ascending"), ("rank", "ascending"), ("mean", "descending")
    named = "".join(
        _head(column, name, order, f' rowspan="2"{" class=name" * (name == "name")}')
        for column, (name, order) in enumerate(first)
    )
    pairs = "".join(
        _head(3 + 2 * i, "success", "descending")
        + _head(4 + 2 * i, "regret", "ascending")
        for i in range(len(board.entries))
    )
    body = "\n".join(_body_row(board, *place) for place in board.places())
    return (
        f'<table class="standings">\n<thead><tr>{named}{groups}</tr>\n'
        f"<tr>{pairs}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    )


def _head(column: int, name: str, order: str, attributes: str = "") -> str:
    return (
        f'<th scope="col" data-column="{column}" data-first="{order}"{attributes}>'
        f"{name}</th>"
    )


def _body_row(board: Board, rank: int | None, row: Row, mean: Mean) -> str:
    name = html.escape(row.name)
    cells: list[tuple[str, float | None]] = [
        ("–" if rank is None else str(rank), rank),
        (_mean(board, row, mean), mean.success),
    ]
    for entry in board.entries:
        if entry not in row.scores:
            cells += [_NOT_PLAYED, _NOT_PLAYED]
            continue
        metrics = row.scores[entry].metrics
        regret = metrics.get("regret")
        cells += [
            (_number(interval(metrics, "success")), metrics["success"]),
            ("unknown" if regret is None else f"{regret:.1%}", regret),
        ]
    return (
        f'<tr><th scope="row" class="name" data-value="{name}">{name}</th>'
        + "".join(
            f'<td data-value="{"" if value is None else f"{value:.6f}"}">{shown}</td>'
            for shown, value in cells
        )
        + "</tr>"
    )


def _mean(board: Board, row: Row, mean: Mean) -> str:
    played, of = len(row.scores), len(board.entries)
    return _number(str(mean), f", {played} of {of} entries" * (played < of))


def _number(text: str, more: str = "") -> str:
    number, _, ends = text.partition(" (")
    return f'{number} <span class="interval">{ends.removesuffix(")")}{more}</span>'


def _details(board: Board, row: Row, mean: Mean) -> str:
    facts = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
        for name, text in row.facts
    )
    commands = "".join(f"<pre>{html.escape(text)}</pre>" for text in row.commands)
    heads = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    scores = "".join(
        f'<tr><th scope="row">{html.escape(entry)}</th>'
        f"<td>{_number(interval(row.scores[entry].metrics, 'success'))}</td>"
        f"<td>{html.escape(board.best(entry))}</td></tr>\n"
        for entry in board.entries
        if entry in row.scores
    )
    return (
        f"<details><summary>{html.escape(row.name)}: {_mean(board, row, mean)}"
        f"</summary>\n<dl>{facts}</dl>\n{commands or '<p>Command unknown.</p>'}\n"
        f'<div class="frame"><div class="scroll tall" role="region" tabindex="0" '
        f'aria-label="Scores"><table><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{scores}</tbody></table></div></div>"
        '<p class="hint" aria-hidden="true">more columns to the side: scroll ↔</p>'
        "</details>"
    )
