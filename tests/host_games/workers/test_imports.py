"""Workers start without JAX, whichever game they play."""

import subprocess
import sys

from ragen_jax.host_games import ADAPTERS, HOST_GAMES

# Those of the benchmarks are played by many workers, too.
BENCHMARKS = ("benchmarks.slow_game:Sleeper", "benchmarks.slow_search:SlowSearch")
HEAVY = ("jax", "jaxlib", "flax", "optax", "gymnax", "torch", "envs")
ASK = """
import importlib, sys
import ragen_jax.host_games.workers.worker
for reference in sys.argv[2:]:
    module, name = reference.split(":")
    make = getattr(importlib.import_module(module), name)
    is_adapter = ".adapters." in module or ".agent." in module
    if module.startswith("ragen_jax.host_games.") and not is_adapter:
        make(split="training").close()
    print(reference, *sorted(set(sys.modules) & set(sys.argv[1].split())))
"""


def test_no_worker_imports_jax():
    games = [*HOST_GAMES.values(), *(game for game, _ in ADAPTERS.values())]
    words = [sys.executable, "-c", ASK, " ".join(HEAVY), *games, *BENCHMARKS]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [*games, *BENCHMARKS]
