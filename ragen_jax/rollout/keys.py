"""Random keys of rollouts: levels, noise of the game, sampling.

In: a step's key, or the number of a validation sample. Out: `RolloutKeys`. The keys of
a group or row do not depend on how many there are.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, Key

from envs.base import TRAINING, VALIDATION
from ragen_jax import rngs


@struct.dataclass
class RolloutKeys:
    """Random keys of a rollout: `B` rows in `G` groups.

    Attributes:
      level: makes the level that the rows of a group share.
      noise: slips and payouts; folded with the turn, then the action's index.
      sample: the sampler's draws; folded with the turn, then the reply position.
      is_held_out: the level is one of validation, not of training.
    """

    level: Key[Array, " G"]
    noise: Key[Array, " B"]
    sample: Key[Array, " B"]
    is_held_out: Bool[Array, " G"]

    @property
    def split(self) -> str:
        """Part of the levels to draw from, one of `envs.base.SPLITS`; on the host."""
        return VALIDATION if jax.device_get(self.is_held_out).any() else TRAINING


def rollout_keys(
    step_key: Key[Array, ""], num_groups: int, group_size: int
) -> RolloutKeys:
    """Keys of a rollout on training levels.

    Those of a group or row do not depend on the sizes.
    """
    num_rows = num_groups * group_size
    return RolloutKeys(
        level=rngs.rows(rngs.stream(step_key, "level"), num_groups),
        noise=rngs.rows(rngs.stream(step_key, "noise"), num_rows),
        sample=rngs.rows(rngs.stream(step_key, "sample"), num_rows),
        is_held_out=jax.device_put(np.zeros(num_groups, bool)),
    )


def training_keys(
    index: int, num_groups: int, group_size: int, step_key: Key[Array, ""]
) -> RolloutKeys:
    """Keys of a rollout of the batch's task number `index`."""
    key = rngs.environment_key(step_key, index)
    return rollout_keys(key, num_groups, group_size)


def validation_keys(seed: int, num_prompts: int, sample: int = 0) -> RolloutKeys:
    """Keys of one sample of every validation prompt (`evaluation.seed`).

    The levels are held out from training. Samples share them and differ in their draws.
    The keys of prompt `g` do not depend on the number of prompts and samples.
    """
    root = rngs.stream(rngs.root_key(seed), "evaluation")
    keys = rollout_keys(rngs.sample_key(root, sample), num_prompts, 1)
    level = rngs.rows(rngs.stream(root, "level"), num_prompts)
    return keys.replace(
        level=level, is_held_out=jax.device_put(np.ones(num_prompts, bool))
    )


def spread_levels(keys: RolloutKeys, group_size: int) -> RolloutKeys:
    """The keys with one level key per row: a device may hold part of a group."""
    return keys.replace(
        level=jnp.repeat(keys.level, group_size),
        is_held_out=jnp.repeat(keys.is_held_out, group_size),
    )


def fold_turn(keys: Key[Array, " B"], turn: int | Int[Array, ""]) -> Key[Array, " B"]:
    """A turn's keys (turns from 0) from the episode's."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, turn)
