"""Credit assignment: from the rewards of episodes to advantages per token.

In: arrays by name, whose `mask` is empty in dropped rows, and the networks'
log-probabilities and values. Out: an `Estimate`. Token rewards, the KL penalty, the
estimator, then the factors that multiply its advantages, in RAGEN's order: soft
reweighting of groups, the filter's loss scale, length weighting, the zeroed task
advantage. Factors touch the policy loss only: entropy and KL terms are not scaled.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.losses import KL_ESTIMATORS
from ragen_jax.algo.masked import masked_mean, masked_sum, masked_variance
from ragen_jax.algo.rewards import (
    REWARD_PLACEMENTS,
    REWARDS,
    adapt_kl_coeff,
    penalize_kl,
)
from ragen_jax.algo.segments import Estimate, takes_part
from ragen_jax.registry.functions import Table, call
from ragen_jax.registry.numbers import Number

# The penalty is a term of the loss, or is taken off every token's reward.
KL_PLACEMENTS = ("loss", "reward")


@dataclasses.dataclass(frozen=True)
class KLPenalty:
    """Settings of the KL penalty, which holds the policy near the reference.

    Attributes:
      placement: one of `KL_PLACEMENTS`; None: off, and no reference is kept.
      coeff: the weight, at the start if it adapts.
      estimator: entry of `KL_ESTIMATORS`.
      target: KL per token that an adaptive weight holds. None: the weight is fixed.
      horizon: episodes over which it adapts.
    """

    placement: str | None
    coeff: Number
    estimator: str
    target: Number | None
    horizon: Number

    def estimate(self, log_probs, ref_log_probs, mask) -> Float[Array, "b T"]:
        """KL estimate per token."""
        return KL_ESTIMATORS[self.estimator](log_probs, ref_log_probs, mask)

    def adapt(self, kl_coeff, kl, num_rows: Int[Array, ""]) -> Float[Array, ""]:
        """The weight of the next iteration; `kl` was measured on `num_rows` rows."""
        if self.target is None:
            return kl_coeff
        return adapt_kl_coeff(
            kl_coeff,
            kl,
            num_rows=num_rows,
            kl_target=self.target,
            kl_horizon=self.horizon,
        )


@dataclasses.dataclass(frozen=True)
class CreditAssignment:
    """Settings of credit assignment, the section `algo` of a configuration.

    Attributes:
      reward: entry of `REWARDS`; None: what the game pays.
      advantage, reward_placement: entries of `ADVANTAGES` and `REWARD_PLACEMENTS`.
      weigh_groups, weigh_lengths, zero_task: see `weigh`.
      options: every key of the section; the two entries read those they name.
    """

    reward: str | None
    advantage: str
    reward_placement: str
    weigh_groups: bool
    weigh_lengths: bool
    zero_task: bool
    options: Mapping[str, Any]

    def replace_rewards(
        self, rewards: Float[Array, "B K"], data: Mapping[str, Any]
    ) -> Float[Array, "B K"]:
        """The rewards of turns that are learned from, in place of the game's.

        Args:
          rewards: of the game.
          data: see `EPISODE_DATA`.

        Raises:
          ValueError: the user's function does not return [B, K].
        """
        if self.reward is None:
            return rewards
        replaced = jnp.asarray(
            call(REWARDS, self.reward, self.options, rewards=rewards, **data)
        )
        if replaced.shape != rewards.shape:
            raise ValueError(
                f"algo.reward = {self.reward!r} returns an array of shape "
                f"{replaced.shape}; it must be {rewards.shape}: rows x turns"
            )
        return jnp.where(data["played"], replaced.astype(jnp.float32), 0.0)

    def assign(
        self,
        data: Mapping[str, Any],
        *,
        old_log_probs: Float[Array, "B T"],
        ref_log_probs: Float[Array, "B T"] | None,
        values: Float[Array, "B T"] | None,
        loss_scale: Float[Array, ""],
        kl_penalty: KLPenalty,
        kl_coeff: Float[Array, ""],
    ) -> tuple[Estimate, Float[Array, ""]]:
        """Advantages and returns, and the mean KL per token taken off the reward.

        Args:
          data: see `EPISODE_DATA`.
          old_log_probs, ref_log_probs, values: the networks' numbers per token, None
            where not needed.
          loss_scale: see `weigh`.
          kl_penalty, kl_coeff: settings and present weight of the KL penalty.
        """
        mask, mean_kl = data["mask"], jnp.zeros(())
        rewards = call(REWARD_PLACEMENTS, self.reward_placement, self.options, **data)
        # Before the estimator, which then discounts and whitens the penalty as well.
        if kl_penalty.placement == "reward":
            kl = kl_penalty.estimate(old_log_probs, ref_log_probs, mask)
            rewards = penalize_kl(rewards, kl, mask, kl_coeff=kl_coeff)
            mean_kl = masked_mean(kl, mask)
        given = dict(data, rewards=rewards, values=values)
        estimate = call(ADVANTAGES, self.advantage, self.options, **given)
        advantages = weigh(
            estimate.advantages,
            rewards,
            mask,
            group_size=data["group_size"],
            loss_scale=loss_scale,
            weigh_groups=self.weigh_groups,
            weigh_lengths=self.weigh_lengths,
            zero_task=self.zero_task,
        )
        return estimate.replace(advantages=advantages), mean_kl


# Added to the largest standard deviation and to lengths (RAGEN).
_EPSILON = 1e-6


def group_std_weights(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], *, group_size: int
) -> Float[Array, " B"]:
    """`std of the group's scores / (largest such std + 1e-6)`: a filter made soft.

    Scores are sums of token rewards, over the rows that take part, n - 1 in the
    standard deviation; a group of one counts as 1 (RAGEN), one without rows is 0.
    """
    scores = masked_sum(rewards, mask, axis=1).reshape(-1, group_size)
    counts = takes_part(mask).reshape(-1, group_size)
    std = jnp.sqrt(masked_variance(scores, counts, axis=1, ddof=1))
    # As in `advantages`: a group of one has no spread, and is not switched off.
    std = jnp.where(jnp.sum(counts, axis=1) == 1, 1.0, std)
    return jnp.repeat(std / (jnp.max(std) + _EPSILON), group_size)


def length_weights(mask: Bool[Array, "B T"]) -> Float[Array, " B"]:
    """`mean length / (length + 1e-6)`, lengths in trained tokens.

    The mean is over the rows that have any; the others' weight is 0. Every episode then
    weighs the same in a mean over tokens.
    """
    lengths = jnp.sum(mask, axis=1, dtype=jnp.float32)
    mean = masked_mean(lengths, lengths > 0)
    return jnp.where(lengths > 0, mean / (lengths + _EPSILON), 0.0)


def none(kept_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """1: a step counts the same however few groups it saw (RAGEN's default)."""
    return jnp.ones_like(kept_ratio)


def linear(kept_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """The share of groups kept: as if dropped groups had an advantage of 0."""
    return kept_ratio


def sqrt(kept_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """Square root of the share of groups kept, as a mean's noise shrinks with size."""
    return jnp.sqrt(kept_ratio)


def rho(kept_ratio: Float[Array, ""], *, top_p: Number) -> Float[Array, ""]:
    """The share of the score's mass kept, as the paper has it (arXiv 2604.06268)."""
    return jnp.full_like(kept_ratio, top_p)


def weigh(
    advantages: Float[Array, "B T"],
    rewards: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    group_size: int,
    loss_scale: Float[Array, ""],
    weigh_groups: bool,
    weigh_lengths: bool,
    zero_task: bool,
) -> Float[Array, "B T"]:
    """Advantages times every factor that is switched on.

    Args:
      advantages: from an estimator.
      rewards, mask: per token, as the estimator read them.
      group_size: rows per group.
      loss_scale: from an entry of `FILTER_LOSS_SCALES`.
      weigh_groups: multiply by `group_std_weights`.
      weigh_lengths: multiply by `length_weights`.
      zero_task: ablation, only entropy and KL terms are left.
    """
    if weigh_groups:
        weights = group_std_weights(rewards, mask, group_size=group_size)
        advantages = advantages * weights[:, None]
    advantages = advantages * loss_scale
    if weigh_lengths:
        advantages = advantages * length_weights(mask)[:, None]
    return jnp.zeros_like(advantages) if zero_task else advantages


# scale(kept_ratio, *, <options>) with the share of groups the filter kept.
FILTER_LOSS_SCALES = Table(
    {"none": none, "linear": linear, "sqrt": sqrt, "rho": rho}, data=("kept_ratio",)
)
