"""The training loss of a minibatch.

In: the networks' predictions for some rows, and those rows' samples. Out: their share
of the minibatch's loss and the sums that its metrics are computed from. How rows become
minibatches is not decided here.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from ragen_jax.algo.credit import KLPenalty
from ragen_jax.algo.losses import (
    AGGREGATIONS,
    POLICY_LOSSES,
    clipped_value_loss,
    importance_weights,
)
from ragen_jax.algo.masked import masked_sum
from ragen_jax.algo.mismatch import MismatchSums, mismatch_sums
from ragen_jax.registry.functions import call
from ragen_jax.registry.numbers import Number

# Sources of the old log-probabilities of the sampled tokens.
OLD_LOG_PROBS = ("sampler", "learner")


@struct.dataclass
class TokenStats:
    """The networks' numbers for each token before any step; None where not needed.

    Attributes:
      old_log_probs: denominators of the probability ratio: the sampler's
        log-probabilities, or the learner's where importance weights correct for the
        difference.
      ref_log_probs: the reference policy's.
      values: the critic's.
    """

    old_log_probs: Float[Array, "B T"]
    ref_log_probs: Float[Array, "B T"] | None = None
    values: Float[Array, "B T"] | None = None


@struct.dataclass
class Samples:
    """The loss's inputs, row by row.

    Attributes:
      tokens: the dialogue; 0 after its last token.
      mask: the token is trained on.
      advantages: per token, 0 where not trained on.
      returns: the critic's targets; None without a critic.
      sample_log_probs: the sampler's log-probability of each trained token.
      token_stats: the networks' numbers before any step.
      message_lengths: tokens of each row's first message; None where none is shared.
    """

    tokens: Int[Array, "b T"]
    mask: Bool[Array, "b T"]
    advantages: Float[Array, "b T"]
    returns: Float[Array, "b T"] | None
    sample_log_probs: Float[Array, "b T"]
    token_stats: TokenStats
    message_lengths: Int[Array, " b"] | None = None


@struct.dataclass
class Predictions:
    """The networks' outputs under the current parameters; None: not of this network."""

    log_probs: Float[Array, "b T"] | None = None
    entropy: Float[Array, "b T"] | None = None
    values: Float[Array, "b T"] | None = None


@struct.dataclass
class TokenSums:
    """Sums over trained tokens; divide by `num_tokens` to get means.

    Attributes:
      policy_loss, entropy, is_clipped: of the metrics of that name.
      kl: old - new log-probability.
      ref_kl: the KL penalty's estimate, 0 unless it is part of the loss.
      value_loss, value_is_clipped, value: the critic's, 0 without one.
      mismatch: learner against sampler.
      num_tokens: how many tokens were summed over.
      loss: the minimised number; it needs no division.
    """

    policy_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    is_clipped: Float[Array, ""]
    kl: Float[Array, ""]
    ref_kl: Float[Array, ""]
    value_loss: Float[Array, ""]
    value_is_clipped: Float[Array, ""]
    value: Float[Array, ""]
    mismatch: MismatchSums
    num_tokens: Float[Array, ""]
    loss: Float[Array, ""]

    @classmethod
    def zero(cls) -> "TokenSums":
        names = [field.name for field in dataclasses.fields(cls)]
        sums = {name: jnp.zeros((), jnp.float32) for name in names}
        return cls(**sums | {"mismatch": MismatchSums.zero()})

    def plus(self, other: "TokenSums") -> "TokenSums":
        mismatch = self.mismatch.plus(other.mismatch)
        return jax.tree.map(jnp.add, self, other).replace(mismatch=mismatch)

    def over(self, axis: str) -> "TokenSums":
        """Of the rows of all devices along an axis of the mesh, inside `shard_map`."""
        mismatch = self.mismatch.over(axis)
        return jax.lax.psum(self, axis).replace(mismatch=mismatch)


