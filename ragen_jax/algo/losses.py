"""Loss terms per token, and the weights they are added up with.

The loss of a minibatch is `sum(weights * terms)`, with weights from an entry of
`AGGREGATIONS` computed once for the whole minibatch, so that the losses of its
microbatches add up to its loss. Terms and their gradients are 0 where `mask` is False,
for any inputs there. Policy losses are called as

    loss(log_probs, old_log_probs, advantages, mask, *, <options>) -> terms, clipped

and KL estimators as `estimator(log_probs, ref_log_probs, mask) -> terms`.

Sources: PPO, arXiv 1707.06347; dual clip, arXiv 1912.09729; asymmetric clipping, DAPO,
arXiv 2503.14476, used by StarPO-S, arXiv 2504.20073 section 4.3; KL estimators,
Schulman 2020 ("Approximating KL divergence"); clamps as in veRL.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.masked import masked_mean
from ragen_jax.registry.functions import Table
from ragen_jax.registry.numbers import Number

# Bound on a difference of log-probabilities before it is exponentiated (veRL).
_MAX_LOG_RATIO = 20.0
# Bound on one token's k3 estimate (veRL).
_MAX_K3 = 10.0


def probability_ratio(
    log_probs: Float[Array, "*shape"], old_log_probs: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """`exp(clip(log_probs - old_log_probs, -20, 20))`."""
    return _bounded_exp(log_probs - old_log_probs)


def ppo(
    log_probs: Float[Array, "b T"],
    old_log_probs: Float[Array, "b T"],
    advantages: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
    *,
    clip_low: Number,
    clip_high: Number,
    dual_clip: Number | None,
) -> tuple[Float[Array, "b T"], Bool[Array, "b T"]]:
    """PPO's loss with a ratio clipped to `[1 - clip_low, 1 + clip_high]`.

        loss = max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high))
        where A < 0: min(loss, -A * dual_clip)

    Args:
      log_probs, old_log_probs: of the policy, and what the ratio is taken against.
      advantages: per token.
      mask: tokens trained on.
      clip_low, clip_high: how far the ratio may move.
      dual_clip: bound on the ratio of bad tokens, above 1 (3 in RAGEN); None: off.

    Returns:
      The loss, and whether clipping changed it (such a token has no gradient).
    """
    ratio = _bounded_exp(_masked_difference(log_probs, old_log_probs, mask))
    advantages = jnp.where(mask, advantages, 0.0)
    loss, is_clipped = _clipped(ratio, advantages, clip_low, clip_high)
    if dual_clip is not None:
        bound = -advantages * dual_clip
        is_beyond = (advantages < 0) & (loss > bound)
        loss, is_clipped = jnp.where(is_beyond, bound, loss), is_clipped | is_beyond
    return loss, is_clipped


def gspo(
    log_probs: Float[Array, "b T"],
    old_log_probs: Float[Array, "b T"],
    advantages: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
    *,
    clip_low: Number,
    clip_high: Number,
) -> tuple[Float[Array, "b T"], Bool[Array, "b T"]]:
    """PPO's loss with one ratio per row (GSPO, arXiv 2507.18071, token form).

        s = exp(mean over the row's trained tokens of log_probs - old_log_probs)
        ratio_t = stop_gradient(s) * exp(log_probs_t - stop_gradient(log_probs_t))

    The row is the whole episode, all turns of it. Clip widths of this mean are small:
    3e-4 and 4e-4 in the paper. Meant for the aggregation "seq_mean_token_mean".

    Args, returns: as of `ppo`.
    """
    difference = _masked_difference(log_probs, old_log_probs, mask)
    mean = jax.lax.stop_gradient(masked_mean(difference, mask, axis=1))[:, None]
    # The value of `mean`, the gradient of the token's own log-probability.
    ratio = _bounded_exp(mean + (difference - jax.lax.stop_gradient(difference)))
    advantages = jnp.where(mask, advantages, 0.0)
    return _clipped(ratio, advantages, clip_low, clip_high)


def cispo(
    log_probs: Float[Array, "b T"],
    old_log_probs: Float[Array, "b T"],
    advantages: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
    *,
    clip_low: Number,
    clip_high: Number,
) -> tuple[Float[Array, "b T"], Bool[Array, "b T"]]:
    """REINFORCE with a clipped importance weight (CISPO, arXiv 2506.13585).

        loss = -stop_gradient(clip(ratio, 1 - clip_low, 1 + clip_high)) * A * log_probs

    Every token keeps a gradient, rare ones too. The paper leaves the lower side open:
    `clip_low = 1`.

    Returns:
      The loss, and whether the weight was clipped (the gradient is not lost by it).
    """
    ratio = _bounded_exp(_masked_difference(log_probs, old_log_probs, mask))
    weight = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    log_probs = jnp.where(mask, log_probs, 0.0)
    advantages = jnp.where(mask, advantages, 0.0)
    loss = -jax.lax.stop_gradient(weight) * advantages * log_probs
    return loss, mask & (weight != ratio)


def importance_weights(
    old_log_probs: Float[Array, "*shape"],
    sample_log_probs: Float[Array, "*shape"],
    *,
    cap: Number | None,
) -> Float[Array, "*shape"]:
    """Truncated importance weights `min(pi_old / pi_sampled, cap)`; 1 without a cap.

    They correct for a sampler whose probabilities are not quite the learner's; the cap
    bounds the variance (truncated importance sampling, Ionides 2008).
    """
    if cap is None:
        return jnp.ones_like(old_log_probs)
    return jnp.minimum(probability_ratio(old_log_probs, sample_log_probs), cap)


def k1(
    log_probs: Float[Array, "b T"],
    ref_log_probs: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
) -> Float[Array, "b T"]:
    """`log p - log q`: unbiased as a number. As a loss its gradient is 0 on average."""
    return _masked_difference(log_probs, ref_log_probs, mask)


def absolute(
    log_probs: Float[Array, "b T"],
    ref_log_probs: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
) -> Float[Array, "b T"]:
    """`|log p - log q|`."""
    return jnp.abs(_masked_difference(log_probs, ref_log_probs, mask))


def k2(
    log_probs: Float[Array, "b T"],
    ref_log_probs: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
) -> Float[Array, "b T"]:
    """`(log p - log q)^2 / 2`: biased, but its mean gradient is that of the KL."""
    return 0.5 * _masked_difference(log_probs, ref_log_probs, mask) ** 2


def k3(
    log_probs: Float[Array, "b T"],
    ref_log_probs: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
) -> Float[Array, "b T"]:
    """`exp(d) - d - 1` with `d = log q - log p`: unbiased, never negative, less noisy.

    `d` is held within 20 and the result below 10; beyond that there is no gradient.
    """
    difference = _masked_difference(ref_log_probs, log_probs, mask)
    difference = jnp.clip(difference, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return jnp.minimum(jnp.expm1(difference) - difference, _MAX_K3)


def k1_straight_through(
    log_probs: Float[Array, "b T"],
    ref_log_probs: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
) -> Float[Array, "b T"]:
    """The value of `k1`, the gradient of `k2`."""
    return _straight_through(k1, log_probs, ref_log_probs, mask)


def k3_straight_through(
    log_probs: Float[Array, "b T"],
    ref_log_probs: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
) -> Float[Array, "b T"]:
    """The value of `k3`, the gradient of `k2`."""
    return _straight_through(k3, log_probs, ref_log_probs, mask)


def clipped_value_loss(
    values: Float[Array, "b T"],
    old_values: Float[Array, "b T"],
    returns: Float[Array, "b T"],
    mask: Bool[Array, "b T"],
    *,
    clip_value: Number | None,
) -> tuple[Float[Array, "b T"], Bool[Array, "b T"]]:
    """The critic's loss, its step held within `clip_value` of the old estimate.

        loss = max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) / 2, c = clip_value

    Args:
      values, old_values: the critic's, now and when the iteration began.
      returns: its targets.
      mask: tokens trained on.
      clip_value: 0.5 in RAGEN; None: off.

    Returns:
      The loss, and whether clipping changed it (such a token has no gradient).
    """
    unclipped = _masked_difference(values, returns, mask) ** 2
    if clip_value is None:
        return 0.5 * unclipped, jnp.zeros(mask.shape, bool)
    held = jnp.clip(values, old_values - clip_value, old_values + clip_value)
    clipped = _masked_difference(held, returns, mask) ** 2
    return 0.5 * jnp.maximum(unclipped, clipped), clipped > unclipped


def token_mean(mask: Bool[Array, "M T"]) -> Float[Array, "M T"]:
    """Every trained token weighs the same."""
    weights = mask.astype(jnp.float32)
    return weights / jnp.maximum(jnp.sum(weights), 1.0)


def seq_mean_token_mean(mask: Bool[Array, "M T"]) -> Float[Array, "M T"]:
    """Every row with trained tokens weighs the same, as do the tokens of a row."""
    lengths = jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.float32)
    return seq_mean_token_sum(mask) / jnp.maximum(lengths, 1.0)


def seq_mean_token_sum(mask: Bool[Array, "M T"]) -> Float[Array, "M T"]:
    """Mean over the rows with trained tokens of the sum over their tokens."""
    num_rows = jnp.sum(jnp.any(mask, axis=1), dtype=jnp.float32)
    return mask.astype(jnp.float32) / jnp.maximum(num_rows, 1.0)


def seq_mean_token_sum_norm(mask: Bool[Array, "M T"]) -> Float[Array, "M T"]:
    """`seq_mean_token_sum / T` (Dr. GRPO): long replies are not made cheaper per token.

    `T` is the row's full width, padding included: pass rows of one width only.
    """
    return seq_mean_token_sum(mask) / mask.shape[1]


def _bounded_exp(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.exp(jnp.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))


def _masked_difference(
    x: Float[Array, "b T"], y: Float[Array, "b T"], mask: Bool[Array, "b T"]
) -> Float[Array, "b T"]:
    """`x - y`, and 0 off the mask, before anything can make it not-a-number there."""
    return jnp.where(mask, x - y, 0.0)


def _clipped(
    ratio: Float[Array, "b T"],
    advantages: Float[Array, "b T"],
    clip_low: Number,
    clip_high: Number,
) -> tuple[Float[Array, "b T"], Bool[Array, "b T"]]:
    unclipped = -advantages * ratio
    clipped = -advantages * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return jnp.maximum(unclipped, clipped), clipped > unclipped


def _straight_through(estimator, log_probs, ref_log_probs, mask):
    value = jax.lax.stop_gradient(estimator(log_probs, ref_log_probs, mask))
    pull = k2(log_probs, ref_log_probs, mask)
    return value + (pull - jax.lax.stop_gradient(pull))


POLICY_LOSSES = Table(
    {"ppo": ppo, "gspo": gspo, "cispo": cispo},
    data=("log_probs", "old_log_probs", "advantages", "mask"),
)
KL_ESTIMATORS = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "abs": absolute,
    "k1+": k1_straight_through,
    "k3+": k3_straight_through,
}
AGGREGATIONS = {
    "token_mean": token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "seq_mean_token_sum_norm": seq_mean_token_sum_norm,
}
