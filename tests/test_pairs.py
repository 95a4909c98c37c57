"""Two processes are one run: equal, resumable, ended together."""

import json
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from ragen_jax.devices.heartbeat import EXIT_STATUS
from ragen_jax.evaluation.load import open_trained
from ragen_jax.program.build import POCKET
from ragen_jax.runs.reader import read_metrics, read_recorded
from tests import commands
from tests.pairs import END_SECONDS, Pair, free_port, kill, run_pair, wait_for

# The game that is traced and compiled soonest, as every process of every start does.
GAME = "bandit"
SETTINGS = {
    "rollout__num_groups": 4,
    "learner__minibatch_rows": 8,
    "learner__microbatch_rows": 8,
    "mesh__data": 4,
    "evaluation__num_prompts": 8,
    "train__num_iterations": 4,
    "checkpoint__keep": 4,
    "logging__trajectories_per_iteration": 16,
}


@pytest.fixture(scope="module")
def model():
    """The pocket model, which plays: a random one has no rewards to learn from."""
    return POCKET


TWO_EACH = {"devices": (2, 2)}
# Interruptions do not depend on the number of devices, and these share two cores.
ONE_EACH = {"devices": (1, 1)}


def words(model, workdir, **changes):
    return commands.train_command(model, workdir, GAME, **SETTINGS | changes)