@dataclasses.dataclass(frozen=True)
class Objective:
    """The loss; see `configs/base.py` for what the settings mean.

        loss = sum over trained tokens of weight * (policy loss - entropy_coeff *
               entropy + kl_coeff * KL + value_coeff * value loss)

    with weights of the whole minibatch that `aggregation` chooses.

    Attributes:
      policy, aggregation: entries of `POLICY_LOSSES` and `AGGREGATIONS`.
      entropy_coeff: weight of the entropy bonus.
      old_log_probs: one of OLD_LOG_PROBS. The "learner"'s cost one more forward pass
        over the kept rows per iteration.
      importance_cap: cap of the truncated importance weights of the learner's old
        log-probabilities against the sampler's. None: off.
      kl_penalty: its term is part of the loss if so placed.
      clip_value: see `clipped_value_loss`.
      value_coeff: weight of the critic's loss.
      options: every key of the section `loss`; the policy loss reads those it names.
    """

    policy: str
    aggregation: str
    entropy_coeff: Number
    old_log_probs: str
    importance_cap: Number | None
    kl_penalty: KLPenalty
    clip_value: Number | None
    value_coeff: Number
    options: Mapping[str, Any]

    def token_weights(self, mask: Bool[Array, "M T"]) -> Float[Array, "M T"]:
        return AGGREGATIONS[self.aggregation](mask)

    def loss(
        self,
        now: Predictions,
        samples: Samples,
        token_weights: Float[Array, "b T"],
        kl_coeff: Float[Array, ""],
    ) -> tuple[Float[Array, ""], TokenSums]:
        """A microbatch's share of the loss, and the sums over its trained tokens.

        The terms of the policy and of the critic add up, so that two calls, each with
        one of them in `now`, give the same sum.
        """
        mask, terms, sums = samples.mask, 0.0, TokenSums.zero()
        if now.log_probs is not None:
            some, sums = self._policy_terms(now, samples, kl_coeff)
            terms = terms + some
        if now.values is not None:
            some, is_clipped = clipped_value_loss(
                now.values,
                samples.token_stats.values,
                samples.returns,
                mask,
                clip_value=self.clip_value,
            )
            terms = terms + self.value_coeff * some
            sums = sums.replace(
                value_loss=masked_sum(some, mask),
                value_is_clipped=masked_sum(is_clipped.astype(jnp.float32), mask),
                value=masked_sum(now.values, mask),
            )
        loss = masked_sum(token_weights * terms, mask)
        return loss, sums.replace(loss=loss)

    def _policy_terms(
        self, now: Predictions, samples: Samples, kl_coeff: Float[Array, ""]
    ) -> tuple[Float[Array, "b T"], TokenSums]:
        mask, before = samples.mask, samples.token_stats
        policy_loss, is_clipped = self._policy_loss(now.log_probs, samples)
        # Advantages scale the first term alone.
        terms = policy_loss - self.entropy_coeff * now.entropy
        ref_kl = jnp.zeros(mask.shape)
        if self.kl_penalty.placement == "loss":
            ref_kl = self.kl_penalty.estimate(now.log_probs, before.ref_log_probs, mask)
            terms = terms + kl_coeff * ref_kl
        sums = TokenSums.zero().replace(
            policy_loss=masked_sum(policy_loss, mask),
            entropy=masked_sum(now.entropy, mask),
            is_clipped=masked_sum(is_clipped.astype(jnp.float32), mask),
            kl=masked_sum(before.old_log_probs - now.log_probs, mask),
            ref_kl=masked_sum(ref_kl, mask),
            mismatch=mismatch_sums(
                now.log_probs, samples.sample_log_probs, mask, self.importance_cap
            ),
            num_tokens=jnp.sum(mask, dtype=jnp.float32),
        )
        return terms, sums

    def _policy_loss(self, log_probs, samples: Samples):
        old = samples.token_stats.old_log_probs
        loss, is_clipped = call(
            POLICY_LOSSES,
            self.policy,
            self.options,
            log_probs=log_probs,
            old_log_probs=old,
            advantages=samples.advantages,
            mask=samples.mask,
        )
        # On the whole term, clipped or not: they correct for who sampled the token.
        factors = importance_weights(
            old, samples.sample_log_probs, cap=self.importance_cap
        )
        return loss * factors, is_clipped
