"""Tables of sweeps, against NumPy and by enumeration."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from ragen_jax.evaluation.statistics import bootstrap_interval
from ragen_jax.runs import reader
from ragen_jax.sweeps import results
from ragen_jax.sweeps.results import RunResult, Score, make_table, summarize
from tests.report import fake_runs

AFTER = {0: 0.5, 1: 0.75, 2: 0.25}


def enumerated(values):
    """Ends of the interval from all resamples there are."""
    means = [
        np.mean(chosen) for chosen in itertools.product(values, repeat=len(values))
    ]
    # Many times, so that nothing between two of them counts.
    return np.quantile(np.tile(means, 1000), (0.025, 0.975))


@pytest.mark.parametrize("values", [[0.2, 0.5, 0.8, 0.3], [0.1, 0.2, 0.4, 0.8, 1.0]])
def test_the_interval_is_that_of_all_resamples(values):
    np.testing.assert_allclose(
        bootstrap_interval(values), enumerated(values), atol=0.02
    )
    assert bootstrap_interval(values) == bootstrap_interval(values)


@pytest.mark.parametrize("values", [[0.5], [0.25, 0.75]])
def test_fewer_than_three_runs_have_no_interval(values):
    assert bootstrap_interval(values) is None
    assert bootstrap_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)


def result(seed, after, cell="lr=1", source="held-out"):
    return RunResult(
        cell=cell,
        seed=seed,
        folder=pathlib.Path("runs") / cell / f"seed-{seed}",
        iterations=40,
        seconds=100.0 + seed,
        params_sha256=f"{seed}",
        scores={"Sokoban": Score(source, 0.25, after)},
    )


def test_rows_hold_means_and_intervals():
    runs = [result(seed, after) for seed, after in AFTER.items()]
    first, other = summarize([*runs, result(5, 0.875, cell="lr=2")])
    after = list(AFTER.values())
    assert first["after"]["mean"] == pytest.approx(np.mean(after))
    ends = [first["after"][end] for end in ("low", "high")]
    np.testing.assert_allclose(ends, enumerated(after))
    gains = [first["gain"][end] for end in ("mean", "low", "high")]
    expected = [np.mean(after) - 0.25, *(enumerated(after) - 0.25)]
    np.testing.assert_allclose(gains, expected)
    assert first["before"] == {"mean": 0.25, "low": 0.25, "high": 0.25}
    assert first["seconds"] == 101
    assert [run["seed"] for run in first["runs"]] == [0, 1, 2]
    assert other["after"] == {"mean": 0.875, "low": None, "high": None}


def test_the_table_shows_them():
    runs = [result(seed, after) for seed, after in AFTER.items()]
    trained = result(5, 0.875, cell="", source="training")
    lines = make_table(summarize([*runs, trained])).splitlines()
    assert lines[2] == (
        "| lr=1 | Sokoban | 3 | 25.0% | 50.0% [25.0%, 75.0%] | "
        "+25.0% [+0.0%, +50.0%] | 101 |"
    )
    assert lines[3] == (
        "| as configured | Sokoban (training) | 1 | 25.0% | 87.5% | +62.5% | 105 |"
    )


def test_results_of_runs_that_all_failed_to_start_have_a_folder(tmp_path):
    """No run has made it."""
    results.write_results(tmp_path / "sweep", [])
    assert (tmp_path / "sweep" / results.TABLE).is_file()


def test_each_game_gets_a_report(tmp_path):
    folders = []
    for name, game in (("a", "Sokoban"), ("b", "Bandit"), ("c", "Sokoban")):
        folders.append(fake_runs.write_run(tmp_path / name, game=game, iterations=2))
    assert results.write_reports(tmp_path, folders[::2]) == ["report.html"]
    assert "<html" in (tmp_path / "report.html").read_text()
    names = results.write_reports(tmp_path, folders)
    assert names == ["report-Sokoban.html", "report-Bandit.html"]
    # The first one lacks a run that is there now.
    assert {path.name for path in tmp_path.glob("*.html")} == set(names)


def test_a_reproduced_run_is_not_another_seed(tmp_path):
    for name in ("seed-0", "seed-0-again", "lr=1/seed-1", "lr=1/seed-1-again"):
        path = fake_runs.write_run(tmp_path / name, iterations=2) / "config.json"
        ended = {"result": {"iteration": 2, "params_sha256": "ab"}}
        config = json.loads(path.read_text()) | {reader.RECORDED: ended}
        path.write_text(json.dumps(config))
    found = results.read_results(tmp_path)
    assert [(run.cell, run.seed) for run in found] == [("", 0), ("lr=1", 0)]
