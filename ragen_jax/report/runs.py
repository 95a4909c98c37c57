"""Run folders as data: their settings and their metrics.

In: folders that `launch.train` wrote. Out: a `RunData` each. Only files are read: runs
of earlier versions and of other machines serve as well.
"""

import dataclasses
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.registry.settings import flatten, is_number
from ragen_jax.runs import reader
from ragen_jax.runs.metrics import TimeShares, tokens_per_second, when_compiled

# Sums and differences of two of them are finite.
MAX_NUMBER = 1e300
# A metric names its environment: "train/Sokoban/success".
_GAME_METRIC = re.compile(r"(train|val-env)/([^/]+)/")


@dataclasses.dataclass(frozen=True)
class RunData:
    """One run folder.

    Attributes:
      name: end of the folder's path, as short as tells it from the others.
      folder: path.
      settings: the resolved configuration by dotted key.
      records: a line of `metrics.jsonl` each, oldest first; with `tokens_per_second`
        and `TimeShares`, without what was measured `when_compiled`.
    """

    name: str
    folder: pathlib.Path
    settings: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    @property
    def seed(self) -> Any:
        return self.settings.get("seed")

    @property
    def games(self) -> tuple[str, ...]:
        """Environments trained on, in the order of the metrics.

        Those that were played before the first iteration, until it is done.
        """
        keys = dict.fromkeys(key for record in self.records for key in record)
        matches = [match for match in map(_GAME_METRIC.match, keys) if match]
        trained = [match for match in matches if match.group(1) == "train"]
        return tuple(dict.fromkeys(match.group(2) for match in trained or matches))

    @property
    def iterations(self) -> int:
        """Iterations done."""
        return self.records[-1]["iteration"]

    @property
    def planned(self) -> int | None:
        """Iterations that the settings ask for; None where they do not say."""
        count = self.settings.get("train.num_iterations")
        return round(count) if is_drawable(count) else None

    def curve(self, metric: str) -> dict[int, float]:
        """Iteration -> value, where a number was recorded."""
        pairs = ((r["iteration"], r.get(metric)) for r in self.records)
        return {i: float(v) for i, v in pairs if is_drawable(v)}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that were recorded as a number at least once."""
        names = {k: None for r in self.records for k, v in r.items() if is_drawable(v)}
        return tuple(k for k in names if k not in ("iteration", "time"))


def read_runs(folders: Sequence[pathlib.Path]) -> list[RunData]:
    """Every folder's run, in the order given.

    Raises:
      ValueError: a folder is named twice, is not a run or lacks metrics, or the runs
        were trained on different environments.
    """
    resolved = [folder.resolve() for folder in folders]
    for folder in folders:
        if resolved.count(folder.resolve()) > 1:
            raise ValueError(f"{folder} is named twice; name each run once")
    names = _short_names(resolved)
    runs = [read_run(f, name) for f, name in zip(folders, names, strict=True)]
    first = runs[0]
    for run in runs[1:]:
        if set(run.games) != set(first.games):
            raise ValueError(
                f"{run.folder} plays {_listed(run.games)}, {first.folder} plays "
                f"{_listed(first.games)}; one report compares runs of the same games, "
                "so make one report for each"
            )
    return runs


def read_run(folder: pathlib.Path, name: str) -> RunData:
    """Run of a folder.

    Raises:
      ValueError: `folder` is not a run folder, or its files are damaged or empty.
    """
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder}; name the --workdir of a run of launch.train"
        )
    for file in ("config.json", "metrics.jsonl"):
        if not (folder / file).is_file():
            raise ValueError(
                f"{folder} is not a run folder: it has no {file}; name the "
                "--workdir of a run of launch.train"
            )
    settings = flatten(reader.read_config(folder))
    records = reader.read_metrics(folder)
    if not records:
        raise ValueError(
            f"{folder / 'metrics.jsonl'} is empty: the run has not finished an "
            "iteration yet; wait for it, or leave the folder out"
        )
    num_rows = _num_rows(settings)
    shares = TimeShares()
    records = [_drawn(record, num_rows, shares) for record in records]
    return RunData(name=name, folder=folder, settings=settings, records=records)


def _drawn(
    record: Mapping[str, Any], num_rows: float | None, shares: TimeShares
) -> dict[str, Any]:
    """What figures show of an iteration; earlier versions recorded no throughput."""
    numbers = {name: value for name, value in record.items() if is_drawable(value)}
    left_out = when_compiled(record)
    rest = {name: value for name, value in record.items() if name not in left_out}
    return tokens_per_second(numbers, num_rows) | shares.add(numbers) | rest


def _num_rows(settings: Mapping[str, Any]) -> float | None:
    """Episodes of an iteration; None where the settings do not say."""
    sizes = [settings.get(f"rollout.{key}") for key in ("num_groups", "group_size")]
    return math.prod(map(float, sizes)) if all(map(is_drawable, sizes)) else None


def is_drawable(value: Any) -> bool:
    """True if a figure can show the value: a real number that is not too large."""
    return is_number(value) and abs(value) <= MAX_NUMBER  # false for NaN


def _short_names(folders: Sequence[pathlib.Path]) -> list[str]:
    """The shortest ends of the paths that differ from each other."""
    for size in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-size:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def _listed(games: Sequence[str]) -> str:
    return ", ".join(games) or "no game it names"
