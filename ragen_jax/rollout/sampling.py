"""Sampling: logits to one token per row, with one uniform number per row.

In: a key and the logits of each row. Out: the token and its log-probability under the
temperature-scaled, untruncated distribution, which is what the learner recomputes. The
draw goes through the inverse cumulative distribution, so a row's token depends on its
own key and logits alone: not on its neighbours, the batch size or other rows' draws.

Ties: a token as probable as the last one that top-k or top-p keeps is kept as well.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

Sampler = Callable[
    [Key[Array, " B"], Float[Array, "B V"]], tuple[Int[Array, " B"], Float[Array, " B"]]
]


def sample(
    keys: Key[Array, " B"],
    logits: Float[Array, "B V"],
    *,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Draw one token per row.

    Args:
      keys: one key per row, used for one uniform number.
      logits: unscaled log-weights.
      temperature: logits are divided by it; None takes the most probable token (the
        first of equals) and reports log-probabilities at temperature 1.
      top_k: draw among the `top_k` most probable tokens only. None = off.
      top_p: draw among the smallest set of most probable tokens (after `top_k`) that
        holds this share of the probability. None or 1 = off.

    Returns:
      Token ids (int32) and float32 log-probabilities of the scaled, untruncated
      distribution. A token of probability 0 is never drawn. The uniform number has 23
      bits: probabilities below about 1e-7 are drawn too often or never.

    Raises:
      ValueError: an option is out of range.
    """
    check_options(temperature=temperature, top_k=top_k, top_p=top_p)
    logits = logits.astype(jnp.float32)
    if temperature is None:
        tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return tokens, _log_probs(logits, tokens)
    scaled = logits / temperature
    weights = jnp.exp(scaled - jnp.max(scaled, axis=-1, keepdims=True))
    if top_k is not None:
        weights = jnp.where(keep_top_k(weights, top_k), weights, 0.0)
    if top_p is not None and top_p < 1:
        weights = jnp.where(keep_top_p(weights, top_p), weights, 0.0)
    uniforms = jax.vmap(jax.random.uniform)(keys)
    tokens = jax.vmap(invert_cdf)(weights, uniforms)
    return tokens, _log_probs(scaled, tokens)


def check_options(
    *, temperature: float | None, top_k: int | None, top_p: float | None
) -> None:
    """Refuse sampling options that are out of range.

    Raises:
      ValueError: names the option, its value and what is allowed.
    """
    if temperature is not None and not temperature > 0:
        raise ValueError(
            f"temperature={temperature!r} must be above 0; use None for greedy play"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k!r} must be at least 1; use None to turn it off")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p!r} must be in (0, 1]; use None to turn it off")


def keep_top_k(weights: Float[Array, "B V"], top_k: int) -> Bool[Array, "B V"]:
    """The `top_k` largest weights of each row, and any equal to the last of them."""
    largest, _ = jax.lax.top_k(weights, min(top_k, weights.shape[-1]))
    return weights >= largest[:, -1:]


def keep_top_p(weights: Float[Array, "B V"], top_p: float) -> Bool[Array, "B V"]:
    """The fewest largest weights of each row whose sum reaches `top_p` of the row's.

    Any weight equal to the smallest of them is kept too. Weights are non-negative and
    need not be normalised.
    """
    goal = top_p * jnp.sum(weights, axis=-1)
    # Non-negative floats are in the order of their bits. A weight is kept if those
    # above it do not reach the goal yet: the lowest such weight is found bit by bit,
    # which reads the weights 31 times and sorts nothing.
    ranks = jax.lax.bitcast_convert_type(weights, jnp.int32)

    def halve(i, highest_dropped):
        tried = highest_dropped + (1 << (30 - i))
        above = jnp.sum(jnp.where(ranks > tried[:, None], weights, 0.0), axis=-1)
        return jnp.where(above >= goal, tried, highest_dropped)

    nothing = jnp.full(weights.shape[0], -1, jnp.int32)
    dropped = jax.lax.fori_loop(0, 31, halve, nothing)
    is_kept = ranks > dropped[:, None]
    # Rounding may put the goal above the sum of all.
    return is_kept | (weights >= jnp.max(weights, axis=-1, keepdims=True))


def invert_cdf(
    weights: Float[Array, " V"], uniform: Float[Array, ""]
) -> Int[Array, ""]:
    """Index drawn in proportion to `weights` by a uniform number in [0, 1).

    Two levels: first the block of about sqrt(V) entries, then the entry in it, so that
    float32 sums stay short and only one block is summed cumulatively.
    """
    size = 2 ** round(weights.shape[0].bit_length() / 2)
    blocks = jnp.pad(weights, (0, -weights.shape[0] % size)).reshape(-1, size)
    sums = jnp.sum(blocks, axis=-1)
    block, rest = _first_above(sums, uniform * jnp.sum(sums))
    entry, _ = _first_above(blocks[block], rest)
    return block * size + entry


def _first_above(
    weights: Float[Array, " n"], target: Float[Array, ""]
) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """First entry at which the running sum exceeds `target`, and what is left of it.

    Zero entries are never chosen. Where rounding puts the target at or above the total,
    the last non-zero entry is chosen.
    """
    running = jnp.cumsum(weights)
    is_positive = weights > 0
    is_above = (running > target) & is_positive
    last = weights.shape[0] - 1 - jnp.argmax(is_positive[::-1])
    chosen = jnp.where(jnp.any(is_above), jnp.argmax(is_above), last)
    left = jnp.maximum(target - (running[chosen] - weights[chosen]), 0.0)
    return chosen.astype(jnp.int32), left


def _log_probs(
    logits: Float[Array, "B V"], tokens: Int[Array, " B"]
) -> Float[Array, " B"]:
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)
