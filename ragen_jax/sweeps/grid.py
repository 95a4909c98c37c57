"""The grid of a sweep: texts of a command line to named configurations.

In: a configuration, "key=value,value" texts and a text of seeds. Out: `Cell`s, one for
each combination of values, and seeds. A cell's name is made from its values, not from
their text: `1e-3` and `0.001` are one folder.
"""

import collections
import copy
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence

from ml_collections import ConfigDict

from ragen_jax.config import declared, validate
from ragen_jax.registry.functions import read_literal
from ragen_jax.registry.settings import add_options, flatten, unknown_key

_SETTING = re.compile(r"\s*([\w.]+)\s*=(.*)", re.DOTALL)
_SEEDS = re.compile(r"(\d+)(?::(\d+))?")
_SEED_LIMIT, _MAX_SEEDS = 2**32, 10_000
# Keys whose names depend on the game.
_OPEN_SECTIONS = ("env.kwargs", "env.params")
_MAX_NAME = 120
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One combination of the values of a grid.

    Attributes:
      name: of its folder; "" if the grid has no keys.
      label: for the console and tables, with short keys.
      settings: values by dotted key.
      config: the configuration with these values.
    """

    name: str
    label: str
    settings: Mapping[str, object]
    config: ConfigDict

    def with_seed(self, seed: int) -> ConfigDict:
        """The configuration of a run."""
        config = copy.deepcopy(self.config)
        config.seed = seed
        return config


def parse_seeds(text: str) -> list[int]:
    """Seeds of "0:5" (5 is not one of them) or "1,4,9", or of both.

    Raises:
      ValueError: the text is neither, or names a seed twice or none.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = _SEEDS.fullmatch(part.strip())
        if not match:
            raise ValueError(
                f"--seeds={text}: {part!r} is neither a seed nor a range; write "
                "--seeds=0:5 for 0 to 4, or --seeds=1,4,9"
            )
        start = int(match[1])
        last = start if match[2] is None else int(match[2]) - 1
        if last >= _SEED_LIMIT:
            raise ValueError(
                f"--seeds={text}: {last} is not a seed; use 0 to 2**32 - 1"
            )
        if last - start >= _MAX_SEEDS:
            raise ValueError(
                f"--seeds={text} names more than {_MAX_SEEDS:,} seeds; each is a run"
            )
        seeds += range(start, last + 1)
    twice = [seed for seed, count in collections.Counter(seeds).items() if count > 1]
    if twice:
        raise ValueError(f"--seeds={text} names {twice[0]} twice; name each seed once")
    if not seeds:
        raise ValueError(
            f"--seeds={text} does not name a seed; the second number of a range is "
            "excluded: 0:5 are 0 to 4"
        )
    return seeds


def parse_grid(texts: Sequence[str]) -> dict[str, list[object]]:
    """Values by key of texts like "optimizer.learning_rate=1e-4,2e-4".

    Commas within brackets or quotes belong to a value.

    Raises:
      ValueError: a text has another form, or a key is set twice.
    """
    grid: dict[str, list[object]] = {}
    for text in texts:
        match = _SETTING.fullmatch(text)
        if not match:
            raise ValueError(
                f"--set {text!r} is not a setting; write --set KEY=VALUE,VALUE, e.g. "
                '--set "optimizer.learning_rate=1e-4,2e-4"'
            )
        key, values = match.groups()
        if key == "seed":
            raise ValueError(f"--set {text!r}: give seeds by --seeds, not by --set")
        if key in grid:
            raise ValueError(
                f"--set names {key} twice; give all of its values in one, KEY=A,B"
            )
        parts = _split(values, f"--set {text!r}")
        if not all(parts):
            raise ValueError(
                f"--set {text!r} has an empty value; leave out the comma, or write "
                "'' for an empty text"
            )
        grid[key] = [read_literal(part) for part in parts]
    return grid


