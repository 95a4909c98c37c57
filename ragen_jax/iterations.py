"""Iterations: one at a time, or several in one compiled program.

In: the train state and how many iterations it has seen. Out: the state after the next
ones and, of each, what was played and what the learner says of it. Either way gives the
same bits; the second waits for the host once in so many iterations.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.diagnosis import make_diagnose
from ragen_jax.learner.state import TrainState, state_shardings
from ragen_jax.learner.update import Stats
from ragen_jax.program import Program
from ragen_jax.timing import timed
from ragen_jax.types import Trajectory


class Iteration(NamedTuple):
    """What there is to tell of one iteration.

    Attributes:
      rollouts: what was played, one per task.
      stats: of the update, or of the last one where a rollout is used again.
      diagnostics: of the policy that played, see `ragen_jax.diagnosis`.
      timing: seconds by stage, as `timing_s/<stage>`; what was compiled for it, as
        `perf/compile_s/<stage>` and `perf/compile_cached/<stage>`.
    """

    rollouts: Sequence[Trajectory]
    stats: Stats
    diagnostics: dict[str, float]
    timing: dict[str, float]


# (state, iterations done) -> (state, the next iterations); the state is donated.
Advance = Callable[[TrainState, int], tuple[TrainState, list[Iteration]]]


def make_advance(config: ConfigDict, program: Program) -> Advance:
    """`train.fused_iterations` iterations a call."""
    if config.train.fused_iterations == 1:
        return _one_by_one(config, program)
    return _fused(config, program)


def _one_by_one(config: ConfigDict, program: Program) -> Advance:
    """An iteration, each stage timed."""
    root, diagnose = rngs.root_key(config.seed), make_diagnose(config, program)

    def advance(state, done):
        key, timing = rngs.step_key(root, done), {}
        with timed(timing, "rollout"):
            rollouts = program.collect(program.play_params(state), key)
            batch = program.join(rollouts)
        diagnostics = diagnose(done + 1, state, rollouts, batch)
        with timed(timing, "update"):
            for shuffle_key in _shuffle_keys(config, key):
                state, stats = program.update(state, batch, shuffle_key)
            stats = jax.device_get(stats)
        return state, [Iteration(rollouts, stats, diagnostics, timing)]

    return advance


def _fused(config: ConfigDict, program: Program) -> Advance:
    """Several iterations without the host; each is said to have taken the mean time.

    Nothing is diagnosed: parameters between two iterations never reach the host.
    """
    root, size = rngs.root_key(config.seed), config.train.fused_iterations
    block = make_block(config, program, size)
    dialogues = tuple(task.game.dialogue for task in program.tasks)

    def advance(state, done):
        timing = {}
        with timed(timing, "iteration"):
            fixed = (program.frozen, dialogues)
            state, told = block(fixed, state, root, jnp.int32(done))
            told = jax.device_get(told)
        mean = {"timing_s/iteration": timing["timing_s/iteration"] / size}
        parts = [jax.tree.map(lambda x, i=i: x[i], told) for i in range(size)]
        # What was compiled is told once.
        timings = [timing | mean, *(dict(mean) for _ in range(size - 1))]
        told = zip(parts, timings, strict=True)
        return state, [Iteration(*part, {}, one) for part, one in told]

    return advance


def make_block(config: ConfigDict, program: Program, size: int) -> Callable:
    """So many iterations as one compiled function.

    It is `(fixed, state, root_key, done) -> (state, (rollouts, stats))`. `fixed` are
    the frozen parameters and the tasks' dialogues: arguments, as a program would hold a
    copy of what it finds elsewhere. The state is donated. What comes out beside it has
    an axis of iterations first.
    """
    learner, tasks = program.learner, program.tasks

    def iterate(fixed, state, key):
        frozen, dialogues = fixed
        params, rollouts = learner.play_params(frozen, state), []
        for task, dialogue in zip(tasks, dialogues, strict=True):
            # Nothing of two stages is merged into one, or other sums would come out;
            # and no device plays one game while another one plays the next.
            params, rollouts = jax.lax.optimization_barrier((params, rollouts))
            rollouts.append(task.play(params, dialogue, key))
        rollouts = jax.lax.optimization_barrier(rollouts)
        batch = program.join(rollouts)
        for shuffle_key in _shuffle_keys(config, key):
            state, batch = jax.lax.optimization_barrier((state, batch))
            state, stats = learner.update(frozen, state, batch, shuffle_key)
        return state, (rollouts, stats)

    # Of the same layout as what went in, or the next call would compile anew.
    layout = (state_shardings(program.state), None)

    @jax.jit(donate_argnums=1, out_shardings=layout)
    def block(fixed, state, root, done):
        keys = jax.vmap(rngs.step_key, (None, 0))(root, done + jnp.arange(size))
        return jax.lax.scan(lambda *carried: iterate(fixed, *carried), state, keys)

    return block


def _shuffle_keys(config: ConfigDict, key) -> list:
    """A key for every update of an iteration."""
    stream = rngs.stream(key, "shuffle")
    return [
        jax.random.fold_in(stream, reuse)
        for reuse in range(config.learner.updates_per_rollout)
    ]
