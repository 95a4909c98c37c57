"""Loss terms per token. Masks and reductions are the caller's business.

Sources: PPO, arXiv 1707.06347; asymmetric clipping, DAPO, arXiv 2503.14476, used by
StarPO-S, arXiv 2504.20073 section 4.3.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Bound on a difference of log-probabilities before it is exponentiated (veRL).
_MAX_LOG_RATIO = 20.0


def probability_ratio(
    log_probs: Float[Array, "*shape"], old_log_probs: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """`exp(clip(log_probs - old_log_probs, -20, 20))`."""
    difference = log_probs - old_log_probs
    return jnp.exp(jnp.clip(difference, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))


def clipped_policy_loss(
    log_probs: Float[Array, "*shape"],
    old_log_probs: Float[Array, "*shape"],
    advantages: Float[Array, "*shape"],
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[Float[Array, "*shape"], Bool[Array, "*shape"]]:
    """PPO's loss with a ratio clipped to `[1 - clip_low, 1 + clip_high]`.

        loss = max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high))

    Returns:
      The loss, and whether clipping changed it (such a token has no gradient).
    """
    ratio = probability_ratio(log_probs, old_log_probs)
    unclipped = -advantages * ratio
    clipped = -advantages * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return jnp.maximum(unclipped, clipped), clipped > unclipped


def importance_weights(
    old_log_probs: Float[Array, "*shape"],
    sample_log_probs: Float[Array, "*shape"],
    *,
    cap: float,
) -> Float[Array, "*shape"]:
    """Truncated importance weights `min(pi_old / pi_sampled, cap)`.

    They correct for a sampler whose probabilities are not quite the learner's; the cap
    bounds the variance (truncated importance sampling, Ionides 2008).
    """
    return jnp.minimum(probability_ratio(old_log_probs, sample_log_probs), cap)
