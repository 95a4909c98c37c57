"""Whole runs on a mesh that splits both the rows and the network."""

import json

import numpy as np
import pytest

from tests import commands


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return commands.tiny_model(folder, num_key_value_heads=2)


def episodes(model, workdir, **mesh):
    """What is played in an iteration.

    In a process of its own on several devices: those that do not agree when to leave a
    loop wait for each other, and XLA ends the process.
    """
    changes = {"train__num_iterations": 1, "evaluation__every": None}
    words = commands.train_command(model, workdir, **changes, **mesh)
    done = commands.run(words, devices=8) if mesh else commands.call(words)
    assert done.returncode == 0, done.stderr
    return [
        json.loads(line)
        for path in sorted((workdir / "trajectories").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


@pytest.mark.slow
def test_rows_and_network_split_play_what_one_device_plays(model, tmp_path):
    """Rows of random replies end at different times on different devices."""
    alone = episodes(model, tmp_path / "alone")
    split = episodes(
        model, tmp_path / "split", mesh__data=2, mesh__fsdp=2, mesh__tensor=2
    )
    assert len(alone) == len(split) == 8
    lengths = [turn["reply_tokens"] for e in alone for turn in e["turns"]]
    assert len(set(lengths)) > 1
    for one, other in zip(alone, split, strict=True):
        for mine, theirs in zip(one["turns"], other["turns"], strict=True):
            for key in ("board", "reply", "actions"):
                assert mine[key] == theirs[key]
            np.testing.assert_allclose(mine["log_prob"], theirs["log_prob"], atol=1e-3)
