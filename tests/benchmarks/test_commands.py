"""The commands that are meant for a GPU: tiny, unattended, checked by themselves."""

import json
import sys

import jax
import pytest

from benchmarks import runs
from tests import commands

pytestmark = pytest.mark.slow

# Words of the command -> lines and stages that must be there.
CASES = {
    ("attention",): {"seconds": {"blocks", "xla"}},
    ("update",): {"seconds": {"ours"}},
    ("shared_prompts",): {
        name: {"once per row", "once per group"} for name in ("seconds", "compile_s")
    },
    (
        "iteration",
        "--presets=qwen2.5-0.5b,grpo",
        "--reply_tokens=6",
        "--kept=0.25",
        "--profile",
    ): {
        "seconds": {
            f"{stage}, 25% kept" for stage in ("rollout", "update", "host", "iteration")
        },
        "compile_s": {"rollout", "update, 25% kept"},
        "profile": {"rollout", "update"},
    },
}


@pytest.mark.parametrize("words", CASES, ids=lambda words: words[0])
def test_a_tiny_run(words, tmp_path):
    module, *flags = words
    line = [sys.executable, "-m", f"benchmarks.{module}", "--tiny", "--repeats=2"]
    done = commands.run([*line, *flags, f"--json={tmp_path / 'figures.json'}"])
    assert done.returncode == 0, done.stderr + done.stdout
    assert "| min s | median s |" in done.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["problems"] == []
    assert {"jax", "device", "python"} <= set(figures["versions"])
    for name, keys in CASES[words].items():
        assert set(figures[name]) == keys
    assert all(len(values) == 2 for values in figures["seconds"].values())
    if module == "iteration":
        # Every reply of every turn has all of its tokens.
        assert figures["sampled_tokens"] == [8 * 2 * 6] * 2


def test_kernels_and_rollouts_against_their_twins(tmp_path, monkeypatch):
    few = {"rollout.num_groups": 2, "rollout.group_size": 2, "rollout.max_turns": 2}
    config = runs.task_config("pocket,grpo", few)
    monkeypatch.setattr(runs, "task_config", lambda *_: config)
    shape = ["--rows=2", "--slots=70", "--turns=2"]
    line = [sys.executable, "-m", "benchmarks.gpu_parity", *shape]
    # As in a process of its own.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        done = commands.call(
            [*line, "--repeats=1", f"--json={tmp_path / 'figures.json'}"]
        )
    assert done.returncode == 0, done.stderr + done.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {one["kernel"] for one in figures["kernels"]} == {
        "attend_message",
        "attend_new_token",
        "project_normed",
    }
    assert all(one["is_equal"] for one in figures["kernels"])
    # Two equal rollouts here: that the comparison runs.
    assert [one["equal_episodes"] for one in figures["rollouts"]] == [1.0]


def test_a_peer_that_cannot_play_is_refused():
    line = [sys.executable, "-m", "benchmarks.iteration", "--peer=torch", "--tiny"]
    done = commands.call(line)
    assert done.returncode == 2
    assert "and leave out --tiny" in done.stderr
