"""The command: interrupted at any instant it goes on; bad words are one sentence."""

import signal
import time

import pytest

from ragen_jax.runs import reader
from tests import commands

SEEDS = (0, 1)


def sweep_command(model, workdir, *words, **changes) -> list[str]:
    """Two seeds of a short run, whose checkpoints hold every iteration."""
    changes = {"evaluation__every": None, "train__num_iterations": 4} | changes
    keys = commands.train_command(model, workdir, "bandit", **changes)
    start = keys.index("launch.train")
    seeds = f"--seeds={SEEDS[0]}:{SEEDS[-1] + 1}"
    return [*keys[:start], "launch.sweep", *keys[start + 1 :], seeds, *words]


def wait_for_lines(process, path, count: int) -> None:
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)


def test_stopped_by_sigterm_then_killed_a_sweep_goes_on(model, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = commands.call(sweep_command(model, whole))
    assert done.returncode == 0, done.stderr
    assert "run 2/2: seed 1: Bandit training success " in done.stdout

    words = sweep_command(model, cut)
    process = commands.start(words)
    wait_for_lines(process, cut / "seed-0" / "metrics.jsonl", 1)
    process.send_signal(signal.SIGTERM)
    stopped, _ = process.communicate(timeout=120)
    assert process.returncode == 143, stopped
    assert "run the same command again to continue the sweep" in stopped
    assert not (cut / "sweep.md").exists()
    first = reader.read_metrics(cut / "seed-0")[-1]["iteration"]
    assert (cut / "seed-0" / "checkpoints" / str(first)).is_dir()

    process = commands.start(words)
    wait_for_lines(process, cut / "seed-1" / "metrics.jsonl", 1)
    process.kill()
    process.wait()
    done = commands.call(words)
    assert done.returncode == 0, done.stderr
    for seed in SEEDS:
        folders = [folder / f"seed-{seed}" for folder in (whole, cut)]
        records = [commands.record_of(folder) for folder in folders]
        assert records[0] == records[1]
        results = [reader.read_recorded(folder).result for folder in folders]
        assert results[0] == results[1]
        assert results[0]["iteration"] == 4
    rows = [
        (folder / "sweep.md").read_text().split("|")[:-2] for folder in (whole, cut)
    ]
    assert rows[0] == rows[1]
    assert "<html" in (cut / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds=x"], "'x' is neither a seed nor a range"),
        (["--set", "algo.lam=0.9", "--config.algo.lam=1"], "set the same key"),
        (["--config.seed=3"], "--config.seed sets a single seed"),
        (["--set=optimizer.learning_rate=1e-4,-1"], "learning_rate=-1"),
        (["--set", "optimizer.learning_rat=1"], "Did you mean"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_status_2(words, message, tmp_path):
    workdir = tmp_path / "sweep"
    start = "--config=configs/sokoban.py", f"--workdir={workdir}"
    assert message in commands.refusal("sweep", *start, *words)
    assert not workdir.exists()
