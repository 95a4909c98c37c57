"""What a start imports and compiles: never more than it needs."""

import re
import subprocess
import sys

import pytest

from tests import commands

# Packages that take longer than 0.1 s to import, and that no run needs.
HEAVY = ("matplotlib", "pandas", "scipy", "seaborn", "torch", "transformers", "pyarrow")
ASK = """
import importlib, sys
for module in sys.argv[2:]:
    importlib.import_module(module)
print(*sorted(set(sys.modules) & set(sys.argv[1].split())))
"""


@pytest.mark.parametrize(
    "modules",
    [
        ["envs"],
        # The commands import what they need once their flags are read; TensorBoard's
        # files are a default of `logging.sinks`.
        ["launch.train", "ragen_jax.train", "ragen_jax.runs.sinks.tensorboard"],
        ["launch.evaluate", "ragen_jax.evaluation.harness"],
        ["launch.play", "ragen_jax.evaluation.terminal.episodes"],
    ],
    ids=lambda modules: modules[0],
)
def test_no_command_imports_what_it_does_not_need(modules):
    words = [sys.executable, "-c", ASK, " ".join(HEAVY), *modules]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


# Programs that a start may compile, with room for two or three more. An operation on an
# array outside of a program is one, too: dozens of them are seconds.
MOST_PROGRAMS = {"train": 45, "evaluate": 18, "play": 18}


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    """A run of two iterations with evaluations and diagnostics, and its programs."""
    workdir = tmp_path_factory.mktemp("start") / "run"
    changes = {"train__num_iterations": 2, "diagnostics__every": 1}
    return workdir, programs_of(commands.train_command(model, workdir, **changes))


def programs_of(words) -> list[str]:
    """Names of what a command in a process of its own lowers, in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_LOG_COMPILES", "1")
        done = commands.run(words)
    assert done.returncode == 0, done.stderr
    # A program is lowered before it is looked up in the cache of compiled ones.
    return re.findall(r"Finished jaxpr to MLIR module conversion (\S+)", done.stderr)


def test_training_compiles_few_programs(trained):
    programs = trained[1]
    # Otherwise the log has another form, and nothing is counted.
    assert {"jit(update)", "jit(score)", "jit(_look)"} <= set(programs)
    assert len(programs) <= MOST_PROGRAMS["train"], programs


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "play"])
def test_a_look_at_a_run_compiles_few_programs(trained, command):
    words = {"evaluate": [], "play": ["--player=policy"]}[command]
    programs = programs_of(commands.command(command, f"--run={trained[0]}", *words))
    assert "jit(_batched_distances)" in programs
    assert len(programs) <= MOST_PROGRAMS[command], programs
