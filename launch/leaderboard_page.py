"""The leaderboard as a page: from scores to what the page shows of them."""

from ragen_jax.evaluation.leaderboard import Board, describe
from ragen_jax.report.leaderboard_page import Cell, PageRow, make_leaderboard_page


def make_page(board: Board) -> str:
    """The board as HTML."""

    def share(metrics, name: str) -> Cell:
        value, low, high = (metrics[f"{name}{end}"] for end in ("", "_low", "_high"))
        return Cell(f"{value:.1%}", f"{low:.1%} to {high:.1%}", value)

    def page_row(rank, row, mean) -> PageRow:
        scores = {e: row.scores[e].metrics for e in board.entries if e in row.scores}
        shown = f"{mean.success:.1%}"
        interval = str(mean).removeprefix(f"{shown} ").strip("()")
        if len(scores) < len(board.entries):
            interval += f", {len(scores)} of {len(board.entries)} entries"
        return PageRow(
            name=row.name,
            rank=rank,
            mean=Cell(shown, interval, mean.success),
            success={entry: share(m, "success") for entry, m in scores.items()},
            regret={
                entry: Cell(f"{m['regret']:.1%}", value=m["regret"])
                if "regret" in m
                else Cell("unknown")
                for entry, m in scores.items()
            },
            facts=row.facts,
            commands=row.commands,
        )

    return make_leaderboard_page(
        describe(board),
        {entry: board.best(entry) for entry in board.entries},
        [page_row(*place) for place in board.places()],
    )
