"""What multiplies advantages, after the estimator and before the loss.

In RAGEN's order: soft reweighting of groups, the filter's loss scale, length weighting,
the zeroed task advantage. They touch the policy's loss only: entropy and KL terms are
not scaled, so that with few groups kept or with a zeroed task the regularisers are what
is left.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.credit import Credit, takes_part
from ragen_jax.algo.masked import masked_mean, masked_sum, masked_variance

# Added to the largest standard deviation and to lengths (RAGEN).
_EPSILON = 1e-6


def group_std_weights(credit: Credit, *, group_size: int) -> Float[Array, " B"]:
    """`std of the group's scores / (largest such std + 1e-6)`: a filter made soft.

    Scores are sums of token rewards, over the rows that take part, n - 1 in the
    standard deviation; a group of one counts as 1 (RAGEN), one without rows is 0.
    """
    scores = masked_sum(credit.rewards, credit.loss_mask, axis=1)
    scores = scores.reshape(-1, group_size)
    mask = takes_part(credit.loss_mask).reshape(-1, group_size)
    std = jnp.sqrt(masked_variance(scores, mask, axis=1, ddof=1))
    std = jnp.where(jnp.sum(mask, axis=1) == 1, 1.0, std)
    return jnp.repeat(std / (jnp.max(std) + _EPSILON), group_size)


def length_weights(loss_mask: Bool[Array, "B T"]) -> Float[Array, " B"]:
    """`mean length / (length + 1e-6)`, lengths in trained tokens.

    The mean is over the rows that have any; the others' weight is 0. Every episode then
    weighs the same in a mean over tokens.
    """
    lengths = jnp.sum(loss_mask, axis=1, dtype=jnp.float32)
    mean = masked_mean(lengths, lengths > 0)
    return jnp.where(lengths > 0, mean / (lengths + _EPSILON), 0.0)


def none(kept_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """1: a step counts the same however few groups it saw (RAGEN's default)."""
    return jnp.ones_like(kept_ratio)


def linear(kept_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """The share of groups kept: as if the dropped had been there with advantage 0."""
    return kept_ratio


def sqrt(kept_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """Square root of the share of groups kept, as a mean's noise shrinks with size."""
    return jnp.sqrt(kept_ratio)


def rho(kept_ratio: Float[Array, ""], *, top_p: float) -> Float[Array, ""]:
    """The share of the score's mass kept, as the paper has it (arXiv 2604.06268)."""
    return jnp.full_like(kept_ratio, top_p)


def weigh(
    advantages: Float[Array, "B T"],
    credit: Credit,
    *,
    group_size: int,
    loss_scale: Float[Array, ""],
    weigh_groups: bool,
    weigh_lengths: bool,
    zero_task: bool,
) -> Float[Array, "B T"]:
    """Advantages with all that multiplies them.

    Args:
      advantages: from an estimator.
      credit: what the estimator saw.
      group_size: rows per group.
      loss_scale: from an entry of `FILTER_LOSS_SCALES`.
      weigh_groups: multiply by `group_std_weights`.
      weigh_lengths: multiply by `length_weights`.
      zero_task: the ablation that leaves nothing but entropy and KL terms.
    """
    if weigh_groups:
        weights = group_std_weights(credit, group_size=group_size)
        advantages = advantages * weights[:, None]
    advantages = advantages * loss_scale
    if weigh_lengths:
        advantages = advantages * length_weights(credit.loss_mask)[:, None]
    return jnp.zeros_like(advantages) if zero_task else advantages


# scale(kept_ratio, *, <own options>) with the share of groups the filter kept.
FILTER_LOSS_SCALES = {"none": none, "linear": linear, "sqrt": sqrt, "rho": rho}
