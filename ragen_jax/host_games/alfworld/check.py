"""Checks games of ALFWorld's before they are trained on.

In: a folder. Out: a line for every game whose walkthrough does not win, and how many
do.

    python -m ragen_jax.host_games.alfworld.check FOLDER
"""

import sys
from collections.abc import Iterator, Sequence

from ragen_jax.host_games.alfworld.files import find_games, read_game
from ragen_jax.host_games.alfworld.story import Story
from ragen_jax.host_games.base import SPLITS


def find_faults(path: str) -> str | None:
    """Why the walkthrough of a file does not win; None if it does."""
    try:
        story = Story(read_game(path))
        story.intro()
        state = story.world.start
        for command in story.walkthrough:
            move = story.commands(state).get(command)
            # Walkthroughs have commands in which nothing happens, too.
            if move is not None:
                state = story.world.apply(state, move)
                story.answer(state, move)
    except ValueError as error:
        return f"cannot be played: {error}"
    if not story.walkthrough:
        return "has no walkthrough"
    return None if story.world.is_won(state) else "its walkthrough does not win"


def check(data: str) -> Iterator[str]:
    """Lines about the games of a folder.

    Raises:
      ValueError: there is no such folder, or a file that is not JSON.
    """
    for split in SPLITS:
        paths = find_games(data, split)
        faults = {path: find_faults(path) for path in paths}
        yield from (f"{path} {fault}" for path, fault in faults.items() if fault)
        won = sum(fault is None for fault in faults.values())
        yield f"{split}: {won} of {len(paths)} walkthroughs win"


def main(words: Sequence[str]) -> int:
    """Print the lines about a folder; exit status 1 if it cannot be checked."""
    if len(words) != 1:
        print("usage: python -m ragen_jax.host_games.alfworld.check FOLDER")
        return 2
    try:
        for line in check(words[0]):
            print(line)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
