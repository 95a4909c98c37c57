"""Credit assignment: from a filtered trajectory to advantages per token.

In: a trajectory without its dropped rows, and the networks' log-probabilities and
values of its tokens. Out: an `Estimate`. Token rewards, the KL penalty, the estimator,
then the weights that multiply its advantages, in RAGEN's order: soft reweighting of
groups, the filter's loss scale, length weighting, the zeroed task advantage. Weights
touch the policy loss only: entropy and KL terms are not scaled.
"""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.losses import KL_ESTIMATORS
from ragen_jax.algo.masked import masked_mean, masked_sum, masked_variance
from ragen_jax.algo.rewards import REWARD_PLACEMENTS, adapt_kl_coeff, penalize_kl
from ragen_jax.algo.segments import Credit, Estimate, Readings, make_credit, takes_part
from ragen_jax.tables import needed_data, own_options
from ragen_jax.types import Trajectory


@dataclasses.dataclass(frozen=True)
class KLPenalty:
    """How the policy is held near the reference.

    Attributes:
      placement: "loss" or "reward"; None: not at all, and no reference is kept.
      coeff: the weight, at the start if it adapts.
      estimator: entry of `KL_ESTIMATORS`.
      target: KL per token that an adaptive weight holds. None: the weight is fixed.
      horizon: episodes over which it adapts.
    """

    placement: str | None
    coeff: float
    estimator: str
    target: float | None
    horizon: int

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
    """How an episode's reward is shared out among its tokens; see `configs/base.py`.

    Attributes:
      advantage: entry of `ADVANTAGES`; gamma, lam, high_level_gamma and step_weight are
        options of some of them.
      reward_placement: entry of `REWARD_PLACEMENTS`; normalization and grouping are
        options of "episode".
      weigh_groups, weigh_lengths, zero_task: see `algo/weights.py`.
    """

    advantage: str
    gamma: float
    lam: float
    high_level_gamma: float
    step_weight: float
    reward_placement: str
    normalization: str
    grouping: str
    weigh_groups: bool
    weigh_lengths: bool
    zero_task: bool

    def assign(
        self,
        trajectory: Trajectory,
        readings: Readings,
        *,
        group_size: int,
        loss_scale: Float[Array, ""],
        kl_penalty: KLPenalty,
        kl_coeff: Float[Array, ""],
    ) -> tuple[Estimate, Float[Array, ""]]:
        """Advantages and returns, and the mean KL per token that was charged for."""
        mask = trajectory.loss_mask
        data = {"group_size": group_size, "env_index": trajectory.env_index}
        rewards = self._bound(REWARD_PLACEMENTS[self.reward_placement], data)(
            trajectory
        )
        kl = jnp.zeros(())
        if kl_penalty.placement == "reward":
            per_token = kl_penalty.estimate(
                readings.old_log_probs, readings.ref_log_probs, mask
            )
            rewards = penalize_kl(rewards, per_token, mask, kl_coeff=kl_coeff)
            kl = masked_mean(per_token, mask)
        credit = make_credit(
            trajectory,
            rewards,
            values=readings.values,
            state_hashes=trajectory.turns.state_hash,
        )
        estimate = self._bound(ADVANTAGES[self.advantage], data)(credit)
        advantages = weigh(
            estimate.advantages,
            credit,
            group_size=group_size,
            loss_scale=loss_scale,
            weigh_groups=self.weigh_groups,
            weigh_lengths=self.weigh_lengths,
            zero_task=self.zero_task,
        )
        return estimate.replace(advantages=advantages), kl

    def _bound(self, entry, data: Mapping[str, object]):
        """The entry with its options and data."""
        given = {name: getattr(self, name) for name in own_options(entry)}
        given |= {name: data[name] for name in needed_data(entry)}
        return lambda argument: entry(argument, **given)


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
