"""The table of learning curves: what it reads, and what it refuses."""

import json

import pytest

from benchmarks import learning


def record(iteration, **metrics):
    keys = {"timing_s/rollout": 1.0, "timing_s/update": 2.0, "train/Walk/success": 0.5}
    return {"iteration": iteration, "time": 0.0, **keys, **metrics}


def make_run(workdir, records):
    (workdir / "config.json").write_text('{"seed": 3}')
    lines = (json.dumps(r) + "\n" for r in records)
    (workdir / "metrics.jsonl").write_text("".join(lines))
    return workdir


def test_a_run_that_was_evaluated(tmp_path):
    names = ("success", "success_low", "success_high", "ceiling")
    values = {f"val-env/Walk/{name}": 0.25 for name in names}
    before = {"iteration": 0, "time": 0.0, **values}
    run = learning.read(make_run(tmp_path, [before, record(1), record(2, **values)]))
    assert (run["at"], run["train_at"]) == ([0, 2], [1, 2])
    assert run["seconds"] == 3.0
    assert "| Walk | 3 | 2 | 3.0 | 25.0% | 25.0%" in learning.table([run])


def test_a_run_without_evaluations_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"2 iterations and 0 evaluations"):
        learning.read(make_run(tmp_path, [record(1), record(2)]))
    with pytest.raises(ValueError, match=r"0 iterations and 0 evaluations"):
        learning.read(tmp_path / "nowhere")
