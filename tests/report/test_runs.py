"""Reading run folders, grouping them into series, and everything that can be wrong."""

import json
import math

import pytest

from ragen_jax.report.contents import make_contents
from ragen_jax.report.page import make_page
from ragen_jax.report.runs import read_run, read_runs
from ragen_jax.report.series import (
    MAX_POINTS,
    curve,
    differing_settings,
    make_series,
    thin,
)
from tests.report import fake_runs

HELD_OUT = "val-env/Sokoban/success"


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    return read_runs(fake_runs.write_two_series(tmp_path_factory.mktemp("six")))


def test_runs_that_differ_in_the_seed_are_one_series(six):
    first, second = make_series(six)
    assert [run.seed for run in first.runs] == [0, 1, 2]
    assert first.name == "keep_fraction=1.0, clip_high=0.2"
    assert second.name == "keep_fraction=0.25, clip_high=0.28"
    assert differing_settings([first, second]) == {
        "filter.keep_fraction": [1.0, 0.25],
        "loss.clip_high": [0.2, 0.28],
    }


def test_names_may_be_given_one_per_series(six):
    assert [s.name for s in make_series(six, ["a", "b"])] == ["a", "b"]
    with pytest.raises(ValueError, match="3 names for 2 series"):
        make_series(six, ["a", "b", "c"])


def test_a_series_alone_is_named_by_its_folders(six):
    assert make_series(six[:3])[0].name == "vanilla"
    assert make_series(six[:1])[0].name == "vanilla-0"


def test_keys_keep_their_sections_where_they_would_be_confused(tmp_path):
    folders = [fake_runs.write_run(tmp_path / n, iterations=1) for n in "ab"]
    config = json.loads((folders[1] / "config.json").read_text())
    config["optimizer"]["learning_rate"] = 1.0
    config["critic"] = {"learning_rate": 2.0}
    (folders[1] / "config.json").write_text(json.dumps(config))
    names = [s.name for s in make_series(read_runs(folders))]
    assert names[1] == "optimizer.learning_rate=1.0, critic.learning_rate=2.0"


def test_curves_are_means_with_ends_and_errors(six):
    (series,) = make_series(six[:3])
    found = curve(series, HELD_OUT)
    values = [run.curve(HELD_OUT) for run in series.runs]
    assert found.at == list(range(0, 41, 5))
    for i, at in enumerate(found.at):
        own = sorted(v[at] for v in values)
        mean = sum(own) / 3
        spread = math.sqrt(sum((x - mean) ** 2 for x in own) / 2)
        assert found.mean[i] == pytest.approx(mean)
        assert (found.low[i], found.high[i]) == (own[0], own[2])
        assert found.error[i] == pytest.approx(spread / math.sqrt(3))
    assert found.num_runs == 3
    assert curve(series, "nothing/there") is None


def test_one_run_has_the_interval_of_its_success(six):
    (series,) = make_series(six[:1])
    found = curve(series, HELD_OUT)
    assert found.low == list(six[0].curve(f"{HELD_OUT}_low").values())
    plain = curve(series, "actor/entropy")
    assert plain.low == plain.mean == plain.high


def test_runs_of_different_length_share_what_they_have(tmp_path):
    folders = [
        fake_runs.write_run(tmp_path / f"{n}", seed=n, iterations=n, planned=4)
        for n in (2, 4)
    ]
    (series,) = make_series(read_runs(folders))
    found = curve(series, "actor/entropy")
    assert found.at == [1, 2, 3, 4]
    assert found.error[3] == 0
    assert found.mean[3] == series.runs[1].curve("actor/entropy")[4]


def test_lists_and_nulls_are_no_curves(six):
    names = six[0].metrics
    assert "rollout/in_group_reward_stds" not in names
    assert "actor/lr" not in names
    assert not {"iteration", "time"} & set(names)


def test_rates_are_tokens_per_second(six):
    record = six[0].records[2]
    sampled = record["perf/sampled_tokens_per_second"]
    assert sampled == pytest.approx(29.5 * 16 * 8 / record["timing_s/rollout"])
    trained = record["perf/trained_tokens_per_second"]
    tokens = record["actor/num_tokens"]
    assert trained == pytest.approx(tokens / record["timing_s/update"])


