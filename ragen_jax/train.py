"""StarPO: roll out, filter, learn, repeat.

In: a configuration and a run folder. Out: the trained run in that folder. This file is
the whole loop; each line is a call to something that can be read and tested alone.
Reference: RAGEN, arXiv 2504.20073, sections 3 and 4.
"""

import contextlib
import pathlib
import time
from collections.abc import Collection

import jax
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.evaluate import evaluate
from ragen_jax.program import build_program
from ragen_jax.progress import Display
from ragen_jax.rollout.episodes import episodes
from ragen_jax.rollout.metrics import rollout_metrics
from ragen_jax.run import Run, StopRequest


def train(
    config: ConfigDict, workdir: pathlib.Path, overrides: Collection[str] = ()
) -> int:
    """Train until `train.num_iterations`, resuming what the run folder holds.

    Returns:
      Exit status: 0 when done, 143 (or 130) when a signal asked to stop and the run was
      saved.

    Raises:
      ValueError: the configuration or the run folder does not allow it.
    """
    program = build_program(config, overrides)
    game = program.game
    root = rngs.root_key(config.seed)
    total = config.train.num_iterations
    with (
        Run(config, workdir, program) as run,
        StopRequest() as stop,
        Display(game.env.name, start=run.start, total=total) as display,
    ):
        state, timing = run.state, {}
        if run.start == 0 and config.evaluation.every is not None:
            with _timed(timing, "testing"):
                metrics, _ = evaluate(program, state.params)
            run.record(0, metrics | timing)
            display.iteration(0, metrics | timing)

        for iteration in range(run.start, total):
            done, timing = iteration + 1, {}
            key = rngs.step_key(root, iteration)
            with _timed(timing, "rollout"):
                trajectory = jax.block_until_ready(program.collect(state.params, key))
            with _timed(timing, "update"):
                shuffle_key = rngs.stream(key, "shuffle")
                state, stats = program.update(state, trajectory, shuffle_key)
                metrics = jax.device_get(stats)
            metrics |= _named(
                f"train/{game.env.name}/",
                rollout_metrics(trajectory, group_size=config.rollout.group_size),
            )
            if _due(config.evaluation.every, done, total):
                with _timed(timing, "testing"):
                    metrics |= evaluate(program, state.params)[0]
            if _due(config.logging.trajectories_every, done, total):
                count = config.logging.trajectories_per_iteration
                run.write_episodes(done, episodes(trajectory, game.tokenizer, count))
            run.record(done, metrics | timing)
            display.iteration(done, metrics | timing)
            run.check_health(metrics)
            if _due(config.checkpoint.every, done, total) or stop.requested:
                run.save(done, state)
            if stop.requested:
                run.finish()
                display.say(f"stopped after iteration {done} of {total}, saved")
                return stop.exit_status
        run.finish()
        display.say(run.summary(game.env.name, state))
    return 0


def _due(every: int | None, done: int, total: int) -> bool:
    """Whether something that happens every so many iterations happens now."""
    return every is not None and (done % every == 0 or done == total)


def _named(prefix: str, metrics: dict) -> dict:
    return {prefix + k: float(v) for k, v in jax.device_get(metrics).items()}


@contextlib.contextmanager
def _timed(timing: dict[str, float], name: str):
    """Add the seconds the block took as `timing_s/<name>`."""
    began = time.perf_counter()
    yield
    timing[f"timing_s/{name}"] = time.perf_counter() - began
