"""Difference between the sampler's and the learner's log-probabilities.

In: both log-probabilities of the sampled tokens, before any step. Out: sums that add up
over microbatches, of which `ragen_jax.learner.metrics` makes metrics. Both
policies have the same parameters then, and any difference comes from arithmetic (other
kernels, lower precision) or from truncated sampling; but for `rollout.ahead`, where the
sampler is an iteration behind.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.losses import k3, probability_ratio
from ragen_jax.algo.masked import masked_sum
from ragen_jax.registry.numbers import Number


@struct.dataclass
class MismatchSums:
    """Sums over trained tokens.

    Attributes:
      difference: |learner's - sampler's log-probability|.
      max_difference: the largest of them (a maximum, not a sum).
      kl: k3 estimates of KL(sampler || learner).
      weight, squared_weight: of `learner's / sampler's probability`.
      max_weight: the largest of them (a maximum, not a sum).
      num_truncated: weights above the cap of the importance weights.
      num_tokens: how many tokens were summed over.
    """

    difference: Float[Array, ""]
    max_difference: Float[Array, ""]
    kl: Float[Array, ""]
    weight: Float[Array, ""]
    squared_weight: Float[Array, ""]
    max_weight: Float[Array, ""]
    num_truncated: Float[Array, ""]
    num_tokens: Float[Array, ""]

    @classmethod
    def zero(cls) -> "MismatchSums":
        return cls(*(jnp.zeros((), jnp.float32) for _ in range(8)))

    def plus(self, other: "MismatchSums") -> "MismatchSums":
        return self._combine(jnp.add, jnp.maximum, other)

    def over(self, axis: str) -> "MismatchSums":
        """Of the rows of all devices along an axis of the mesh, inside `shard_map`."""
        sum_over, highest = jax.lax.psum, jax.lax.pmax
        return self._combine(lambda x: sum_over(x, axis), lambda x: highest(x, axis))

    def _combine(self, add, largest, *others: "MismatchSums") -> "MismatchSums":
        maxima = {
            name: largest(*(getattr(x, name) for x in (self, *others)))
            for name in ("max_difference", "max_weight")
        }
        return jax.tree.map(add, self, *others).replace(**maxima)


def mismatch_sums(
    log_probs: Float[Array, "b T"],
    sample_log_probs: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
    cap: Number | None = None,
) -> MismatchSums:
    """Sums over some rows: the learner's log-probabilities against the sampler's.

    Args:
      cap: of the importance weights; None: none is truncated.
    """
    log_probs = jnp.where(mask, log_probs, 0.0)
    sample_log_probs = jnp.where(mask, sample_log_probs, 0.0)
    difference = jnp.abs(log_probs - sample_log_probs)
    weights = probability_ratio(log_probs, sample_log_probs)
    return MismatchSums(
        difference=jnp.sum(difference),
        max_difference=jnp.max(difference),
        # The tokens are the sampler's, so that this estimates KL(sampler || learner).
        kl=jnp.sum(k3(sample_log_probs, log_probs, mask)),
        weight=masked_sum(weights, mask),
        squared_weight=masked_sum(weights**2, mask),
        max_weight=jnp.max(weights, initial=0.0, where=mask),
        num_truncated=masked_sum(_is_above(weights, cap), mask),
        num_tokens=jnp.sum(mask, dtype=jnp.float32),
    )


def _is_above(weights: Float[Array, "b T"], cap: Number | None) -> Float[Array, "b T"]:
    if cap is None:
        return jnp.zeros_like(weights)
    return (weights > cap).astype(jnp.float32)