def test_iterations_that_compiled_have_no_throughput(tmp_path):
    folder = fake_runs.write_run(tmp_path / "run", iterations=3)
    run = read_run(folder, "run")
    for name in ("timing_s/rollout", "perf/sampled_tokens_per_second"):
        assert list(run.curve(name)) == [2, 3]
    assert list(run.curve("timing_s/testing")) == []  # iteration 0 compiled it
    # The update did not compile in iteration 1, but the iteration did.
    assert list(run.curve("timing_s/update")) == [1, 2, 3]
    assert list(run.curve("perf/time_share/update")) == [2, 3]
    assert run.curve("perf/compile_s/rollout") == {1: 20.0}


@pytest.mark.parametrize(("size", "count"), [(3, 5), (9, 4), (1000, 7), (5, 1), (4, 2)])
def test_thinning_keeps_the_ends(size, count):
    kept = thin(range(size), count)
    assert len(kept) == min(size, count)
    assert kept == sorted(set(kept))
    assert kept[-1] == size - 1
    assert count == 1 or kept[0] == 0


def test_long_runs_are_thinned(tmp_path):
    run = read_run(fake_runs.write_run(tmp_path / "run", iterations=1), "run")
    records = [{"iteration": i, "actor/entropy": 1.0} for i in range(3 * MAX_POINTS)]
    (series,) = make_series([type(run)(run.name, run.folder, run.settings, records)])
    assert len(curve(series, "actor/entropy").at) == MAX_POINTS


def broken(folder, file, text):
    run = fake_runs.write_run(folder, iterations=1)
    (run / file).write_bytes(text.encode("utf-8", errors="surrogateescape"))
    return run


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("metrics.jsonl", "", "is empty"),
        ("metrics.jsonl", '{"iteration": 1', "is empty"),
        # What else may be wrong with a file is told by tests/runs/test_reader.py.
        ("config.json", "{", "is not valid JSON"),
    ],
)
def test_broken_files_are_one_sentence(tmp_path, file, text, said):
    with pytest.raises(ValueError, match=said):
        read_runs([broken(tmp_path / "run", file, text)])


def test_settings_of_any_value_make_a_report(tmp_path):
    """Of another program, or damaged: the report falls back on its defaults."""
    run = fake_runs.write_run(tmp_path / "run", iterations=7)
    config = json.loads((run / "config.json").read_text())
    config |= {"warning": {"success_window": "x", "success_low": None}, "seed": [1]}
    config["rollout"] = {"num_groups": [2], "group_size": "8"}
    config["env"]["mix"] = [["sokoban", 1, {"kwargs": {"num_boxes": 2}}]]
    config["recorded"] = {"machines": [{"from_iteration": 0, "cores": 2}]}
    (run / "config.json").write_text(json.dumps(config))
    found = read_runs([run])
    contents = make_contents(found, make_series(found), max_episodes=5)
    # The machine is not a setting: seeds made on two machines are one series.
    assert not any(key.startswith("recorded") for key in found[0].settings)
    assert "perf/sampled_tokens_per_second" not in found[0].records[2]
    make_page(contents)


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        read_runs([tmp_path / "missing"])
    with pytest.raises(ValueError, match=r"not a run folder: it has no config\.json"):
        read_runs([tmp_path])


def test_runs_of_different_games_are_refused(tmp_path):
    folders = [
        fake_runs.write_run(tmp_path / game, game=game, iterations=1)
        for game in ("Sokoban", "Bandit")
    ]
    with pytest.raises(ValueError, match=r"plays Bandit, .* plays Sokoban"):
        read_runs(folders)


def test_a_run_named_twice_is_refused(tmp_path):
    run = fake_runs.write_run(tmp_path / "run", iterations=1)
    with pytest.raises(ValueError, match="named twice"):
        read_runs([run, tmp_path / "." / "run"])


def test_folders_of_one_name_are_told_apart(tmp_path):
    folders = [
        fake_runs.write_run(tmp_path / p / "run", seed=i, iterations=1)
        for i, p in enumerate("ab")
    ]
    assert [run.name for run in read_runs(folders)] == ["a/run", "b/run"]
