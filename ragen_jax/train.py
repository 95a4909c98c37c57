"""StarPO: roll out, filter, learn, repeat.

In: a configuration and a run folder. Out: the trained run in that folder. This file is
the whole loop; each line is a call to something that can be read and tested alone.
Iterations run one at a time, or several in one compiled program: the bits are the same,
and the second waits for the host once per block. Reference: RAGEN, arXiv 2504.20073,
sections 3 and 4.
"""

import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.algo.filters import reward_std
from ragen_jax.diagnostics.schedule import make_diagnose, trends
from ragen_jax.evaluation.evaluate import evaluate
from ragen_jax.learner.state import TrainState, state_shardings
from ragen_jax.learner.update import Stats
from ragen_jax.program import Program, build_program
from ragen_jax.rollout.metrics import rollout_metrics
from ragen_jax.runs.console import Display
from ragen_jax.runs.run import Run, StopRequest
from ragen_jax.timing import timed
from ragen_jax.types import Trajectory


def train(
    config: ConfigDict, workdir: pathlib.Path, overrides: Collection[str] = ()
) -> int:
    """Train until `train.num_iterations`, resuming what the run folder holds.

    Returns:
      Exit status: 0 when done or given up (`early_stop`), 143 (or 130) when a signal
      asked to stop and the run was saved.

    Raises:
      ValueError: the configuration or the run folder does not allow it.
    """
    program = build_program(config, overrides)
    advance = make_advance(config, program)
    total, step = config.train.num_iterations, config.train.fused_iterations
    with (
        Run(config, workdir, program.state, program.identity, program.names) as run,
        StopRequest() as stop,
        Display(program.names, start=run.start, total=total) as display,
    ):
        state, timing = run.state, {}
        if run.start == 0 and config.evaluation.every is not None:
            with timed(timing, "testing"):
                metrics, _ = evaluate(program, program.play_params(state))
            run.record(0, metrics | timing)
            display.iteration(0, metrics | timing)
            if stop.requested:
                return _leave(run, display, stop, 0, total)

        for before in range(run.start, total, step):
            if reason := run.reason_to_stop():
                display.say(f"stopped early after iteration {before}: {reason}")
                break
            state, iterations = advance(state, before)
            # Evaluations and checkpoints fall on the last of iterations made at once.
            for done, one in enumerate(iterations, before + 1):
                rollouts, timing = one.rollouts, one.timing
                metrics = one.stats | one.diagnostics
                with timed(timing, "metrics"):
                    metrics |= _play_metrics(program, rollouts, config)
                if _due(config.evaluation.every, done, total):
                    with timed(timing, "testing"):
                        params = program.play_params(state)
                        metrics |= evaluate(program, params)[0]
                if _due(config.logging.trajectories_every, done, total):
                    count = config.logging.trajectories_per_iteration
                    run.write_episodes(done, program.episodes(rollouts, count))
                metrics |= trends(run.records, metrics)
                spreads = _group_spreads(rollouts, config)
                news = run.record(done, metrics | timing, spreads)
                display.iteration(done, metrics | timing, news)
            state = run.scale_learning_rate(state)
            reason, is_stopping = run.check_health(metrics), stop.requested
            if _due(config.checkpoint.every, done, total) or reason or is_stopping:
                run.save(done, state)
            if is_stopping:
                return _leave(run, display, stop, done, total)
        run.finish()
        display.say(run.summary(state))
    return 0


def _due(every: int | None, done: int, total: int) -> bool:
    """Whether something that happens every so many iterations happens now."""
    return every is not None and (done % every == 0 or done == total)


def _leave(run: Run, display: Display, stop: StopRequest, done: int, total: int) -> int:
    """Close the run as a signal asked; the exit status that says so."""
    run.finish()
    display.say(f"stopped after {done} of {total} iterations, all saved")
    return stop.exit_status


def _play_metrics(
    program: Program, rollouts: Sequence[Trajectory], config: ConfigDict
) -> dict[str, float]:
    """How training's episodes went, as `train/<Env>/...`."""
    metrics, group_size = {}, config.rollout.group_size
    for task, rollout in zip(program.tasks, rollouts, strict=True):
        game = task.game
        own = jax.device_get(rollout_metrics(rollout, group_size=group_size))
        # Every iteration has other levels: only fast solvers are asked.
        if game.env.solves_on_device:
            own |= task.play_quality(rollout, group_size)
        metrics |= {f"train/{game.name}/{k}": float(v) for k, v in own.items()}
    return metrics


def _group_spreads(
    rollouts: Sequence[Trajectory], config: ConfigDict
) -> dict[str, list[float]]:
    """The reward spread of every group, whose mean is a metric; in rows' order."""
    spreads = [
        jax.device_get(reward_std(rollout, group_size=config.rollout.group_size))
        for rollout in rollouts
    ]
    return {"rollout/in_group_reward_stds": [float(x) for own in spreads for x in own]}


class Iteration(NamedTuple):
    """What there is to tell of one iteration.

    Attributes:
      rollouts: what was played, one per task.
      stats: of the update, or of the last one where a rollout is used again.
      diagnostics: of the policy that played, see `ragen_jax.diagnostics.schedule`.
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
    root, diagnose = (
        rngs.root_key(config.seed),
        make_diagnose(
            config,
            program.learner,
            program.frozen,
            program.game.dialogue.parser,
        ),
    )

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
