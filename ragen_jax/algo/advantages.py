"""How much better than expected each sampled token did.

In: a trajectory. Out: one advantage per token, 0 where `loss_mask` is False. Every
entry of `ADVANTAGES` is called as

    estimator(trajectory, *, group_size) -> Float[B, T]

and whatever an entry needs beyond that (critic values, discounts) are keyword arguments
of its own, bound by the caller that has them. Rows that the group filter dropped arrive
with an empty `loss_mask`: statistics over a batch leave them out by themselves.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ragen_jax.algo.masked import masked_mean, masked_variance
from ragen_jax.algo.rewards import episode_rewards
from ragen_jax.types import Trajectory

# Added to the standard deviation that scores are divided by (RAGEN, veRL).
_STD_EPSILON = 1e-6


def grpo(trajectory: Trajectory, *, group_size: int) -> Float[Array, "B T"]:
    """Group-relative advantages over whole episodes (GRPO, arXiv 2402.03300).

    An episode's score is its summed reward, format penalties included;

        advantage = (score - mean) / (std + 1e-6)

    with the mean and the standard deviation (n - 1 in the denominator) of the group's
    scores. It is the same at each of the episode's sampled tokens. A group of one has
    mean 0 and standard deviation 1, as in RAGEN: its advantage is its score.
    """
    scores = episode_rewards(trajectory.turns).reshape(-1, group_size)
    if group_size == 1:
        mean, std = jnp.zeros_like(scores), jnp.ones_like(scores)
    else:
        everyone = jnp.ones(scores.shape, bool)
        mean = masked_mean(scores, everyone, axis=1)[:, None]
        std = jnp.sqrt(masked_variance(scores, everyone, axis=1, ddof=1))[:, None]
    advantages = ((scores - mean) / (std + _STD_EPSILON)).reshape(-1)
    return jnp.where(trajectory.loss_mask, advantages[:, None], 0.0)


ADVANTAGES = {"grpo": grpo}
