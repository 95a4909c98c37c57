"""Results of a sweep, read from its run folders: a table, JSON and a report.

In: the folder of a sweep. Out: `sweep.md`, `sweep.json` and `report.html` in it, about
all finished runs, those of earlier sweeps into the same folder included.
"""

import dataclasses
import functools
import json
import pathlib
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from ragen_jax.config import changed_keys
from ragen_jax.evaluation.statistics import NUM_RESAMPLES, bootstrap_interval
from ragen_jax.report.contents import make_contents
from ragen_jax.report.page import make_page
from ragen_jax.report.runs import RunData, read_run, read_runs
from ragen_jax.report.series import make_series
from ragen_jax.runs import markdown, reader
from ragen_jax.runs.figures import HELD_OUT, SUCCESS
from ragen_jax.runs.metrics import STAGES
from ragen_jax.runs.writer import write_text_atomically
from ragen_jax.terminal import columns, table

TABLE, NUMBERS, REPORT = "sweep.md", "sweep.json", "report.html"
# Sample episodes in the report, of all runs together.
_MAX_EPISODES = 400
_SEED = "seed-"


@dataclasses.dataclass(frozen=True)
class Score:
    """Success of a run in a game.

    Attributes:
      source: "held-out", or "training" if no level was held out.
      before, after: of the first and the last measurement, from 0 to 1.
    """

    source: str
    before: float
    after: float


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
      cell: name of its cell, "" without a grid.
      seed, folder: of the run.
      iterations: trained.
      seconds: of all stages of its iterations; runs at the same time share the cores.
      params_sha256: of its final parameters.
      scores: by the name of the game.
    """

    cell: str
    seed: int
    folder: pathlib.Path
    iterations: int
    seconds: float
    params_sha256: str
    scores: Mapping[str, Score]


def run_folder(workdir: pathlib.Path, cell: str, seed: int) -> pathlib.Path:
    """Folder of a run."""
    return workdir / cell / f"{_SEED}{seed}"


def check_folder(workdir: pathlib.Path) -> None:
    """Refuse a folder whose results could not be read after the runs.

    Raises:
      ValueError: it is a file, or a run in it is damaged.
    """
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"--workdir={workdir} is a file; name a folder")
    read_results(workdir)


def is_finished(folder: pathlib.Path, config: ConfigDict) -> bool:
    """Whether a run with exactly these settings is finished.

    Raises:
      ValueError: it is, but was evaluated with other settings: resuming it would
        measure nothing and record settings that its numbers were not measured with.
    """
    if not (folder / "config.json").is_file():
        return False
    result = reader.read_recorded(folder).result
    if result is None:
        return False
    changed = changed_keys(reader.read_config(folder), config, free=())
    for key, (old, new) in changed.items():
        is_over = result["iteration"] >= config.train.num_iterations
        if is_over and key.startswith("evaluation."):
            raise ValueError(
                f"{folder} is finished and was evaluated with {key} = {old}, not "
                f"{new}; use another --workdir, or launch.evaluate"
            )
    return not changed


def read_results(workdir: pathlib.Path) -> list[RunResult]:
    """All finished runs below a folder, by cell and seed.

    Raises:
      ValueError: the files of one are damaged.
    """
    # Not "seed-0-again", which `launch.train --reproduce` makes.
    folders = [
        path.parent
        for pattern in (f"{_SEED}*/config.json", f"*/{_SEED}*/config.json")
        for path in workdir.glob(pattern)
        if path.parent.name.removeprefix(_SEED).isdecimal()
    ]
    results = [
        read_result(folder, cell="" if folder.parent == workdir else folder.parent.name)
        for folder in folders
        if reader.read_recorded(folder).result is not None
    ]
    return sorted(results, key=lambda result: (result.cell, result.seed))


def read_result(folder: pathlib.Path, cell: str) -> RunResult:
    """Result of a finished run."""
    run = read_run(folder, folder.name)
    recorded = reader.read_recorded(folder).result
    # From the records, since the figures leave out iterations that compiled.
    records = reader.read_metrics(folder)
    seconds = (record.get(f"timing_s/{s}") for record in records for s in STAGES)
    return RunResult(
        cell=cell,
        seed=run.seed,
        folder=folder,
        iterations=recorded["iteration"],
        seconds=sum(filter(None, seconds)),
        params_sha256=recorded["params_sha256"],
        scores={game: score for game in run.games if (score := _score(run, game))},
    )


def _score(run: RunData, game: str) -> Score | None:
    for source, metric in (("held-out", HELD_OUT), ("training", SUCCESS)):
        measured = list(run.curve(metric.replace("{env}", game)).values())
        if measured:
            return Score(source, measured[0], measured[-1])
    return None


def describe(result: RunResult) -> str:
    """Success before and after, in words."""
    scores = [
        f"{game} {score.source} success {score.before:.1%} -> {score.after:.1%}"
        for game, score in result.scores.items()
    ]
    return ", ".join(scores) or "no success was measured"


def summarize(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """A row per cell and game: numbers of the runs, their means and intervals."""
    rows = []
    groups: dict[tuple[str, str, str], list[RunResult]] = {}
    for result in results:
        for game, score in result.scores.items():
            groups.setdefault((result.cell, game, score.source), []).append(result)
    for (cell, game, source), runs in groups.items():
        scores = [run.scores[game] for run in runs]
        rows.append(
            {
                "cell": cell,
                "game": game,
                "source": source,
                "before": _mean([score.before for score in scores]),
                "after": _mean([score.after for score in scores]),
                "gain": _mean([score.after - score.before for score in scores]),
                "seconds": statistics.fmean(run.seconds for run in runs),
                "runs": [
                    {
                        "seed": run.seed,
                        "folder": str(run.folder),
                        "before": score.before,
                        "after": score.after,
                        "iterations": run.iterations,
                        "seconds": run.seconds,
                        "params_sha256": run.params_sha256,
                    }
                    for run, score in zip(runs, scores, strict=True)
                ],
            }
        )
    return rows


def _mean(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and the ends of its bootstrap interval, None for fewer than three runs."""
    low, high = bootstrap_interval(values) or (None, None)
    return {"mean": statistics.fmean(values), "low": low, "high": high}


