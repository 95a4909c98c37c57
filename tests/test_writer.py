"""The record of a run: appended, cut back, drawn anew, locked."""

import json
import os

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from ragen_jax import writer


def episode(iteration):
    turn = {"observation": "P_O\n", "reply": "x"}
    turn |= {"reward": 1.0, "penalty": 0.0, "bonus": 0.5}
    return {"turns": [turn], "return": float(iteration), "success": True}


def write(workdir, iterations, *, after=-1):
    record = writer.RunWriter(workdir, after=after, tensorboard=True)
    for i in iterations:
        record.scalars(i, {"a": np.float32(0.1) * i, "timing_s/x": 1.0})
        record.episodes(i, [episode(i)])
    record.sync()
    record.close()


def events(workdir):
    """(tag, step, value) of every scalar, read from the record format itself."""
    (path,) = workdir.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        found += [
            (v.tag, event.step, v.simple_value)
            for v in event.summary.value
            if v.HasField("simple_value")
        ]
        data = data[16 + length :]
    return found


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
    strip = lambda records: [{k: r[k] for k in ("iteration", "a")} for r in records]  # noqa: E731
    assert strip(writer.read_metrics(resumed)) == strip(writer.read_metrics(whole))
    names = lambda folder: sorted(os.listdir(folder / "trajectories"))  # noqa: E731
    assert (
        names(resumed) == names(whole) == [f"iteration_{i:06d}.jsonl" for i in range(6)]
    )
    assert events(resumed) == events(whole)


def test_a_torn_last_line_is_not_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0}\n{"iteration": 1')
    assert writer.read_metrics(tmp_path) == [{"iteration": 0}]


def test_non_finite_metrics_become_null(tmp_path):
    record = writer.RunWriter(tmp_path, after=-1, tensorboard=True)
    record.scalars(0, {"a": float("nan"), "b": float("inf"), "c": 1.0})
    record.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["a"], line["b"], line["c"]) == (None, None, 1.0)
    assert [tag for tag, _, _ in events(tmp_path)] == ["c"]


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
    writer.RunWriter(tmp_path, after=1, tensorboard=False).close()
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
    record = writer.RunWriter(tmp_path, after=-1, tensorboard=False)
    record.scalars(0, {"a": 1.0})
    record.close()
    assert not (tmp_path / "trajectories").exists()
