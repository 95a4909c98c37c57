"""Kill a run at any instant: resumed, it is bitwise the uninterrupted one."""

import functools
import os
import re
import signal
import time

import numpy as np
import pytest

from ragen_jax.program.build import POCKET
from ragen_jax.runs.reader import read_metrics
from tests import commands


@pytest.fixture(scope="module")
def model():
    """The pocket model, which plays: a random one has no rewards to learn from."""
    return POCKET


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, model):
    """Makes the run of a compilation once: `(optimized) -> folder, output`."""

    @functools.cache
    def make(optimized: bool):
        workdir = tmp_path_factory.mktemp("whole") / "run"
        words = train_command(model, workdir)
        # As the runs that it is compared with: this process has other flags.
        done = commands.run(words, optimized=optimized)
        assert done.returncode == 0, done.stderr
        assert all(m["actor/advantage_std"] > 0 for m in read_metrics(workdir)[1:])
        return workdir, done.stdout

    return make


def train_command(model, workdir, **changes) -> list[str]:
    """With a critic: the state is the largest there is. Rollouts in two parts.

    The game is the one that is traced and compiled soonest, as every start does.
    """
    changes = {"algo__advantage": "gae", "rollout__part_rows": 4} | changes
    return commands.train_command(model, workdir, "bandit", **changes)


def count_lines(path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def digest(output: str) -> str:
    (line,) = [line for line in output.splitlines() if "sha256" in line]
    return line.split("sha256 ")[1].split()[0]


# Compiled as for users, whose bits these are, in the slow test.
@pytest.mark.parametrize(
    "optimized", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_run_is_reproduced_to_the_bit_on_one_core(uninterrupted, tmp_path, optimized):
    workdir, output = uninterrupted(optimized=optimized)
    one_core = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    where = f"--workdir={tmp_path / 'run'}"
    reproduce = commands.command("train", f"--reproduce={workdir}", where)
    alone = commands.run([*one_core, *reproduce], optimized=optimized)
    assert alone.returncode == 0, alone.stderr
    assert f"params sha256 {digest(output)}\n" in alone.stdout
    assert alone.stdout.splitlines()[-1].startswith("reproduced: ")
    assert commands.record_of(tmp_path / "run") == commands.record_of(workdir)


def test_stopped_by_sigterm_then_killed_inside_a_save(uninterrupted, tmp_path, model):
    workdir, output = uninterrupted(optimized=False)
    words = train_command(model, tmp_path / "run", checkpoint__every=100)
    process = commands.start(words)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while count_lines(metrics) < 3:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    stopped, _ = process.communicate(timeout=120)
    assert process.returncode == 143
    assert re.search(r"stopped after \d of 5 iterations, all saved", stopped)
    words = train_command(model, tmp_path / "run")
    process = commands.start(words)
    while not list(tmp_path.glob("run/checkpoints/*tmp*")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.001)
    process.kill()
    process.wait()
    resumed = commands.run(words)
    assert resumed.returncode == 0, resumed.stderr
    assert digest(resumed.stdout) == digest(output)
    assert commands.record_of(tmp_path / "run") == commands.record_of(workdir)


@pytest.mark.slow
def test_killed_at_random_instants(uninterrupted, tmp_path, model):
    """Kills while starting or compiling, and after some iterations."""
    workdir, output = uninterrupted(optimized=False)
    words = train_command(model, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    random = np.random.default_rng(0)
    for least_lines, most_seconds in ((0, 8), (1, 1), (3, 0.5)):
        process = commands.start(words)
        while process.poll() is None and count_lines(metrics) < least_lines:
            time.sleep(0.01)
        time.sleep(random.uniform(0, most_seconds))
        process.kill()
        process.communicate()
    final = commands.run(words)
    assert final.returncode == 0, final.stderr
    assert digest(final.stdout) == digest(output)
    assert commands.record_of(tmp_path / "run") == commands.record_of(workdir)


def test_changed_settings_are_refused_with_the_list(uninterrupted, model):
    workdir, _ = uninterrupted(optimized=False)
    before = commands.record_of(workdir)
    words = train_command(model, workdir, seed=5, rollout__temperature=0.7)
    refused = commands.call(words)
    assert refused.returncode == 2
    assert "seed: 0 -> 5" in refused.stderr
    assert "rollout.temperature: 1.0 -> 0.7" in refused.stderr
    assert commands.record_of(workdir) == before
