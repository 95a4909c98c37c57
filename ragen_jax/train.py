"""StarPO: roll out, filter, learn, repeat.

In: a configuration and a run folder. Out: the trained run in that folder. This file is
the whole loop; each line is a call to something that can be read and tested alone.
Reference: RAGEN, arXiv 2504.20073, sections 3 and 4.
"""

import pathlib
from collections.abc import Collection, Sequence

import jax
from ml_collections import ConfigDict

from ragen_jax.algo.filters import reward_std
from ragen_jax.diagnosis import trends
from ragen_jax.evaluate import evaluate
from ragen_jax.iterations import make_advance
from ragen_jax.program import Program, build_program
from ragen_jax.progress import Display
from ragen_jax.rollout.metrics import rollout_metrics
from ragen_jax.run import Run, StopRequest
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
        Run(config, workdir, program) as run,
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