def code_block(language: str) -> str:
    page = (commands.ROOT / "docs/cluster.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[0]


@pytest.fixture(scope="module")
def pair(model, tmp_path_factory):
    """Folder of a run of the job file's two pods, and what both printed."""
    import yaml

    job = yaml.safe_load(code_block("yaml"))["spec"]["replicatedJobs"][0]
    spec = job["template"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    variables = {v["name"]: v["value"] for v in container["env"]}
    assert int(variables["RAGEN_JAX_NUM_PROCESSES"]) == spec["completions"] == 2
    workdir = tmp_path_factory.mktemp("pair") / "run"
    run = words(model, workdir, logging__sinks=("tensorboard",))
    config, folder, *flags = run[3:]
    variables |= {
        "RAGEN_JAX_FIRST_HOST": "localhost",
        "CONFIG": config.removeprefix("--config="),
        "WORKDIR": folder.removeprefix("--workdir="),
        "FLAGS": " ".join(flags),
        "PATH": f"{pathlib.Path(run[0]).parent}:/usr/bin:/bin",
    }
    pods = [
        subprocess.Popen(
            container["command"] + container["args"],
            cwd=commands.ROOT,
            env=commands.environment(devices=2)
            | variables
            | {"JOB_COMPLETION_INDEX": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(spec["completions"])
    ]
    outputs = [pod.communicate(timeout=600)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], outputs
    return workdir, outputs


def params(folder):
    trained = open_trained(folder, None, changes={}, overrides=(), defaults=None)
    return commands.leaves_of(trained.params)


def played(workdir):
    """What was played in all iterations, by what no rounding may change."""
    names = ("reply", "actions", "reward", "reply_tokens", "valid", "listed")
    return [
        (
            e["row"],
            e["success"],
            [[turn[name] for name in names] for turn in e["turns"]],
        )
        for path in sorted((workdir / "trajectories").glob("*.jsonl"))
        for e in map(json.loads, path.read_text().splitlines())
    ]


@pytest.mark.slow
def test_two_processes_do_what_one_does(pair, model, tmp_path):
    workdir, _ = pair
    alone = commands.run(words(model, tmp_path / "run"), devices=4)
    assert alone.returncode == 0, alone.stderr
    assert len(played(workdir)) == 16 * 4
    assert all(m["actor/advantage_std"] > 0 for m in read_metrics(workdir)[1:])
    assert played(workdir) == played(tmp_path / "run")
    for mine, theirs in zip(
        params(workdir / "checkpoints/1"),
        params(tmp_path / "run/checkpoints/1"),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_one_process_speaks_and_writes_for_both(pair):
    workdir, (first, second) = pair
    assert "2 processes (from kubernetes), 4 devices, 2 of them here" in first
    assert first.count("validation") == second.count("validation") + 4
    assert "sha256" not in second
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [0, 1, 2, 3, 4]
    assert len(list(workdir.glob("events.out.tfevents.*"))) == 1
    beats = [
        json.loads(p.read_text()) for p in sorted(workdir.glob("processes/*.json"))
    ]
    assert [beat["number"] for beat in beats] == [0, 1]
    assert {beat["state"] for beat in beats} == {"finished"}


@pytest.mark.slow
def test_a_checkpoint_opens_on_one_process_and_on_two(pair, model, tmp_path):
    """The run of two goes on alone, and the rest of that goes on in two."""
    workdir, _ = pair
    commands.copy(workdir, tmp_path / "run")
    alone = words(model, tmp_path / "run", train__num_iterations=5, mesh__data=1)
    alone = commands.call(alone)
    assert alone.returncode == 0, alone.stderr
    assert "after iteration 4 of 5" in alone.stdout
    more = words(model, tmp_path / "run", train__num_iterations=6, mesh__data=2)
    first, second = run_pair(more, **ONE_EACH)
    assert first.returncode == second.returncode == 0, first.stdout
    assert "after iteration 5 of 6" in first.stdout
    assert commands.record_of(tmp_path / "run")["metrics"][-1]["iteration"] == 6


def untested(model, workdir, **changes):
    """A longer run without evaluations, to be interrupted; see `ONE_EACH`."""
    settings = SETTINGS | {
        "mesh__data": 2,
        "evaluation__every": None,
        "train__num_iterations": 12,
    }
    del settings["evaluation__num_prompts"]
    return commands.train_command(model, workdir, GAME, **settings | changes)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """A run that is not interrupted, and results of a second start during the first."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    run = untested(model, workdir)
    started_at = time.time()
    with Pair(run, **ONE_EACH) as first:
        wait_for(lambda: _have_come(workdir, started_at))
        refused = run_pair(run, **ONE_EACH)
        results = first.finish()
    assert [r.returncode for r in results] == [0, 0], results
    assert "2 processes (from --distributed), 2 devices" in results[0].stdout
    return workdir, refused


@pytest.fixture(scope="module")
def uninterrupted(whole):
    return whole[0]


@pytest.mark.slow
def test_a_second_start_is_refused_and_the_first_goes_on(whole):
    for result in whole[1]:
        assert result.returncode == 2, result.stdout
        assert "error: another start of this run is at work in" in result.stdout


def same_run(workdir, other):
    mine, theirs = (read_recorded(folder).result for folder in (workdir, other))
    assert mine == theirs
    assert mine["params_sha256"]
    assert commands.record_of(workdir) == commands.record_of(other)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_either_is_killed_at_random_instants(uninterrupted, model, tmp_path):
    draw, workdir = random.Random(0), tmp_path / "run"
    for attempt in range(3):
        started_at = time.time()
        with Pair(untested(model, workdir), **ONE_EACH) as pair:
            # The child of the first process, the parent of the second, and nobody.
            if attempt < 2:
                victim = attempt
                # One that never came would be waited for. From then on: before the
                # first iteration, or after some more of them.
                wait_for(lambda t=started_at: _have_come(workdir, t))
                _wait_for_progress(workdir, pair, draw.randrange(3))
                time.sleep(draw.uniform(0, 1))
                target = pair.child(victim) if victim == 0 else None
                is_child = target is not None
                kill(target if is_child else pair.processes[victim].pid)
                killed_at = time.monotonic()
                survivor = pair.processes[1 - victim]
                output, _ = survivor.communicate(timeout=END_SECONDS)
                assert time.monotonic() - killed_at < END_SECONDS
                assert survivor.returncode == EXIT_STATUS, output
                assert re.search(rf"(?m)^error: .*process {victim} \(", output), output
                own, _ = pair.processes[victim].communicate(timeout=END_SECONDS)
                if is_child:
                    assert "was ended by SIGKILL" in own
                    assert "was ended by SIGKILL" in output
            else:
                results = pair.finish()
                assert [r.returncode for r in results] == [0, 0], results
    same_run(workdir, uninterrupted)


def _have_come(workdir, started_at):
    """Whether both processes have sent a heartbeat since."""
    files = [workdir / "processes" / f"{number}.json" for number in range(2)]
    return all(f.exists() and f.stat().st_mtime > started_at for f in files)


def _wait_for_progress(workdir, pair, iterations):
    """Wait for so many more iterations, at most until the run is almost over."""

    def done():
        path = workdir / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def is_reached():
        assert pair.processes[0].poll() is None or done() >= 11
        return done() >= min(before + iterations, 11)

    before = done()
    wait_for(is_reached)


@pytest.mark.parametrize(
    "what", ["configuration", pytest.param("code", marks=pytest.mark.slow)]
)
def test_processes_that_differ_are_refused(model, tmp_path, what):
    options = {"others": ["--config.loss.clip_high=0.25"]}
    named = "configuration key loss.clip_high"
    if what == "code":
        for package in ("ragen_jax", "envs", "configs", "launch"):
            shutil.copytree(commands.ROOT / package, tmp_path / "code" / package)
        with (tmp_path / "code/ragen_jax/rngs.py").open("a") as file:
            file.write("# Another line.\n")
        options, named = {"cwd": tmp_path / "code"}, "code"
    with Pair(words(model, tmp_path / "run"), **options) as pair:
        results = pair.finish()
    for result in results:
        assert result.returncode == 2, result.stdout
        assert f"error: process 1 has another {named} than process 0" in result.stdout
    assert not (tmp_path / "run/config.json").exists()


@pytest.mark.slow
def test_processes_with_other_numbers_of_devices_are_refused(model, tmp_path):
    with Pair(words(model, tmp_path / "run"), devices=(4, 2)) as pair:
        results = pair.finish()
    for result in results:
        assert result.returncode == 2, result.stdout
        assert "error: process 1 has 2 devices, process 0 has 4" in result.stdout


@pytest.mark.slow
def test_games_in_python_are_stepped_where_their_rows_are(model, tmp_path):
    """On four devices of one process and of two."""
    changes = {
        "rollout__num_groups": 8,
        "rollout__group_size": 2,
        "learner__minibatch_rows": 8,
        "learner__microbatch_rows": 8,
        "host__num_workers": 1,
        "host__num_widths": 2,
        "train__num_iterations": 1,
        "evaluation__every": None,
        "logging__trajectories_per_iteration": 16,
        "mesh__data": 4,
    }
    alone = commands.train_command(model, tmp_path / "alone", "world", **changes)
    alone = commands.run(alone, devices=4)
    assert alone.returncode == 0, alone.stderr
    two = commands.train_command(model, tmp_path / "two", "world", **changes)
    results = run_pair(two, **TWO_EACH)
    assert [r.returncode for r in results] == [0, 0], results[0].stdout
    assert len(played(tmp_path / "two")) == 16
    assert played(tmp_path / "two") == played(tmp_path / "alone")


# An `srun` of two hosts that are this machine, and an `scontrol` that says what it got.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_TASKS=2
SLURM_PROCID=0 "$@" & first=$!
SLURM_PROCID=1 "$@" & second=$!
trap 'kill -TERM $first $second' TERM
status=0
for process in $first $second; do
  code=0
  wait $process || { code=$?; wait $process || code=$?; }
  (( code > status )) && status=$code
done
exit $status
"""


@pytest.mark.slow
def test_sigterm_to_all_saves_once_and_to_one_stops_both(
    uninterrupted, model, tmp_path
):
    """All get it from the job file for Slurm, which starts the first and last part."""
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("srun", SRUN),
        ("scontrol", '#!/bin/bash\necho "scontrol $*"\n'),
    ):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(code_block("bash"))
    run = untested(model, tmp_path / "run", checkpoint__every=50)
    config, workdir, *flags = run[3:]
    python = pathlib.Path(run[0]).parent
    environment = commands.environment(devices=1) | {
        "PATH": f"{tmp_path / 'bin'}:{python}:/usr/bin:/bin",
        "CONFIG": config.removeprefix("--config="),
        "WORKDIR": workdir.removeprefix("--workdir="),
        "FLAGS": " ".join(flags),
        "SLURM_JOB_ID": str(free_port()),
    }

    def start():
        return subprocess.Popen(
            ["bash", tmp_path / "job.sh"],
            cwd=commands.ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    # Out of time: the processes get SIGTERM, and the job is put in the queue again.
    workdir = tmp_path / "run"
    job = start()
    metrics = workdir / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2)
    (srun,) = _children(job.pid)
    for process in _children(srun):
        (child,) = _children(process)
        for pid in (process, child):
            subprocess.run(["kill", "-TERM", str(pid)], check=True)
    output, _ = job.communicate(timeout=300)
    assert job.returncode == 143, output
    assert f"scontrol requeue {environment['SLURM_JOB_ID']}" in output
    assert "2 processes (from slurm), 2 devices" in output
    (checkpoint,) = _checkpoints_after_stop(workdir, output)
    with Pair(run, **ONE_EACH) as pair:
        _wait_for_progress(workdir, pair, 2)
        pair.processes[1].send_signal(signal.SIGTERM)
        results = pair.finish()
    assert [r.returncode for r in results] == [143, 143], results
    assert len(_checkpoints_after_stop(workdir, results[0].stdout) - {checkpoint}) == 1
    # Started again it resumes and ends.
    job = start()
    output, _ = job.communicate(timeout=300)
    assert job.returncode == 0, output
    assert "resuming" in output
    assert "scontrol" not in output
    same_run(workdir, uninterrupted)


def _checkpoints_after_stop(workdir, output) -> set[str]:
    """Names of the checkpoints, the one among them of which the output speaks once."""
    assert output.count("all saved; the same command resumes") == 1
    (stopped,) = re.findall(r"stopped after (\d+) of 12", output)
    checkpoints = {p.name for p in (workdir / "checkpoints").iterdir()}
    assert stopped in checkpoints
    return checkpoints


def _children(pid: int) -> list[int]:
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return list(map(int, path.read_text().split()))
