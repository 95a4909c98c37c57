"""Success on fixed validation prompts, with its interval and the exact ceiling.

In: a program and parameters. Out: metrics and the trajectories they were read from. The
prompts come from a random stream of their own, are the same at every call, and each is
played once.
"""

import math

import jax
import numpy as np

from ragen_jax.program import Program, Task
from ragen_jax.rollout.metrics import rollout_metrics
from ragen_jax.types import Params, Trajectory

# Two-sided 95 % quantile of the standard normal distribution.
_Z95 = 1.959964


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion (Wilson 1927)."""
    share = successes / trials
    scale = 1 + _Z95**2 / trials
    centre = (share + _Z95**2 / (2 * trials)) / scale
    half = _Z95 * math.sqrt(share * (1 - share) / trials + _Z95**2 / (4 * trials**2))
    return max(0.0, centre - half / scale), min(1.0, centre + half / scale)


def evaluate(
    program: Program, params: Params
) -> tuple[dict[str, float], tuple[Trajectory, ...]]:
    """Play the validation prompts of every task.

    Returns:
      Metrics named `val-env/<Env>/...` and a trajectory per task, one row per prompt.
      Among them `ceiling`, the success of best play on the same levels, `regret`, what
      is missing to it, and the settings: numbers compare only under the same.
    """
    rollouts = program.collect_validation(params)
    metrics = {}
    for task, rollout in zip(program.tasks, rollouts, strict=True):
        own = _measure(task, rollout) | program.validation
        prefix = f"val-env/{task.game.name}/"
        metrics |= {prefix + name: float(value) for name, value in own.items()}
    return metrics, rollouts


def _measure(task: Task, rollout: Trajectory) -> dict[str, float]:
    """Metrics of a task's validation episodes."""
    metrics = jax.device_get(rollout_metrics(rollout, group_size=1))
    success = jax.device_get(rollout.success)
    low, high = wilson_interval(float(np.sum(success)), len(success))
    ceiling = task.ceiling(rollout.initial_state)
    regret = ceiling - float(np.mean(success))
    metrics |= task.play_quality(rollout, 1)
    metrics |= {"success_low": low, "success_high": high}
    return metrics | {"ceiling": ceiling, "regret": regret}
