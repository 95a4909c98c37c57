"""What an episode was worth, from the per-turn records.

Two sums, and they are not interchangeable: the group filter looks at what the game paid
(`raw_episode_rewards`), the learner at what the policy is to be blamed or praised for
(`episode_rewards`). Reference: RAGEN's reward placement, arXiv 2504.20073 section 3.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ragen_jax.algo.masked import masked_sum
from ragen_jax.types import Turns


def raw_episode_rewards(turns: Turns) -> Float[Array, " B"]:
    """Sum of the environment's rewards over the turns played, without penalties."""
    return masked_sum(turns.reward.astype(jnp.float32), turns.played, axis=1)


def episode_rewards(turns: Turns) -> Float[Array, " B"]:
    """Sum of the environment's rewards and of the format penalties (<= 0)."""
    penalties = masked_sum(turns.penalty.astype(jnp.float32), turns.played, axis=1)
    return raw_episode_rewards(turns) + penalties
