"""Series: runs that differ only in their seed, drawn as a line with a band.

In: runs. Out: series, named by the settings in which they differ, and their curves.
"""

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from ragen_jax.report.runs import RunData

# Longest curve kept; longer ones are thinned evenly, first and last point included.
MAX_POINTS = 400
# Most points of a metric on one page, of all series together.
MAX_POINTS_TOGETHER = 2000
# A series that differs in more keys than this is named by its folders.
_MAX_KEYS_IN_NAME = 3


@dataclasses.dataclass(frozen=True)
class Series:
    """Runs whose settings differ in nothing but the seed."""

    name: str
    runs: tuple[RunData, ...]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A metric over the iterations, over the runs of a series.

    Attributes:
      at: iterations, ascending.
      mean: of the runs that recorded it then.
      low, high: smallest and largest of them; of a single run's held-out success its
        95 % interval, where that was recorded.
      error: standard error of the mean, 0 where there is one run.
      num_runs: the most that any point is the mean of.
    """

    at: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    error: list[float]
    num_runs: int


def make_series(
    runs: Sequence[RunData], names: Sequence[str] | None = None
) -> list[Series]:
    """Group runs; `names` replaces the names, one per series in order.

    Raises:
      ValueError: another number of names than of series.
    """
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        settings = {k: v for k, v in run.settings.items() if k != "seed"}
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
    members = list(groups.values())
    if names is None:
        names = _names(members)
    elif len(names) != len(members):
        raise ValueError(
            f"{len(names)} names for {len(members)} series ("
            + "; ".join(", ".join(run.name for run in group) for group in members)
            + "); runs whose settings differ only in the seed are one series"
        )
    return [Series(n, tuple(g)) for n, g in zip(names, members, strict=True)]


def repeated_seeds(series: Sequence[Series]) -> list[str]:
    """A sentence for each series in which runs share seed and settings."""
    return [
        f"runs of {group.name} have the same seed and settings; their band does not "
        "show the spread of independent runs"
        for group in series
        if len({json.dumps(run.seed) for run in group.runs}) < len(group.runs)
    ]


def differing_settings(series: Sequence[Series]) -> dict[str, list[Any]]:
    """Keys in which series differ -> the value of each series (None: no such key)."""
    settings = [s.runs[0].settings for s in series]
    keys = dict.fromkeys(key for group in settings for key in group)
    values = {k: [group.get(k) for group in settings] for k in keys if k != "seed"}
    return {k: v for k, v in values.items() if any(x != v[0] for x in v)}


def curve(series: Series, metric: str, max_points: int = MAX_POINTS) -> Curve | None:
    """Curve of a metric, thinned evenly; None where no run recorded it."""
    curves = [c for c in (run.curve(metric) for run in series.runs) if c]
    if not curves:
        return None
    at = thin(sorted(set().union(*curves)), max_points)
    values = [[c[i] for c in curves if i in c] for i in at]
    low, high = [min(v) for v in values], [max(v) for v in values]
    if len(series.runs) == 1:
        run = series.runs[0]
        lows, highs = (run.curve(f"{metric}_{end}") for end in ("low", "high"))
        low = [lows.get(i, x) for i, x in zip(at, low, strict=True)]
        high = [highs.get(i, x) for i, x in zip(at, high, strict=True)]
    return Curve(
        at=at,
        mean=[statistics.fmean(v) for v in values],
        low=low,
        high=high,
        error=[_standard_error(v) for v in values],
        num_runs=max(map(len, values)),
    )


def thin(items: Sequence, count: int) -> list:
    """At most `count` items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _standard_error(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    return statistics.stdev(values) / math.sqrt(len(values))


def _names(groups: Sequence[Sequence[RunData]]) -> list[str]:
    """Names of series: the settings in which they differ, or else their folders."""
    plain = [Series("", tuple(group)) for group in groups]
    differing = differing_settings(plain)
    names = [_folder_name(group) for group in groups]
    if 0 < len(differing) <= _MAX_KEYS_IN_NAME:
        names = [
            ", ".join(f"{k}={_shown(v[i])}" for k, v in _short_keys(differing).items())
            for i in range(len(groups))
        ]
    if len(set(names)) < len(names):  # folders alike up to a number
        names = [group[0].name for group in groups]
    return names


def _short_keys(settings: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The keys without their sections, where they still differ from each other."""
    short = {key.rsplit(".", 1)[-1]: value for key, value in settings.items()}
    return short if len(short) == len(settings) else settings


def _folder_name(group: Sequence[RunData]) -> str:
    """Common beginning of the folders' names: "a" of "a-0" and "a-1"."""
    if len(group) == 1:
        return group[0].name
    letters = zip(*(run.name for run in group), strict=False)
    alike = itertools.takewhile(lambda same: len(set(same)) == 1, letters)
    common = "".join(same[0] for same in alike)
    return common.rstrip("-_ .") or group[0].name


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
