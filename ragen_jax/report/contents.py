"""Contents of a report, as one JSON-able value.

In: runs. Out: a dict that the page draws from and that tests can read: series, tables,
curves by metric, alarms, gradient buckets, episodes. No drawing happens here.
"""

import dataclasses
import re
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from ragen_jax.report.alarms import alarms, regime_borders
from ragen_jax.report.episodes import choose_episodes
from ragen_jax.report.runs import RunData
from ragen_jax.report.series import (
    MAX_POINTS,
    MAX_POINTS_TOGETHER,
    Curve,
    Series,
    curve,
    differing_settings,
    repeated_seeds,
    thin,
)
from ragen_jax.runs import figures
from ragen_jax.runs.metrics import METRICS, declared

# Settings every summary names.
_SUMMARY_SETTINGS = (
    "model.path",
    "algo.advantage",
    "rollout.num_groups",
    "rollout.group_size",
    "filter.keep_fraction",
    "optimizer.learning_rate",
)
_BUCKET = re.compile(rf"{figures.BUCKET}(bucket_(\d+)|all)/(\w+)")


def make_contents(
    runs: Sequence[RunData],
    series: Sequence[Series],
    *,
    max_episodes: int,
) -> dict[str, Any]:
    """The report of runs that were grouped into series.

    Args:
      runs, series: see `read_runs` and `make_series`.
      max_episodes: episodes for the viewer, of all runs together.
    """
    games = runs[0].games
    sections = figures.make_sections(METRICS)
    metrics = list(dict.fromkeys(m for run in runs for m in run.metrics))
    episodes = choose_episodes(runs, max_episodes)
    owner = {id(run): i for i, group in enumerate(series) for run in group.runs}
    rows = [(i, group, env) for env in games for i, group in enumerate(series)]
    return {
        "games": list(games),
        "series": [
            {"name": group.name, "runs": [runs.index(run) for run in group.runs]}
            for group in series
        ],
        "runs": [
            {
                "name": run.name,
                "seed": run.seed,
                "series": owner[id(run)],
                "iterations": run.iterations,
                "planned": run.planned,
            }
            for run in runs
        ],
        "summary": [{"series": i} | summary(group, env) for i, group, env in rows],
        "settings": {
            "common": {k: runs[0].settings.get(k) for k in _SUMMARY_SETTINGS},
            "differing": differing_settings(series),
            "repeated_seeds": repeated_seeds(series),
        },
        "sections": [
            contents_of(section, games, metrics, series) for section in sections
        ],
        "curves": {m: _curves(series, m) for m in metrics},
        "declared": {m: _declaration(m) for m in metrics},
        "plane": plane(runs, series),
        "alarms": [alarms(run) for run in runs],
        "buckets": buckets(series, metrics),
        "episodes": dataclasses.asdict(episodes),
    }


def summary(series: Series, env: str) -> dict[str, Any]:
    """A series' success in a game: a row of the table.

    `first`, `last` and `best` are of held-out success (of training's where nothing was
    held out): its iteration, the runs that recorded it then, their mean, and its ends:
    the 95 % interval of a single run, the smallest and the largest of several.
    """
    metric = figures.HELD_OUT.replace("{env}", env)
    # Every point: the best one may not be among those that are drawn.
    success, source = curve(series, metric, sys.maxsize), "held-out"
    if success is None:
        metric, source = figures.SUCCESS.replace("{env}", env), "training"
        success = curve(series, metric, sys.maxsize)
    ceiling = curve(series, figures.CEILING.replace("{env}", env))
    row = {"game": env, "source": source, "num_runs": len(series.runs)}
    row["ceiling"] = None if ceiling is None else ceiling.mean[-1]
    exact = curve(series, figures.EXACT.replace("{env}", env))
    row["is_exact"] = exact is None or exact.mean[-1] == 1
    if success is None:
        return row | dict.fromkeys(("first", "last", "best"))
    best = max(range(len(success.at)), key=lambda i: success.mean[i])
    points = {"first": 0, "last": -1, "best": best}
    return row | {
        name: {
            "at": success.at[i],
            "runs": sum(success.at[i] in run.curve(metric) for run in series.runs),
            "mean": _rounded(success.mean[i]),
            "ends": [_rounded(success.low[i]), _rounded(success.high[i])],
        }
        for name, i in points.items()
    }


def contents_of(
    section: figures.Section,
    games: Sequence[str],
    metrics: Sequence[str],
    series: Sequence[Series],
) -> dict[str, Any]:
    """A section with the panels of recorded metrics.

    `absent` says what is missing where the section has nothing to draw, or a panel no
    series with what it needs. Every line has the numbers of the `series` it is of.
    """
    panels, absent = [], []
    for panel in figures.expand(section.panels, games):
        recorded = [line for line in panel.lines if line.metric in metrics]
        drawn = [(line, _drawn_of(line, series)) for line in recorded]
        lines = [dataclasses.asdict(line) | {"series": s} for line, s in drawn if s]
        if any(line["style"] != "reference" for line in lines):
            panels.append(dataclasses.asdict(panel) | {"lines": lines})
        elif recorded and recorded[0].needs:
            absent.append(f"{panel.title} ({recorded[0].needs} is never above 0)")
    is_drawn = has_special(section.special, metrics)
    if not is_drawn and (not panels or section.special):
        absent.insert(0, section.absent)
    return {
        "key": section.key,
        "title": section.title,
        "lead": section.lead,
        "panels": panels,
        "special": section.special if is_drawn else "",
        "absent": "; ".join(absent),
    }


