"""Put evaluations side by side: one HTML page and one Markdown table.

python -m launch.leaderboard results/*.json --output=leaderboard.html
python -m launch.leaderboard docs/leaderboard --table=docs/leaderboard.md

The files are those of launch.evaluate --json, or folders of them. See
`docs/evaluation.md`.
"""

from launch import command  # isort: skip, it says what is not installed

import pathlib

from absl import flags

from launch import written
from ragen_jax.runs.progress import working
from ragen_jax.terminal import say

_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "HTML file to write; default: leaderboard.html, or none with --table.",
)
_TABLE = flags.DEFINE_string("table", None, "Markdown file to write.")


def main(words: list[str]) -> int:
    if not words:
        raise ValueError(
            "name at least one file of launch.evaluate --json, or a folder of them: "
            "launch.leaderboard results/*.json"
        )
    written.check_files(_OUTPUT, _TABLE, is_renamed=True)
    with working("reading the files"):
        from launch.leaderboard_page import make_leaderboard_page
        from ragen_jax.evaluation.leaderboard import markdown, read_board
        from ragen_jax.runs.writer import write_text_atomically

        sources = [pathlib.Path(word) for word in words]
        board = read_board(sources)
        _check_targets([row.path for row in board.rows])
    for rank, row, mean in board.places():
        say(f"{'-' if rank is None else rank:>3}  {mean}  {row.name}")
    texts = {}
    if _TABLE.value:
        texts[_TABLE.value] = markdown(board)
    if _OUTPUT.value or not texts:
        texts[_OUTPUT.value or "leaderboard.html"] = make_leaderboard_page(board)
    for name, text in texts.items():
        path = pathlib.Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, text)
        say(f"{path} written")
    return 0


def _check_targets(sources: list[pathlib.Path]) -> None:
    """Refuse to write over a file of scores."""
    read = {path.resolve() for path in sources}
    for flag in filter(lambda flag: flag.value, (_OUTPUT, _TABLE)):
        if pathlib.Path(flag.value).resolve() in read:
            raise ValueError(
                f"--{flag.name}={flag.value} is a file of scores; name another file to "
                "write"
            )


if __name__ == "__main__":
    command.run_on_words(main)
