"""Finds ALFWorld's games in a folder and deals them to splits.

In: a folder. Out: paths of `game.tw-pddl` files, and what they hold.
Source of the layout: ALFWorld's data, `train`, `valid_seen` and `valid_unseen` with a
folder for every task and in it one for every trial.
"""

import functools
import pathlib

from ragen_jax.host_games.base import SPLITS, TRAINING, VALIDATION
from ragen_jax.host_games.common import shared
from ragen_jax.host_games.common.files import read_each, read_json
from ragen_jax.host_games.common.splits import VALIDATION_SHARE, split_of

SUFFIX = ".tw-pddl"


def read_game(path: str) -> dict[str, object]:
    """The JSON object in a file.

    Raises:
      ValueError: it holds something else.
    """
    return read_json(path, dict, option="a game", form="one of ALFWorld's")


@functools.lru_cache(maxsize=4)
def find_games(data: str, split: str) -> tuple[str, ...]:
    """Paths of the games of a split, in alphabetical order.

    Where a folder on the way is named `train` or begins with `valid`, that is the
    split. Elsewhere a game's problem decides, so that its copies are in the same split.
    Games that are not said to be solvable are left out, as in the original. The folder
    is read once for all workers (`common.shared`), and the first time for both splits.

    Args:
      data: a folder.
      split: "training" or "validation".

    Raises:
      ValueError: there is no such folder, no game of the split in it, or too many of
        its files cannot be read.
    """
    folder = pathlib.Path(data)
    if not folder.is_dir():
        raise ValueError(
            f"data={data} is not a folder; give one with game.tw-pddl files"
        )
    found = shared.once(f"ALFWorld {data}", functools.partial(_list_games, folder))
    if not found[split]:
        raise ValueError(
            f"data={data} has no solvable game for {split} among {found['files']} "
            "files; give a folder with train and valid_seen in it, or more games: of "
            f"those in neither, one in {1 / VALIDATION_SHARE:.0f} is for validation"
        )
    return tuple(found[split])


def _list_games(folder: pathlib.Path) -> dict[str, object]:
    """Paths of the games by split, and as "files" the number of files."""
    files = sorted(
        folder.rglob(f"*{SUFFIX}"), key=lambda path: path.relative_to(folder).parts
    )
    # The split of each; None: not a solvable game.
    splits = read_each(
        files,
        functools.partial(_split, folder),
        str(folder),
        form="remove it, or give a folder of ALFWorld's games",
        kind="file",
    )
    found: dict[str, object] = {name: [] for name in SPLITS}
    for path, split in splits:
        if split is not None:
            found[split].append(path)
    return found | {"files": len(files)}


def _split(folder: pathlib.Path, path: pathlib.Path) -> tuple[str, str | None]:
    """A path and the split of its game; None: the game may not be solvable."""
    game = read_game(str(path))
    if game.get("solvable") is not True:
        return str(path), None
    named = _named_split(folder.name, *path.relative_to(folder).parts[:-1])
    return str(path), named or split_of(str(game.get("pddl_problem")))


def _named_split(*folders: str) -> str | None:
    """The split that names of folders say; the innermost counts."""
    for name in reversed(folders):
        if name == "train":
            return TRAINING
        if name.startswith("valid"):
            return VALIDATION
    return None
