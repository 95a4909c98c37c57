"""Programs that runs share: compiled once for all seeds and for settings that are data.

In: validated configurations, one after the other. Out: a `Program` each. Loading and
compiling take half a minute for the pocket model. Configurations that differ only in
their seed and in numbers that are declared as data (`ragen_jax/registry/numbers.py`)
share the compiled functions; those that also differ in how they learn, the rollouts.
"""

import dataclasses
import functools
import json
import threading

from ml_collections import ConfigDict

from ragen_jax.config import VALIDATION_SETTINGS
from ragen_jax.devices.sharding import platform_of
from ragen_jax.models.hf.weights import load_checkpoint, load_config
from ragen_jax.program.build import (
    LEARNING,
    Program,
    build_parts,
    build_program,
    check_memory,
    check_sessions,
    model_folder,
    num_params,
    renumber,
)
from ragen_jax.registry.numbers import data_keys
from ragen_jax.registry.settings import Leaves, flatten
from ragen_jax.runs.machine import references
from ragen_jax.text.tokenizer import load_tokenizer

# Most parameters of a model of which several runs at a time are faster on a CPU:
# products of larger ones fill the cores, and their states may not fit in memory
# together.
_SMALL_PARAMS = 20_000_000
# Number of such runs; on two cores five take 5 % less time than two
# (docs/benchmarks-evidence.md).
_AT_ONCE = 5


class Programs:
    """Cache of the latest programs.

    Args:
      num_kept: programs in the cache; each holds a model's weights.
    """

    def __init__(self, num_kept: int = 1):
        self._lock = threading.RLock()
        self._num_kept = num_kept
        # By `play_key` and `program_key`, the latest last.
        self._programs: dict[tuple[str, str], Program] = {}

    def start(self, config: ConfigDict) -> Program:
        """The program of a validated configuration, with the first state of its run.

        Raises:
          ValueError: see `build_program`.
        """
        with self._lock:
            plays, key = play_key(config), program_key(config)
            if (plays, key) in self._programs:
                return restart(self._programs[plays, key], config)
            # Only the tasks: the weights of a program that goes make room first.
            bound = next(
                (p.tasks for (same, _), p in self._programs.items() if same == plays),
                None,
            )
            while len(self._programs) >= self._num_kept:
                del self._programs[next(iter(self._programs))]
            program = build_program(config, bound=bound)
            # The run gets the state; updates donate its buffers.
            self._programs[plays, key] = dataclasses.replace(program, state=None)
            return program

    def forget(self) -> None:
        """Empty the cache after a run has failed in one of its programs."""
        with self._lock:
            self._programs.clear()


def program_key(config: ConfigDict) -> str:
    """Equal for configurations that can share a program."""
    return json.dumps(_compiled_in(config), sort_keys=True)


def play_key(config: ConfigDict) -> str:
    """Equal for configurations whose rollouts are the same programs."""
    leaves = _compiled_in(config).items()
    played = {key: x for key, x in leaves if key.partition(".")[0] not in LEARNING}
    return json.dumps(played, sort_keys=True)


def _compiled_in(config: ConfigDict) -> Leaves:
    leaves = flatten(config)
    free = data_keys(leaves) | {"seed"}
    return {key: value for key, value in leaves.items() if key not in free}


def restart(program: Program, config: ConfigDict) -> Program:
    """The program with the first state of another run; nothing is compiled again.

    Args:
      program: of a configuration with the same `program_key`. Its state is not used.
      config: validated.
    """
    _, params = load_checkpoint(model_folder(config.model.path))
    learner = program.learner.with_numbers(config)
    numbers, vocab_size = learner.numbers, program.model.vocab_size
    return dataclasses.replace(
        program,
        tasks=tuple(renumber(config, task, vocab_size) for task in program.tasks),
        validation={name: config.evaluation[name] for name in VALIDATION_SETTINGS},
        learner=learner,
        state=learner.init(params, config.seed),
        update=functools.partial(learner.update, program.frozen, numbers),
        diagnostics=dataclasses.replace(program.diagnostics, numbers=numbers),
    )


def check_program(config: ConfigDict) -> int:
    """Raise the errors of `build_program` without reading weights.

    Args:
      config: validated.

    Returns:
      Runs of it that one process should train at a time.

    Raises:
      ValueError: model, tokenizer, games and configuration do not fit each other.
    """
    folder = model_folder(config.model.path)
    model = load_config(folder)
    parts = build_parts(config, model, load_tokenizer(folder))
    check_memory(config, parts)
    check_sessions(config, parts)
    mesh = parts.batch_sharding.mesh
    # Host games and the user's functions may not support two threads.
    is_ours = config.env.host is None and not references(config)
    if mesh.size > 1 or platform_of(mesh) != "cpu" or not is_ours:
        return 1
    return _AT_ONCE if num_params(parts.learner.played) <= _SMALL_PARAMS else 1
