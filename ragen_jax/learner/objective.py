"""What a minibatch is asked to minimise.

In: the policy's log-probabilities as a function, some rows of samples. Out: their share
of the minibatch's loss and the sums its metrics are made of. Nothing here knows how
rows become minibatches.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from ragen_jax.algo.losses import clipped_policy_loss, importance_weights
from ragen_jax.algo.masked import masked_sum
from ragen_jax.types import Params, Trajectory


@struct.dataclass
class Samples:
    """What the loss needs to know of each row.

    Attributes:
      tokens: the dialogue; 0 behind its last token.
      mask: the token is trained on.
      advantages: per token, 0 where not trained on.
      sample_log_probs: the sampler's log-probability of each trained token.
      old_log_probs: denominator of the ratio: the sampler's log-probabilities, or the
        learner's own at the start of the iteration when importance weights are on.
    """

    tokens: Int[Array, "b T"]
    mask: Bool[Array, "b T"]
    advantages: Float[Array, "b T"]
    sample_log_probs: Float[Array, "b T"]
    old_log_probs: Float[Array, "b T"]


@struct.dataclass
class TokenSums:
    """Sums over trained tokens; divide by `num_tokens` to get means.

    Attributes:
      policy_loss, entropy, is_clipped, kl: of the metrics of that name.
      difference: |learner's - sampler's log-probability|.
      max_difference: the largest of them (a maximum, not a sum).
      num_tokens: how many tokens were summed over.
    """

    policy_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    is_clipped: Float[Array, ""]
    kl: Float[Array, ""]
    difference: Float[Array, ""]
    max_difference: Float[Array, ""]
    num_tokens: Float[Array, ""]

    @classmethod
    def zero(cls) -> "TokenSums":
        return cls(*(jnp.zeros((), jnp.float32) for _ in range(7)))

    def plus(self, other: "TokenSums") -> "TokenSums":
        largest = jnp.maximum(self.max_difference, other.max_difference)
        return jax.tree.map(jnp.add, self, other).replace(max_difference=largest)


def gather_samples(trajectory: Trajectory, advantages: Float[Array, "B T"]) -> Samples:
    """The loss's view of a trajectory; padding, which may be anything, becomes 0."""
    tokens, mask = trajectory.tokens, trajectory.loss_mask
    sampled = jnp.where(mask, trajectory.sample_log_probs, 0.0)
    order = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    return Samples(
        tokens=jnp.where(order[None] < trajectory.lengths[:, None], tokens, 0),
        mask=mask,
        advantages=advantages,
        sample_log_probs=sampled,
        old_log_probs=sampled,
    )


def loss(
    log_prob_fn,
    params: Params,
    samples: Samples,
    num_tokens: Float[Array, ""],
    *,
    clip_low: float,
    clip_high: float,
    entropy_coeff: float,
    importance_cap: float | None,
) -> tuple[Float[Array, ""], TokenSums]:
    """A microbatch's share of the loss of a minibatch.

        loss = sum over trained tokens of (policy loss - entropy_coeff * entropy)
               / num_tokens

    Args:
      log_prob_fn: (params, tokens) -> log-probabilities and entropies, see
        `token_log_probs`.
      params: the policy's.
      samples: the microbatch.
      num_tokens: trained tokens of the whole minibatch.
      clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
      entropy_coeff: weight of the entropy bonus.
      importance_cap: cap of the truncated importance weights against the sampler. It
        costs one more forward pass over the kept rows per iteration. None: off, the
        sampler's log-probabilities are the old ones.

    Returns:
      The share of the loss, and the sums over the microbatch's trained tokens.
    """
    log_probs, entropy = log_prob_fn(params, samples.tokens)
    policy_loss, is_clipped = clipped_policy_loss(
        log_probs,
        samples.old_log_probs,
        samples.advantages,
        clip_low=clip_low,
        clip_high=clip_high,
    )
    if importance_cap is not None:
        policy_loss = policy_loss * importance_weights(
            samples.old_log_probs, samples.sample_log_probs, cap=importance_cap
        )
    total = masked_sum(policy_loss - entropy_coeff * entropy, samples.mask)
    difference = jnp.abs(log_probs - samples.sample_log_probs)
    sums = TokenSums(
        policy_loss=masked_sum(policy_loss, samples.mask),
        entropy=masked_sum(entropy, samples.mask),
        is_clipped=masked_sum(is_clipped.astype(jnp.float32), samples.mask),
        kl=masked_sum(samples.old_log_probs - log_probs, samples.mask),
        difference=masked_sum(difference, samples.mask),
        max_difference=jnp.max(jnp.where(samples.mask, difference, 0.0)),
        num_tokens=jnp.sum(samples.mask, dtype=jnp.float32),
    )
    return total / num_tokens, sums