def _drawn_of(line: figures.Line, series: Sequence[Series]) -> list[int]:
    """Numbers of the series of which a line is drawn: see `View.needs`."""
    return [
        i
        for i, group in enumerate(series)
        if not line.needs
        or any(x > 0 for run in group.runs for x in run.curve(line.needs).values())
    ]


def _declaration(name: str) -> dict[str, str]:
    """Kind and meaning of a recorded metric."""
    metric = declared(name)
    if metric is None:
        return {"kind": "number", "text": ""}
    return {"kind": metric.kind, "text": metric.text}


def has_special(special: str, metrics: Sequence[str]) -> bool:
    """Whether the metrics of a special drawing were recorded."""
    needed = {
        "plane": {figures.PLANE_X, figures.PLANE_Y} <= set(metrics),
        "alarms": any(m.startswith(figures.ALARM) for m in metrics),
        "buckets": any(_BUCKET.fullmatch(m) for m in metrics),
    }
    return needed.get(special, False)


def plane(runs: Sequence[RunData], series: Sequence[Series]) -> dict[str, Any]:
    """Paths through the information plane as points [iteration, H(Z|X), I(X;Z)].

    `ways` of the runs; `means` of the series, at iterations that all runs measured.
    """
    points = {id(run): _way(run) for run in runs}
    means = []
    for group in series:
        ways = [points[id(run)] for run in group.runs if points[id(run)]]
        shared = sorted(set.intersection(*map(set, ways))) if ways else []
        means.append(
            {
                i: [statistics.fmean(way[i][k] for way in ways) for k in (0, 1)]
                for i in shared
            }
        )
    return {
        "ways": [_shown_way(points[id(run)]) for run in runs],
        "means": list(map(_shown_way, means)),
        "borders": regime_borders(series),
        "regimes": figures.REGIMES,
        "x": figures.PLANE_X,
        "y": figures.PLANE_Y,
    }


def _way(run: RunData) -> dict[int, list[float]]:
    x, y = run.curve(figures.PLANE_X), run.curve(figures.PLANE_Y)
    return {i: [x[i], y[i]] for i in x if i in y}


def _shown_way(way: dict[int, list[float]]) -> list[list[float]]:
    return [[i, *map(_rounded, way[i])] for i in thin(list(way), MAX_POINTS)]


def buckets(series: Sequence[Series], metrics: Sequence[str]) -> dict[str, Any]:
    """Gradient norms by bucket, least reward spread first.

    `names` of the buckets, `parts` of the loss that were measured, `means` per series
    and part (see `bucket_means`; None for a series without any), `has_snr`.
    """
    matches = [match for match in map(_BUCKET.fullmatch, metrics) if match]
    numbers = sorted({int(match.group(2)) for match in matches if match.group(2)})
    names = [f"bucket_{n}" for n in numbers]
    measured = {match.group(3) for match in matches if match.group(2)}
    parts = [part for part in figures.BUCKET_PARTS if part in measured]
    means = [
        {part: bucket_means(group, names, part) for part in parts} for group in series
    ]
    return {
        "names": names,
        "parts": parts,
        "means": [
            m if any(x for rows in m.values() for x in rows) else None for m in means
        ],
        "has_snr": "snr" in measured,
        "prefix": figures.BUCKET,
    }


def bucket_means(series: Series, names: Sequence[str], part: str) -> list[list[float]]:
    """Per bucket: a run's mean over its iterations, as [mean, low, high] of the runs.

    [] for a bucket that was never measured.
    """
    rows = []
    for name in names:
        curves = [run.curve(f"{figures.BUCKET}{name}/{part}") for run in series.runs]
        means = [statistics.fmean(c.values()) for c in curves if c]
        point = (statistics.fmean(means), min(means), max(means)) if means else ()
        rows.append(list(map(_rounded, point)))
    return rows


def _curves(series: Sequence[Series], metric: str) -> list[dict[str, Any] | None]:
    room = min(MAX_POINTS, MAX_POINTS_TOGETHER // len(series))
    curves = (curve(group, metric, max(room, 2)) for group in series)
    return [None if c is None else _compact(c) for c in curves]


def _compact(curve: Curve) -> dict[str, Any]:
    """A curve without the fields that repeat its mean."""
    rounded = {
        name: list(map(_rounded, getattr(curve, name)))
        for name in ("mean", "low", "high", "error")
    }
    if curve.num_runs == 1:
        del rounded["error"]
    if rounded["low"] == rounded["high"]:
        del rounded["low"], rounded["high"]
    return {"at": curve.at, "num_runs": curve.num_runs} | rounded


def _rounded(value: float) -> float:
    """Five significant digits: more than a figure shows."""
    return float(f"{value:.5g}")
