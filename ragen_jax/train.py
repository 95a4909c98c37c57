"""StarPO: roll out, filter, learn, repeat.

In: a configuration and a run folder. Out: the trained run in that folder. This file is
the whole loop; each line is a call to something that can be read and tested alone.
Reference: RAGEN, arXiv 2504.20073, sections 3 and 4.
"""

import functools
import pathlib
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.algo.filters import reward_std
from ragen_jax.algo.segments import takes_part
from ragen_jax.config import check_kind
from ragen_jax.devices import exchange, sharding
from ragen_jax.devices.heartbeat import watch_processes
from ragen_jax.diagnostics.schedule import trends
from ragen_jax.diagnostics.timing import Timed, timed
from ragen_jax.evaluation.evaluate import evaluate
from ragen_jax.learner.batch import game_rewards
from ragen_jax.learner.state import TrainState
from ragen_jax.learner.update import EpisodeCredit
from ragen_jax.program.build import Program, build_program
from ragen_jax.program.compile_ahead import CompileAhead
from ragen_jax.program.prefetch import RolloutPrefetcher
from ragen_jax.rollout.host.env import MAX_REWARD
from ragen_jax.rollout.host.rows import GamesFailed
from ragen_jax.rollout.metrics import FAILED_ROWS
from ragen_jax.runs.console import Display
from ragen_jax.runs.machine import describe_run
from ragen_jax.runs.metrics import PEAK_MEMORY
from ragen_jax.runs.progress import working
from ragen_jax.runs.run import Run
from ragen_jax.runs.stop import StopRequest
from ragen_jax.types import Trajectory


def train(
    config: ConfigDict, workdir: pathlib.Path, overrides: Collection[str] = ()
) -> int:
    """Train until `train.num_iterations`, resuming what the run folder holds.

    Returns:
      Exit status: 0 at the end or an early stop, 143 (130) when a signal saved it.

    Raises:
      ValueError: the configuration or the run folder does not allow it.
    """
    check_kind(config)
    with watch_processes(workdir, config.train.stall_seconds) as watch:
        watch.at("loading the model and the games")
        with working("loading the model and the games"):
            exchange.check_equal(describe_run(config))
            program = build_program(config, overrides)
            exchange.check_equal(program.identity)
        watch.at("opening the run folder")
        display = functools.partial(Display, on_stage=watch.at)
        return run_program(config, program, workdir, make_display=display)


def run_program(
    config: ConfigDict,
    program: Program,
    workdir: pathlib.Path,
    *,
    make_display: Callable[..., Display] = Display,
    make_stop: Callable[..., AbstractContextManager[StopRequest]] = StopRequest,
) -> int:
    """`train` with a program built from this configuration, as a sweep has it.

    `make_display` and `make_stop`: what shows the run, and what may stop it.
    """
    total, num_layers = config.train.num_iterations, program.model.num_hidden_layers
    with (
        Run(config, workdir, program.state, program.identity, program.names) as run,
        make_display(
            program.names, start=run.start, total=total, num_layers=num_layers
        ) as display,
        make_stop(display.say) as stop,
        CompileAhead(config, program, display.timed, total - run.start) as ahead,
        RolloutPrefetcher(config, program) as prefetcher,
    ):
        iterate = make_iterate(config, program, ahead.timed, prefetcher)
        state = run.state
        for note in run.notes:
            display.say(note)
        if run.is_resumed:
            display.say(f"resuming {workdir} after iteration {run.start} of {total}")
        if not run.records and config.evaluation.every is not None:
            _evaluate_start(run, program, display)
            if stop.agree():
                return _leave(run, display, stop, 0, total)

        for done in range(run.start + 1, total + 1):
            if reason := run.reason_to_stop():
                display.say(f"stopped early after iteration {done - 1}: {reason}")
                break
            try:
                state, rollouts, credit, metrics, timing = iterate(state, done)
            except GamesFailed:
                if done > 1:
                    run.save(done - 1, state)
                raise
            failure = None
            with display.timed(timing, "metrics"):
                metrics |= _rollout_metrics(program, rollouts, config)
            if _is_due(config.evaluation.every, done, total):
                with display.timed(timing, "testing"):
                    scores, failure = _evaluate(program, state)
                metrics |= scores
            if _is_due(config.logging.trajectories_every, done, total):
                count = config.logging.trajectories_per_iteration
                run.write_episodes(done, program.episodes(rollouts, count, credit))
            metrics |= trends(run.records, metrics)
            if (peak := sharding.peak_memory()) is not None:
                timing[PEAK_MEMORY] = peak / 2**30
            news = run.record(done, metrics | timing, _group_spreads(rollouts, config))
            display.iteration(done, metrics | timing, news)
            state = run.scale_learning_rate(state)
            reason, is_stopping = run.check_health(metrics, state), stop.agree()
            is_due = _is_due(config.checkpoint.every, done, total) or run.is_best
            if is_due or reason or is_stopping or failure:
                run.save(done, state)
            if failure is not None:
                raise failure
            if is_stopping:
                return _leave(run, display, stop, done, total)
        display.conclude(run.conclude(state))
    return 0


