"""What a report says of runs holds for these runs: data that the page is made from."""

import json

import pytest

from ragen_jax.report.alarms import regime_borders
from ragen_jax.report.contents import make_contents
from ragen_jax.report.runs import RunData, read_runs
from ragen_jax.report.series import make_series
from tests.report import fake_runs


def contents_of(*folders):
    runs = read_runs(folders)
    return make_contents(runs, make_series(runs), max_episodes=0)


def section(contents, key):
    (found,) = (s for s in contents["sections"] if s["key"] == key)
    return found


def change_records(folder, change):
    """Rewrite a run's record, line by line; None drops the line."""
    path = folder / "metrics.jsonl"
    records = map(change, map(json.loads, path.read_text().splitlines()))
    path.write_text("".join(json.dumps(r) + "\n" for r in records if r is not None))


def test_a_run_under_way_says_when_it_was_measured(tmp_path):
    """13 iterations of 40 are done, and held-out levels were last played after 10."""
    contents = contents_of(
        fake_runs.write_run(tmp_path / "a", iterations=13, planned=40)
    )
    (run,) = contents["runs"]
    assert (run["iterations"], run["planned"]) == (13, 40)
    (row,) = contents["summary"]
    assert (row["first"]["at"], row["last"]["at"]) == (0, 10)


def test_a_mean_of_some_runs_says_of_how_many(tmp_path):
    folders = [
        fake_runs.write_run(tmp_path / "0", seed=0, iterations=20),
        fake_runs.write_run(tmp_path / "1", seed=1, iterations=10, planned=20),
    ]
    (row,) = contents_of(*folders)["summary"]
    assert row["num_runs"] == 2
    assert (row["first"]["runs"], row["last"]["runs"]) == (2, 1)


def test_equal_seeds_are_not_called_different(tmp_path):
    first, again, other = (
        fake_runs.write_run(tmp_path / name, seed=seed, iterations=2)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    (sentence,) = contents_of(first, again)["settings"]["repeated_seeds"]
    assert "the same seed and settings" in sentence
    assert contents_of(first, other)["settings"]["repeated_seeds"] == []


def test_no_kl_is_drawn_of_a_run_without_one(tmp_path):
    without = fake_runs.write_run(tmp_path / "a", iterations=3)
    found = section(contents_of(without), "update")
    assert "KL to the reference" not in {p["title"] for p in found["panels"]}
    assert found["absent"] == "KL to the reference (actor/kl_coeff is never above 0)"
    # Beside a run that has one, its 0 is no line.
    penalized = fake_runs.write_run(tmp_path / "b", collapses=True, iterations=3)
    found = section(contents_of(without, penalized), "update")
    (panel,) = (p for p in found["panels"] if p["title"] == "KL to the reference")
    assert [line["series"] for line in panel["lines"]] == [[1]]
    assert found["absent"] == ""


def test_stages_that_never_ran_have_no_share_of_time(tmp_path):
    contents = contents_of(fake_runs.write_run(tmp_path / "a", iterations=8))
    panels = {p["title"]: p for p in section(contents, "timing")["panels"]}
    lines = panels["Share of time by stage"]["lines"]
    assert [line["label"] for line in lines] == ["rollout", "update", "evaluation"]


@pytest.mark.parametrize(("iterations", "is_judged"), [(5, False), (6, True)])
def test_success_is_judged_where_there_are_two_means(tmp_path, iterations, is_judged):
    contents = contents_of(fake_runs.write_run(tmp_path / "a", iterations=iterations))
    (alarm,) = contents["alarms"]
    assert (alarm["fell"], alarm["is_judged"]) == (None, is_judged)


def test_a_run_before_its_first_iteration_has_its_game(tmp_path):
    run = fake_runs.write_run(tmp_path / "a", iterations=3)
    change_records(run, lambda record: None if record["iteration"] else record)
    contents = contents_of(run)
    assert contents["games"] == ["Sokoban"]
    (row,) = contents["summary"]
    assert (row["source"], row["last"]["at"], row["last"]["runs"]) == ("held-out", 0, 1)


def test_regimes_start_where_those_of_training_do():
    """Not from information at 0 or below, nor from entropy without information."""
    entropy = fake_runs.FIRST_TURN + "conditional_entropy_est"
    information = fake_runs.FIRST_TURN + "mi_estimate"

    def borders(*pairs):
        runs = [
            RunData(
                str(i), None, {"i": i}, [{"iteration": 1, entropy: h, information: x}]
            )
            for i, (h, x) in enumerate(pairs)
        ]
        return regime_borders(make_series(runs))

    assert borders((3.2, -0.06)) is None
    assert borders((3.2, None)) is None
    assert borders((3.2, -0.06), (0.5, 1.4)) == {"x": 0.25, "y": 0.7}


def test_any_metric_has_its_unit_and_meaning(tmp_path):
    declared = contents_of(fake_runs.write_run(tmp_path / "a", iterations=2))[
        "declared"
    ]
    assert declared["train/Sokoban/success"]["kind"] == "share"
    assert declared["timing_s/rollout"]["kind"] == "seconds"
    assert declared["actor/entropy"]["text"].startswith("mean entropy of the sampled")
