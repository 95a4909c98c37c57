"""Success on fixed validation prompts, with its interval and the exact ceiling.

In: a program and parameters. Out: metrics and the trajectory they were read from. The
prompts come from a random stream of their own, are the same at every call, and each is
played once.
"""

import math

import jax
import numpy as np

from ragen_jax.program import Game, Program
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


def evaluate(program: Program, params: Params) -> tuple[dict[str, float], Trajectory]:
    """Play the validation prompts.

    Returns:
      Metrics named `val-env/<Env>/...` and the trajectory, one row per prompt.
    """
    trajectory = program.collect_validation(params)
    metrics = jax.device_get(rollout_metrics(trajectory, group_size=1))
    metrics |= solver_metrics(program.game, trajectory)
    low, high = wilson_interval(
        float(np.sum(jax.device_get(trajectory.success))), len(trajectory.success)
    )
    metrics |= {"success_low": low, "success_high": high}
    prefix = f"val-env/{program.game.env.name}/"
    return {prefix + name: float(value) for name, value in metrics.items()}, trajectory


def solver_metrics(game: Game, trajectory: Trajectory) -> dict[str, float]:
    """Best play on the same levels: `ceiling` and `regret`, both success rates."""
    solution = game.env.solve(
        trajectory.initial_state, game.params, budget=game.budget, discount=1.0
    )
    ceiling = float(np.mean(jax.device_get(solution.best_success)))
    success = float(np.mean(jax.device_get(trajectory.success)))
    return {"ceiling": ceiling, "regret": ceiling - success}