class Iteration(NamedTuple):
    """Result of one iteration.

    Attributes:
      state: the train state after it.
      rollouts: the episodes played, one trajectory per task.
      credit: of those episodes, in their order, in the last update that used them.
      metrics: of that update and of the diagnostics of the policy that played.
      timing: seconds by stage, as `timing_s/<stage>`, and its compilations, as
        `perf/compile_s/<stage>` and `perf/compile_cached/<stage>`.
    """

    state: TrainState
    rollouts: Sequence[Trajectory]
    credit: EpisodeCredit
    metrics: dict[str, float]
    timing: dict[str, float]


def make_iterate(
    config: ConfigDict,
    program: Program,
    timed: Timed = timed,
    prefetcher: RolloutPrefetcher | None = None,
) -> Callable[[TrainState, int], Iteration]:
    """One iteration: `(state, its number from 1) -> Iteration`; donates the state.

    `timed` measures its stages; `prefetcher` plays; None makes one.
    """
    prefetcher = (
        RolloutPrefetcher(config, program) if prefetcher is None else prefetcher
    )
    root, diagnostics = rngs.root_key(config.seed), program.diagnostics
    num_updates = config.learner.updates_per_rollout

    def iterate(state: TrainState, done: int) -> Iteration:
        key, timing = rngs.step_key(root, done - 1), {}
        with timed(timing, "rollout"):
            rollouts, metrics, hidden = prefetcher.result(state, done)
            batch = program.join(rollouts)
        snapshot = prefetcher.start(state, done)
        metrics |= diagnostics.measure(done, key, state, batch, timed)
        with timed(timing, "update"):
            state = state.replace(acting_snapshot=None)
            shuffle = rngs.stream(key, "shuffle")
            for i in range(num_updates):
                shuffle_key = jax.random.fold_in(shuffle, i)
                state, stats, credit = program.update(state, batch, shuffle_key)
            stats = jax.device_get(stats)
            rollouts = exchange.to_local_devices(rollouts)
        state, timing = state.replace(acting_snapshot=snapshot), timing | hidden
        return Iteration(state, rollouts, credit, stats | metrics, timing)

    return iterate


def _evaluate_start(run: Run, program: Program, display: Display) -> None:
    """Record the held-out metrics of the policy before the first update."""
    timing = {}
    with display.timed(timing, "testing"):
        metrics, _ = evaluate(program, program.play_params(run.state))
    run.record(0, metrics | timing)
    display.iteration(0, metrics | timing)
    if run.is_best:
        run.save(0, run.state)


def _evaluate(
    program: Program, state: TrainState
) -> tuple[dict[str, float], GamesFailed | None]:
    """Held-out metrics, or the error, raised only after the iteration is saved."""
    try:
        return evaluate(program, program.play_params(state))[0], None
    except GamesFailed as failure:
        return {}, failure


def _is_due(every: int | None, done: int, total: int) -> bool:
    return every is not None and (done % every == 0 or done == total)


def _leave(run: Run, display: Display, stop: StopRequest, done: int, total: int) -> int:
    """Close the run after a signal; returns the exit status for it."""
    run.finish()
    # The start is saved where it is the best policy so far.
    if done == 0 and not run.has_checkpoint(0):
        display.say("stopped before the first iteration; the same command starts again")
    else:
        display.say(
            f"stopped after {done} of {total} iterations, all saved; the same command "
            "resumes"
        )
    return stop.exit_status


def _rollout_metrics(
    program: Program, rollouts: Sequence[Trajectory], config: ConfigDict
) -> dict[str, float]:
    """Metrics of the training episodes, as `train/<Env>/...`."""
    metrics, group_size = {}, config.rollout.group_size
    if config.env.host is not None:
        metrics[FAILED_ROWS.name] = float(sum(map(FAILED_ROWS.value, rollouts)))
    for task, rollout in zip(program.tasks, rollouts, strict=True):
        largest = np.max(np.abs(jax.device_get(_paid(rollout, group_size)[0])))
        # Not-a-number is not up to anything.
        if not largest <= MAX_REWARD:
            raise ValueError(
                f"{task.name} paid {largest:g} in an episode; rewards must be finite "
                f"and at most {MAX_REWARD:g} in magnitude, as their squares would "
                "overflow: scale them in the game"
            )
        values = task.measure(rollout, group_size)
        # Every iteration has other levels, so a slow solver would cost too much.
        if task.env.solves_on_device:
            values |= task.play_quality(rollout, group_size)
        metrics |= {f"train/{task.name}/{k}": float(v) for k, v in values.items()}
    return metrics


def _group_spreads(
    rollouts: Sequence[Trajectory], config: ConfigDict
) -> dict[str, list[float]]:
    size = config.rollout.group_size
    spreads = [jax.device_get(_paid(rollout, size)[1]) for rollout in rollouts]
    return {"rollout/in_group_reward_stds": [float(x) for s in spreads for x in s]}


# One program: its three dozen operations would be compiled one by one otherwise.
@functools.partial(jax.jit, static_argnums=1)
def _paid(
    rollout: Trajectory, group_size: int
) -> tuple[Float[Array, " B"], Float[Array, " G"]]:
    """What the game paid in each episode, and how much that differs in each group."""
    rewards = game_rewards(rollout)
    counted = takes_part(rollout.loss_mask)
    return rewards, reward_std(rewards, counted, group_size=group_size)
