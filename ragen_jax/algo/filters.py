"""Which groups are worth learning from (StarPO-S, arXiv 2504.20073 section 4.3).

Two tables: a score per group, called as `score(trajectory, *, group_size) -> Float[G]`,
and a rule that turns scores into a choice, called as `rule(scores, ...) -> Bool[G]`
with keyword arguments of its own. Scores read the environment's rewards, never
normalised or penalised ones. The kept groups stay in their original order: the choice
is a mask.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.masked import masked_variance
from ragen_jax.algo.rewards import raw_episode_rewards
from ragen_jax.types import Trajectory

# A score this small counts as zero (RAGEN).
ZERO_SCORE = 1e-10


def reward_std(trajectory: Trajectory, *, group_size: int) -> Float[Array, " G"]:
    """Standard deviation (n - 1) of the raw episode rewards; 0 for a group of one."""
    rewards = raw_episode_rewards(trajectory.turns).reshape(-1, group_size)
    everyone = jnp.ones(rewards.shape, bool)
    return jnp.sqrt(masked_variance(rewards, everyone, axis=1, ddof=1))


def top_fraction(
    scores: Float[Array, " G"], *, keep_fraction: float
) -> Bool[Array, " G"]:
    """Keep the `max(1, floor(keep_fraction * G))` groups with the largest scores.

    Groups with a score of zero may be among them. Of equal scores the earlier group
    wins; not-a-number is the smallest score.
    """
    num_groups = scores.shape[0]
    # 0.29 * 100 is 28.999...: a share meant exactly must not lose a group to rounding.
    num_kept = max(1, math.floor(keep_fraction * num_groups + 1e-9))
    best = jnp.argsort(-scores, stable=True)[:num_kept]
    return jnp.zeros(num_groups, bool).at[best].set(True)


SCORES = {"reward_std": reward_std}
RULES = {"top_fraction": top_fraction}
