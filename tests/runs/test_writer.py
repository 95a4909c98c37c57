"""The record of a run: appended, cut back, drawn anew, locked."""

import concurrent.futures
import json
import os
import re

import numpy as np
import pytest
from tensorboardX.proto import event_pb2, layout_pb2, plugin_hparams_pb2

from ragen_jax.runs import boards, reader, writer
from ragen_jax.runs.metrics import DISTRIBUTIONS, METRICS
from ragen_jax.runs.sinks import tensorboard
from tests.report import fake_runs

SETTINGS = {"seed": 3, "kl.placement": None, "env.name": "sokoban", "env.mix": (1,)}
SPREADS = "rollout/in_group_reward_stds"


def episode(iteration):
    turn = {"observation": "P_O\n", "reply": "x", "board": ["P_O"]}
    turn |= {"reward": 1.0, "penalty": 0.0, "bonus": 0.5}
    legend = {"P": "you", "_": "floor", "O": "target"}
    record = {"turns": [turn], "return": float(iteration), "success": True}
    return record | {"legend": legend}


def write(workdir, iterations, *, after=-1):
    shown = {"settings": SETTINGS, "games": ["Sokoban"]}
    record = writer.RunWriter(workdir, after=after, sinks=["tensorboard"], **shown)
    for i in iterations:
        spreads = {SPREADS: [0.0, i / 3, float("nan")]}
        record.scalars(i, {"a": np.float32(0.1) * i, "timing_s/x": 1.0}, spreads)
        record.episodes(i, [episode(i)])
    record.sync()
    record.close()


def values(workdir):
    """(step, value) of everything shown, read from the record format itself."""
    (path,) = workdir.glob("events.out.tfevents.*")
    data, shown = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        shown += [(event.step, value) for value in event.summary.value]
        data = data[16 + length :]
    return shown


def events(workdir):
    """(tag, step, what is shown) of everything, in order."""
    return [(v.tag, i, v.SerializeToString()) for i, v in values(workdir)]


