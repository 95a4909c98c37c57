"""Runs the real commands on a tiny random model, as a user would."""

import contextlib
import gc
import importlib.util
import io
import json
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
from unittest import mock

import jax
import numpy as np
import pytest
from absl import app, flags
from ml_collections import ConfigDict

from ragen_jax.models.families import read_config
from ragen_jax.models.hf.digests import DIGESTS_FILE
from ragen_jax.models.hf.weights import Texts, save_checkpoint
from ragen_jax.models.policy import build_policy
from ragen_jax.program.build import POCKET, Program
from ragen_jax.runs.run import Run
from tests import FAST_XLA_FLAGS

ROOT = pathlib.Path(__file__).parents[1]

# Without a critic, which would double what every process compiles.
TINY = {
    "algo.advantage": "grpo",
    "rollout.num_groups": 2,
    "rollout.group_size": 4,
    "rollout.max_turns": 2,
    "rollout.max_reply_tokens": 8,
    "rollout.decode_chunk_tokens": 4,
    "learner.minibatch_rows": 4,
    "learner.microbatch_rows": 4,
    "filter.keep_fraction": 1.0,
    "train.num_iterations": 5,
    "evaluation.every": 2,
    "evaluation.num_prompts": 4,
    "diagnostics.every": None,
    "checkpoint.every": 1,
    # No test but those of the sinks reads their files.
    "logging.sinks": (),
}
# The same without evaluations, which are a program of their own.
UNTESTED = {
    key: value for key, value in TINY.items() if not key.startswith("evaluation.")
} | {"evaluation.every": None}
# Of metrics that are durations; they differ between equal runs.
TIMING_PREFIXES = ("timing_s/", "perf/", "time")
# What a command sets for the rest of its process.
CACHE_OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
)


def tiny_model(folder: pathlib.Path, **changes) -> pathlib.Path:
    """A random two-layer model under the pocket model's tokenizer."""
    pocket = json.loads((POCKET / "config.json").read_text())
    shape = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    } | changes
    config = read_config(pocket | shape)
    params = build_policy(config, dtype="float32").init(jax.random.key(7))
    save_checkpoint(folder, config, params, Texts(POCKET))
    return folder


def dotted(changes: dict) -> dict:
    """Changes whose keys have `__` for the dot, by dotted key."""
    return {key.replace("__", "."): value for key, value in changes.items()}


def tiny_config(task, model=None, *, presets=None, **changes) -> ConfigDict:
    """A task's configuration with `TINY` and these changes, see `dotted`."""
    config = task.get_config(presets) if presets else task.get_config()
    paths = {} if model is None else {"model.path": str(model)}
    with config.ignore_type():
        config.update_from_flattened_dict(TINY | paths | dotted(changes))
    return config


def open_run(config, workdir: pathlib.Path, program: Program) -> Run:
    return Run(config, workdir, program.state, program.identity, program.names)


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"launch.{module}", *arguments]


def train_command(model, workdir, task="sokoban", **changes) -> list[str]:
    """Training command line; see `dotted` for `changes`."""
    changes = dotted(changes)
    is_tested = changes.get("evaluation.every", True) is not None
    keys = (TINY if is_tested else UNTESTED) | changes
    return command(
        "train",
        f"--config=configs/{task}.py",
        f"--workdir={workdir}",
        f"--config.model.path={model}",
        *(f"--config.{key}={value}" for key, value in keys.items()),
    )


def environment(devices: int = 1, optimized: bool = False) -> dict[str, str]:
    """So many CPU devices; the rest as the tests have it (see `conftest.py`).

    Args:
      devices: number of CPU devices.
      optimized: compile as for users, for programs that compute longer than they
        compile.
    """
    devices_flag = f"--xla_force_host_platform_device_count={devices}"
    if optimized:
        options = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": devices_flag}
    else:
        options = {"XLA_FLAGS": f"{devices_flag} {FAST_XLA_FLAGS}"}
    return os.environ | options


def run(
    words, timeout=300, typed="", devices=1, optimized=False
) -> subprocess.CompletedProcess:
    return subprocess.run(
        words,
        input=typed,
        cwd=ROOT,
        env=environment(devices, optimized),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def call(words, typed="") -> subprocess.CompletedProcess:
    """The same without a process of its own: nothing is imported or compiled again."""
    python, option, module, *arguments = words
    assert (python, option) == (sys.executable, "-m")
    app.define_help_flags()
    # Modules that tests import define flags of the same names.
    others = [
        (flags.FLAGS.find_module_defining_flag(name), flags.FLAGS[name])
        for name in flags.FLAGS
        if _is_ours(name)
    ]
    for _, flag in others:
        delattr(flags.FLAGS, flag.name)
    known, options = set(flags.FLAGS), jax.config.values.copy()
    stdout, stderr = io.StringIO(), io.StringIO()
    status = None
    try:
        with (
            mock.patch.object(sys, "argv", [module, *arguments]),
            mock.patch.object(sys, "stdin", io.StringIO(typed)),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
            contextlib.chdir(ROOT),
        ):
            runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    finally:
        for name in set(flags.FLAGS) - known:
            delattr(flags.FLAGS, name)
        for owner, flag in others:
            flags.FLAGS[flag.name] = flag
            flags.FLAGS.register_flag_by_module(owner, flag)
        flags.FLAGS.unparse_flags()
        for name in CACHE_OPTIONS:
            jax.config.update(name, options[name])
        gc.unfreeze()
    assert status is not None, f"{module} ended without a status"
    return subprocess.CompletedProcess(
        words, status, stdout.getvalue(), stderr.getvalue()
    )


def refusal(module: str, *words: str) -> str:
    """The one sentence with which a command refuses its words."""
    done = call(command(module, *words))
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    (error,) = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    return error


def _is_ours(flag: str) -> bool:
    """True for a flag of a command or a benchmark."""
    module = flags.FLAGS.find_module_defining_flag(flag) or ""
    return module.startswith(("launch.", "benchmarks."))


def start(words, optimized=False) -> subprocess.Popen:
    return subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment(optimized=optimized),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def record_of(workdir: pathlib.Path) -> dict[str, object]:
    """Everything a run leaves that must not depend on when it was interrupted."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    metrics = [
        {k: v for k, v in json.loads(line).items() if not k.startswith(TIMING_PREFIXES)}
        for line in lines
    ]
    trajectories = {p.name: p.read_text() for p in (workdir / "trajectories").iterdir()}
    return {"metrics": metrics, "trajectories": trajectories}


def leaves_of(tree) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    shutil.copytree(source, target)


def copy_model(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a model without its digests, so that the copy may be changed."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(DIGESTS_FILE))


def need(*packages: str) -> None:
    """Skip a test or file without packages; with RAGEN_JAX_REQUIRE_LIVE=1 fail."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if absent and os.environ.get("RAGEN_JAX_REQUIRE_LIVE") == "1":
        pytest.fail(f"RAGEN_JAX_REQUIRE_LIVE=1, but {absent[0]} is not installed")
    if absent:
        pytest.skip(f"needs {absent[0]}", allow_module_level=True)