def _split(text: str, where: str) -> list[str]:
    """Parts between commas outside of brackets and quotes, without outer blanks."""
    parts, open_brackets, quote = [""], [], None
    for letter in text:
        if letter == "," and not open_brackets and not quote:
            parts.append("")
            continue
        parts[-1] += letter
        if quote:
            quote = None if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _CLOSING:
            open_brackets.append(_CLOSING[letter])
        elif letter in _CLOSING.values() and letter == (open_brackets or [None])[-1]:
            open_brackets.pop()
    if quote or open_brackets:
        missing = quote or open_brackets[-1]
        raise ValueError(f"{where} lacks a closing {missing}")
    return [part.strip() for part in parts]


def make_cells(config: ConfigDict, grid: Mapping[str, Sequence[object]]) -> list[Cell]:
    """The product of a grid; values of the last key change first.

    Args:
      config: with the values that the grid does not set.
      grid: values by dotted key; empty for a single cell.

    Raises:
      ValueError: a key does not exist, does not take a value, or has one value twice.
    """
    cells = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        cells.append(make_cell(config, settings))
    names = [cell.name for cell in cells]
    for cell in cells:
        if names.count(cell.name) > 1:
            raise ValueError(
                f"the grid has {cell.label} twice; name each value of a key once"
            )
    return cells


def make_cell(config: ConfigDict, settings: Mapping[str, object]) -> Cell:
    """A configuration with some values changed, named by them.

    Raises:
      ValueError: a key does not exist, or does not take a value.
    """
    config = copy.deepcopy(config)
    options = {}
    for key, value in settings.items():
        if not _set(config, key, value):
            options[key] = value
    if options:
        add_options(config, declared().tables, options)
    known = flatten(config)
    settings = {key: known[key] for key in settings}
    short = [key.rsplit(".", 1)[-1] for key in settings]
    labels = settings if len(set(short)) < len(short) else short
    return Cell(
        name=_folder_name(_listed(settings, settings.values())),
        label=_listed(labels, settings.values()),
        settings=settings,
        config=config,
    )


def check_cells(cells: Sequence[Cell], overrides: Collection[str] = ()) -> None:
    """Validate the configuration of every cell.

    Args:
      cells: of the grid; missing options of the user's functions are added.
      overrides: dotted paths that were set for all cells.

    Raises:
      ValueError: names the first bad cell, the rule and what to do.
    """
    for key in overrides:
        if key == "seed":
            raise ValueError(
                "--config.seed sets a single seed; give those of a sweep by --seeds"
            )
        if any(key in cell.settings for cell in cells):
            raise ValueError(
                f"--config.{key} and --set {key} set the same key; keep one of them"
            )
    for cell in cells:
        try:
            validate(cell.config, [*overrides, *cell.settings])
        except ValueError as error:
            raise named(cell, error) from error


def named(cell: Cell, error: Exception) -> ValueError:
    """The error, preceded by the name of its cell."""
    return ValueError(f"{cell.label}: {error}" if cell.label else str(error))


def _set(config: ConfigDict, key: str, value: object) -> bool:
    """Set a key; False if it may be an option of the user's own function.

    Raises:
      ValueError: the key does not exist, or takes values of another type.
    """
    known = flatten(config)
    section, _, name = key.rpartition(".")
    if key in known:
        try:
            if isinstance(value, bool) and type(known[key]) in (int, float):
                raise TypeError("True and False would count as 1 and 0")
            config.update_from_flattened_dict({key: value})
        except TypeError as error:
            raise ValueError(
                f"--set {key}={value}: the value has type {type(value).__name__}, but "
                f"{key} takes values such as {known[key]!r}"
            ) from error
        return True
    if section in _OPEN_SECTIONS:
        place = config[section.split(".")[0]][section.split(".")[1]]
        with place.unlocked():
            place[name] = value
        return True
    if any(section == table.rpartition(".")[0] for table in declared().tables):
        return False
    raise unknown_key(key, known)


def _listed(keys: Collection[str], values: Collection[object]) -> str:
    pairs = zip(keys, values, strict=True)
    return ", ".join(f"{key}={_text(value)}" for key, value in pairs)


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _folder_name(text: str) -> str:
    """A folder name; if characters had to be replaced, a digest keeps it unique."""
    plain = text.replace(", ", ",")
    name = re.sub(r"[^\w.=,+-]+", "_", plain)[:_MAX_NAME]
    if name == plain:
        return name
    return f"{name}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