def make_table(
    rows: Sequence[Mapping[str, Any]], draw: Callable[..., str] = markdown.table
) -> str:
    """The rows as a table that `draw` makes, with what its numbers mean."""
    head = ("settings", "game", "runs", "before", "after", "gain", "seconds a run")
    cells = [
        (
            row["cell"] or "as configured",
            row["game"] + (" (training)" if row["source"] == "training" else ""),
            len(row["runs"]),
            f"{row['before']['mean']:.1%}",
            _interval(row["after"], "{:.1%}"),
            _interval(row["gain"], "{:+.1%}"),
            f"{row['seconds']:.0f}",
        )
        for row in rows
    ]
    return (
        f"{draw(head, cells)}\n\n"
        "Success on held-out levels, the mean over runs; in brackets its "
        f"95 % bootstrap interval over three or more seeds ({NUM_RESAMPLES:,} "
        "resamples). Seconds include compiling, which one run does for all that share "
        "its program, and waiting for the runs that train at the same time.\n"
    )


def _interval(number: Mapping[str, float | None], form: str) -> str:
    text = form.format(number["mean"])
    if number["low"] is None:
        return text
    return f"{text} [{form.format(number['low'])}, {form.format(number['high'])}]"


def write_results(workdir: pathlib.Path, results: Sequence[RunResult]) -> str:
    """Write the table, the numbers and the report.

    Returns:
      Text for the console: the table, and where the files are.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    rows = summarize(results)
    write_text_atomically(workdir / TABLE, make_table(rows))
    numbers = {"num_resamples": NUM_RESAMPLES, "rows": rows}
    write_text_atomically(workdir / NUMBERS, json.dumps(numbers, indent=2) + "\n")
    reports = write_reports(workdir, [result.folder for result in results])
    files = ", ".join([TABLE, NUMBERS, *reports])
    shown = make_table(rows, functools.partial(table, width=columns(sys.stdout)))
    return f"{shown}\neverything is in {workdir}: {files}"


def write_reports(workdir: pathlib.Path, folders: Sequence[pathlib.Path]) -> list[str]:
    """A report of all runs, or one for each game if they play different games.

    Returns:
      Names of the files.
    """
    by_games: dict[tuple[str, ...], list[pathlib.Path]] = {}
    for folder in folders:
        games = tuple(sorted(read_run(folder, folder.name).games))
        by_games.setdefault(games, []).append(folder)
    names = []
    for games, members in by_games.items():
        name = REPORT if len(by_games) == 1 else f"report-{'-'.join(games)}.html"
        runs = read_runs(members)
        contents = make_contents(runs, make_series(runs), max_episodes=_MAX_EPISODES)
        write_text_atomically(workdir / name, make_page(contents))
        names.append(name)
    if REPORT not in names:
        # An earlier sweep into this folder may have written one report for all runs.
        (workdir / REPORT).unlink(missing_ok=True)
    return names
