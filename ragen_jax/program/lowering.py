"""The programs of a run before they are compiled, from descriptions of its arrays.

In: a configuration and its `Parts`. Out: descriptions, and `jax.stages.Lowered`s.
Nothing is allocated, compiled or run. Compiled here, a program is compiled for the run,
too: JAX finds it when the run calls it with arrays of the same description.
"""

import functools

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ragen_jax.devices.sharding import on_mesh
from ragen_jax.learner.state import describe
from ragen_jax.models.config import ModelConfig
from ragen_jax.program.build import Parts
from ragen_jax.rollout.collect import start_from
from ragen_jax.rollout.host.images import no_images
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.turns import RolloutContext, to_trajectory
from ragen_jax.tasks.specs import env_specs
from ragen_jax.tasks.task import Task
from ragen_jax.text.pictures import HostPicture
from ragen_jax.types import Params, Trajectory

PROGRAMS = ("rollout", "evaluation", "update")


def describe_batch(config: ConfigDict, parts: Parts) -> Trajectory:
    """The batch that an update learns from."""
    group_size = config.rollout.group_size
    rollouts = [
        jax.eval_shape(
            functools.partial(_unplayed, task, parts.model, spec.num_groups, group_size)
        )
        for task, spec in zip(parts.tasks, env_specs(config), strict=True)
    ]
    batch = jax.eval_shape(parts.join, rollouts)
    return describe(batch, jax.tree.map(lambda _: parts.batch_sharding, batch))


def _unplayed(
    task: Task, model: ModelConfig, num_groups: int, group_size: int
) -> Trajectory:
    """A rollout that ends before its first turn; its arrays have the usual shapes.

    No network is traced, which would take seconds.
    """
    context = RolloutContext(task.env, task.params, task.dialogue, None, task.rules)
    keys = rollout_keys(jax.random.key(0), num_groups, group_size)
    args = keys.level[0], task.params, keys.is_held_out[0]
    level = jax.eval_shape(task.env.draw_level, *args)
    num_rows = num_groups * group_size
    states = jax.tree.map(lambda x: jnp.zeros((num_rows, *x.shape), x.dtype), level)
    rollout = to_trajectory(context, start_from(context, states), states, keys.noise)
    picture = task.dialogue.picture
    if not isinstance(picture, HostPicture):
        return rollout
    return rollout.replace(
        images=no_images(picture, model, num_rows, task.rules.budget.max_turns)
    )


def lower(parts: Parts, name: str, batch: Trajectory) -> list[jax.stages.Lowered]:
    """The programs of a run before they are compiled; one, or one for each game.

    Args:
      parts: whose devices may be described ones.
      name: one of `PROGRAMS`.
      batch: description of the batch that an update learns from.
    """
    learner = parts.learner
    key = jax.eval_shape(lambda: jax.random.key(0))
    if name == "update":
        fixed = learner.frozen, learner.numbers
        state = learner.state.replace(acting_snapshot=None)
        return [learner.update.lower(*fixed, state, batch, key)]
    played = learner.played
    if name == "rollout":
        played = describe(played, on_mesh(played, parts.players))
    return [_lower_rollout(task, name, played) for task in parts.tasks]


def _lower_rollout(task: Task, name: str, played: Params) -> jax.stages.Lowered:
    def inputs():
        if name == "rollout":
            return task.dialogue, task.training.keys(jax.random.key(0))
        return task.dialogue, task.validation.keys(0)

    rollouts = task.training if name == "rollout" else task.validation
    return rollouts.collect.lower(played, *jax.eval_shape(inputs))
