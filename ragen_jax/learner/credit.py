"""From a filtered trajectory to advantages: rewards, KL penalty, estimator, weights.

In: a trajectory without its dropped rows, and what the networks said of it. Out: an
`Estimate`. Binds an entry of each table in `algo/rewards.py` and `algo/advantages.py`
to its options.
"""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.credit import Estimate, make_credit
from ragen_jax.algo.losses import KL_ESTIMATORS
from ragen_jax.algo.masked import masked_mean
from ragen_jax.algo.options import needed_data, own_options
from ragen_jax.algo.rewards import REWARD_PLACEMENTS, adapt_kl_coeff, penalize_kl
from ragen_jax.algo.weights import weigh
from ragen_jax.types import Trajectory


@struct.dataclass
class Readings:
    """What the networks say of the kept rows before any step; None where not asked.

    Attributes:
      old_log_probs: what ratios are taken against: the sampler's log-probabilities, or
        the learner's own where importance weights correct for the difference.
      ref_log_probs: the reference policy's.
      values: the critic's.
    """

    old_log_probs: Float[Array, "B T"]
    ref_log_probs: Float[Array, "B T"] | None = None
    values: Float[Array, "B T"] | None = None


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
