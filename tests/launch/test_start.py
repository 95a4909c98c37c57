"""What a start imports and compiles: never more than it needs."""

import subprocess
import sys

import pytest

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
