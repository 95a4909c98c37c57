"""StarPO: roll out, filter, learn, repeat.

In: a configuration and a run folder. Out: the trained run in that folder. This file is
the whole loop; each line is a call to something that can be read and tested alone.
Reference: RAGEN, arXiv 2504.20073, sections 3 and 4.
"""

import contextlib
import pathlib
import time
from collections.abc import Collection, Sequence

import jax
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.evaluate import evaluate
from ragen_jax.program import Program, build_program
from ragen_jax.progress import Display
from ragen_jax.rollout.metrics import rollout_metrics
from ragen_jax.run import Run, StopRequest
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
    root = rngs.root_key(config.seed)
    total = config.train.num_iterations
    with (
        Run(config, workdir, program) as run,
        StopRequest() as stop,
        Display(program.names, start=run.start, total=total) as display,
    ):
        state, timing = run.state, {}
        if run.start == 0 and config.evaluation.every is not None:
            with _timed(timing, "testing"):
                metrics, _ = evaluate(program, program.play_params(state))
            run.record(0, metrics | timing)
            display.iteration(0, metrics | timing)
            if stop.requested:
                return _leave(run, display, stop, 0, total)

        for iteration in range(run.start, total):
            if reason := run.reason_to_stop():
                display.say(f"stopped early after iteration {iteration}: {reason}")
                break
            done, timing = iteration + 1, {}
            key = rngs.step_key(root, iteration)
            with _timed(timing, "rollout"):
                params = program.play_params(state)
                rollouts = program.collect(params, key)
            with _timed(timing, "update"):
                batch = program.join(rollouts)
                for reuse in range(config.learner.updates_per_rollout):
                    shuffle_key = jax.random.fold_in(rngs.stream(key, "shuffle"), reuse)
                    state, stats = program.update(state, batch, shuffle_key)
                metrics = jax.device_get(stats)
            metrics |= _play_metrics(program, rollouts, config.rollout.group_size)
            if _due(config.evaluation.every, done, total):
                with _timed(timing, "testing"):
                    params = program.play_params(state)
                    metrics |= evaluate(program, params)[0]
            if _due(config.logging.trajectories_every, done, total):
                count = config.logging.trajectories_per_iteration
                run.write_episodes(done, program.episodes(rollouts, count))
            run.record(done, metrics | timing)
            display.iteration(done, metrics | timing)
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
    program: Program, rollouts: Sequence[Trajectory], group_size: int
) -> dict[str, float]:
    """How training's episodes went, as `train/<Env>/...`."""
    metrics = {}
    for name, rollout in zip(program.names, rollouts, strict=True):
        own = jax.device_get(rollout_metrics(rollout, group_size=group_size))
        metrics |= {f"train/{name}/{k}": float(v) for k, v in own.items()}
    return metrics


@contextlib.contextmanager
def _timed(timing: dict[str, float], name: str):
    """Add the seconds the block took as `timing_s/<name>`."""
    began = time.perf_counter()
    yield
    timing[f"timing_s/{name}"] = time.perf_counter() - began
