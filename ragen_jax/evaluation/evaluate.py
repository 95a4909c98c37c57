"""Success on fixed validation prompts, with its interval and the exact ceiling.

In: a program and parameters. Out: metrics and the trajectories they describe. The
prompts come from a separate random stream and are the same at every call; each is
played `evaluation.num_samples` times.
"""

from collections.abc import Sequence

import jax
import numpy as np

from envs.base import EXACT, TextGame
from ragen_jax.evaluation.statistics import summarize
from ragen_jax.program.build import Program
from ragen_jax.tasks.task import Task
from ragen_jax.types import Params, Trajectory


def evaluate(
    program: Program, params: Params
) -> tuple[dict[str, float], tuple[Trajectory, ...]]:
    """Play the validation prompts of every task.

    Returns:
      Metrics named `val-env/<Env>/...` and a trajectory per task; the samples of a
      prompt are adjacent rows. The metrics include those of `statistics.summarize`
      (`ceiling`: success of the solver on the same levels) and the settings, since
      numbers compare under equal settings only.
    """
    rollouts = program.collect_validation(params)
    metrics = {}
    for task, rollout in zip(program.tasks, rollouts, strict=True):
        num_prompts = program.validation["num_prompts"]
        values = _measure(task, rollout, num_prompts, program.pass_at)
        values |= program.validation
        values |= level_facts(task.env, has_ceiling="ceiling" in values)
        prefix = f"val-env/{task.name}/"
        metrics |= {prefix + name: float(value) for name, value in values.items()}
    return metrics, rollouts


def level_facts(env: TextGame, *, has_ceiling: bool) -> dict[str, float]:
    """Metrics that say what success on the levels of a game means.

    Args:
      env: the game.
      has_ceiling: the best success under the limits is known.
    """
    facts = {"held_out": env.holds_out_levels}
    if has_ceiling:
        facts["exact"] = env.solves == EXACT
    return {name: float(value) for name, value in facts.items()}


def _measure(
    task: Task, rollout: Trajectory, num_prompts: int, pass_at: Sequence[int]
) -> dict[str, float]:
    metrics = task.measure(rollout, 1)
    success = np.asarray(jax.device_get(rollout.success)).reshape(num_prompts, -1)
    stride = success.shape[1]
    start = jax.device_get(rollout.initial_state)
    levels = jax.tree.map(lambda x: x[::stride], start)
    if task.play_quality is not None:
        metrics |= task.play_quality(rollout, stride)
    return metrics | summarize(success, task.ceiling(levels), pass_at)