def test_resuming_leaves_what_an_uninterrupted_run_leaves(tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    for folder in (whole, resumed):
        folder.mkdir()
    write(whole, range(6))
    write(resumed, range(5))
    with (resumed / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "a"')  # killed in the middle of a line
    (resumed / "trajectories" / ".iteration_000005.jsonl.tmp").write_text("half")
    write(resumed, range(3, 6), after=2)
    strip = lambda records: [  # noqa: E731
        {k: r[k] for k in ("iteration", "a", SPREADS)} for r in records
    ]
    assert strip(reader.read_metrics(resumed)) == strip(reader.read_metrics(whole))
    names = lambda folder: sorted(os.listdir(folder / "trajectories"))  # noqa: E731
    assert (
        names(resumed) == names(whole) == [f"iteration_{i:06d}.jsonl" for i in range(6)]
    )
    # Resuming draws all scalars before the episodes.
    assert sorted(events(resumed)) == sorted(events(whole))
    assert reader.read_metrics(whole)[2][SPREADS] == [0.0, 0.66667]


def test_the_view_shows_numbers_pictures_settings_and_their_groups(tmp_path):
    write(tmp_path, range(2))
    shown = values(tmp_path)
    scalars = {
        (v.tag, i): v.simple_value for i, v in shown if v.HasField("simple_value")
    }
    assert scalars["a", 1] == pytest.approx(0.1)
    (histogram,) = (v.histo for i, v in shown if v.tag == SPREADS and i == 1)
    assert (histogram.num, histogram.max) == (2, pytest.approx(1 / 3, rel=1e-4))
    picture = next(v.image for _, v in shown if v.tag == "boards/0")
    assert (picture.width, picture.height) == (3 * boards.CELL, boards.CELL)
    assert picture.encoded_image_string.startswith(b"\x89PNG")
    # One run, not one more for the settings.
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["trajectories"]
    by_tag = {v.tag: v for _, v in shown}
    start = plugin_hparams_pb2.HParamsPluginData.FromString(
        by_tag["_hparams_/session_start_info"].metadata.plugin_data.content
    ).session_start_info.hparams
    assert start["seed"].number_value == 3
    assert start["kl.placement"].string_value == "None"
    assert start["env.mix"].string_value == "(1,)"
    groups = layout_pb2.Layout.FromString(
        by_tag["custom_scalars__config__"].tensor.string_val[0]
    ).category
    assert [group.title for group in groups] == [
        "Progress",
        "Information plane",
        "Collapse indicators",
        "Alarms",
        "Gradient buckets",
        "Update",
        "Throughput",
    ]
    margin = groups[0].chart[0].margin.series[0]
    assert margin.lower == "val-env/Sokoban/success_low"


def test_what_compiled_is_recorded_but_not_drawn(tmp_path):
    record = writer.RunWriter(tmp_path, after=-1, sinks=["tensorboard"])
    stage = {"timing_s/update": 90.0, "perf/compile_s/update": 80.0}
    record.scalars(1, stage | {"timing_s/rollout": 2.0})
    record.close()
    assert reader.read_metrics(tmp_path)[0]["timing_s/update"] == 90.0
    tags = [v.tag for _, v in values(tmp_path) if v.HasField("simple_value")]
    assert sorted(tags) == ["perf/compile_s/update", "timing_s/rollout"]


def test_success_is_what_one_sees_first(tmp_path):
    """TensorBoard's first tab opens the first of the groups, sorted by their codes."""
    games = ["Bandit", "Sokoban"]
    record = writer.RunWriter(tmp_path, after=-1, sinks=["tensorboard"], games=games)
    success = {"val-env/Sokoban/success": 0.5, "train/Bandit/success": 0.25}
    record.scalars(1, success | {"actor/lr": 1.0})
    record.close()
    shown = {v.tag: v.simple_value for _, v in values(tmp_path) if v.tag}
    assert shown["Success/held-out/Sokoban"] == shown["val-env/Sokoban/success"] == 0.5
    assert shown["Success/training/Bandit"] == 0.25
    own = [metric.name for metric in (*METRICS, *DISTRIBUTIONS)]
    assert all(tag < min(own) for tag in tensorboard.first_tags(games).values())


# Charts of metrics that the made-up run does not have.
_NOT_MADE_UP = (
    "optimal actions",
    "excess actions",
    "false statements in thoughts",
    "false predictions in thoughts",
    "Iteration",
    "Diagnostics",
    "Sampled tokens",
    "Trained tokens",
    "Share of time by stage",
)


def test_every_group_matches_metrics_that_are_recorded(tmp_path):
    """Tags are regular expressions; the made-up run has a metric for nearly each."""
    run = fake_runs.write_run(tmp_path / "run", iterations=2)
    names = {name for record in reader.read_metrics(run) for name in record}
    for group, charts in tensorboard.layout(["Sokoban"]).items():
        for title, (_, tags) in charts.items():
            if group != "Update" and title not in _NOT_MADE_UP:
                is_recorded = any(re.search(t, name) for t in tags for name in names)
                assert is_recorded, (group, title)


def test_a_torn_last_line_is_not_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0}\n{"iteration": 1')
    assert reader.read_metrics(tmp_path) == [{"iteration": 0}]


def test_non_finite_metrics_become_null(tmp_path):
    record = writer.RunWriter(tmp_path, after=-1, sinks=["tensorboard"])
    record.scalars(0, {"a": float("nan"), "b": float("inf"), "c": 1.0})
    record.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["a"], line["b"], line["c"]) == (None, None, 1.0)
    tags = [v.tag for _, v in values(tmp_path) if v.HasField("simple_value")]
    assert tags == ["c"]


def test_non_finite_numbers_of_episodes_become_null_and_are_drawn_again(tmp_path):
    overflowing = episode(0) | {"return": float("-inf")}
    overflowing["turns"][0] |= {"reward": np.inf, "token_log_probs": [-1.0, np.nan]}
    record = writer.RunWriter(tmp_path, after=-1, sinks=["tensorboard"])
    record.scalars(0, {"a": 1.0})
    record.episodes(0, [overflowing])
    record.close()
    path = tmp_path / "trajectories" / "iteration_000000.jsonl"
    written = json.loads(path.read_text())
    assert written["return"] is None
    assert written["turns"][0]["reward"] is None
    assert written["turns"][0]["token_log_probs"] == [-1.0, None]
    writer.RunWriter(tmp_path, after=0, sinks=["tensorboard"]).close()
    assert any(v.tag == "episodes/0/text_summary" for _, v in values(tmp_path))


def test_names_of_non_finite_numbers_are_returned(tmp_path):
    record = writer.RunWriter(tmp_path, after=-1)
    largest = float(np.finfo(np.float64).max)  # infinite once it is rounded
    spreads = {"c": [1.0, largest], "d": [2.0]}
    metrics = {"a": np.float32("inf"), "b": 1.0}
    assert record.scalars(0, metrics, spreads) == ["a", "c"]
    record.close()
    (line,) = reader.read_metrics(tmp_path)
    assert (line["a"], line["c"], line["d"]) == (None, [1.0], [2.0])


def test_two_writers_of_one_file_leave_a_whole_one(tmp_path):
    path, texts = tmp_path / "x.json", ["a" * 100_000, "b" * 100_000]

    def write(text):
        for _ in range(30):
            writer.write_text_atomically(path, text)
            assert path.read_text() in texts

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(write, texts))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        writer.write_text_atomically(tmp_path / "x.json", "\ud800")
    assert not list(tmp_path.iterdir())


def test_a_second_process_is_refused(tmp_path):
    lock = writer.open_workdir(tmp_path / "run")
    with pytest.raises(ValueError, match="another process"):
        writer.open_workdir(tmp_path / "run")
    os.close(lock)
    os.close(writer.open_workdir(tmp_path / "run"))


def test_an_unwritable_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write to the run folder"):
        writer.open_workdir(tmp_path / "file" / "run")


def test_resuming_without_tensorboard_leaves_no_events_of_later_iterations(tmp_path):
    write(tmp_path, range(4))
    writer.RunWriter(tmp_path, after=1).close()
    assert not list(tmp_path.glob("events.out.tfevents.*"))


def test_only_files_of_our_own_naming_are_deleted(tmp_path):
    write(tmp_path, range(3))
    foreign = ["notes.txt", "iteration_best.jsonl", ".iteration_notes", "iteration_1"]
    for name in foreign:
        (tmp_path / "trajectories" / name).write_text("mine")
    write(tmp_path, [], after=1)
    ours = ["iteration_000000.jsonl", "iteration_000001.jsonl"]
    assert sorted(os.listdir(tmp_path / "trajectories")) == sorted(foreign + ours)


def test_no_folder_for_episodes_that_are_never_written(tmp_path):
    record = writer.RunWriter(tmp_path, after=-1)
    record.scalars(0, {"a": 1.0})
    record.close()
    assert not (tmp_path / "trajectories").exists()
