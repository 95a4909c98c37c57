"""Sampling: logits to one token per row, with one uniform number per row.

In: a key and the logits of each row. Out: the token and its log-probability under the
temperature-scaled, untruncated distribution, which is what the learner recomputes. The
draw goes through the inverse cumulative distribution, so a row's token depends on its
own key and logits alone: not on its neighbours, the batch size or other rows' draws.

Ties: a token as probable as the last one that top-k or top-p keeps is kept as well.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

Sampler = Callable[
    [Key[Array, " B"], Float[Array, "B V"]], tuple[Int[Array, " B"], Float[Array, " B"]]
]

# In place of minus infinity where it would be subtracted from itself.
_LOWEST = -1e30


def sample(
    keys: Key[Array, " B"],
    logits: Float[Array, "B V"],
    *,
    temperature: float | Float[Array, ""] | Float[Array, " B"],
    top_k: int | Int[Array, ""] | None = None,
    top_p: float | Float[Array, ""] | Float[Array, " B"] | None = None,
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Draw one token per row. The options may be traced: one program for all values.
    Temperature and `top_p` may be a number for each row.

    Args:
      keys: one key per row, used for one uniform number.
      logits: unscaled log-weights.
      temperature: logits are divided by it; 0 takes the most probable token (the first
        of equals) and reports log-probabilities at temperature 1.
      top_k: draw among the `top_k` most probable tokens only. None: among all.
      top_p: draw among the smallest set of most probable tokens (after `top_k`) that
        holds this share of the probability. None: among all.

    Returns:
      Token ids (int32) and float32 log-probabilities of the scaled, untruncated
      distribution. A token of probability 0 is never drawn. The uniform number has 23
      bits: probabilities below about 1e-7 are drawn too often or never.
    """
    temperature = jnp.float32(temperature)
    is_greedy = temperature == 0
    scale = jnp.where(is_greedy, 1.0, temperature)
    scores = logits.astype(jnp.float32) / (scale[:, None] if scale.ndim else scale)
    blocks = candidates = _in_blocks(scores)
    if top_k is not None or top_p is not None:
        candidates = _in_blocks(_truncated(scores, top_k, top_p))
    uniforms = jax.vmap(jax.random.uniform)(keys)
    drawn, best = jax.vmap(_draw)(candidates, uniforms), jax.vmap(_first_best)(blocks)
    tokens, chosen = (
        jnp.where(is_greedy, a, b) for a, b in zip(best, drawn, strict=True)
    )
    return tokens, chosen - jax.vmap(_logsumexp)(blocks)


def check_options(
    *, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Refuse sampling options that are out of range.

    Raises:
      ValueError: names the option, its value and what is allowed.
    """
    if not temperature >= 0:
        raise ValueError(
            f"temperature={temperature!r} must be at least 0; 0 is greedy play"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k!r} must be at least 1; use None to turn it off")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p!r} must be in (0, 1]; use None to turn it off")


def keep_top_k(
    weights: Float[Array, "B V"], top_k: int | Int[Array, ""]
) -> Bool[Array, "B V"]:
    """The `top_k` largest weights of each row, and any equal to the last of them.

    Weights are non-negative.
    """
    return _largest(weights, jnp.ones_like(weights), jnp.float32(top_k))


def keep_top_p(
    weights: Float[Array, "B V"],
    top_p: float | Float[Array, ""] | Float[Array, " B"],
) -> Bool[Array, "B V"]:
    """The fewest largest weights of each row whose sum reaches `top_p` of the row's.

    Any weight equal to the smallest of them is kept too. Weights are non-negative and
    need not be normalised. 1 keeps all.
    """
    total = jnp.sum(weights, axis=-1)
    # Whatever rounding makes of the sum of all.
    goal = jnp.where(jnp.float32(top_p) < 1, top_p * total, jnp.inf)
    # Rounding may put the goal above the sum of all.
    is_best = weights >= jnp.max(weights, axis=-1, keepdims=True)
    return _largest(weights, weights, goal) | is_best


def _largest(
    weights: Float[Array, "B V"],
    counted: Float[Array, "B V"],
    goal: Float[Array, " B"] | Float[Array, ""],
) -> Bool[Array, "B V"]:
    """Weights of each row such that what is `counted` of those above is below `goal`.

    Non-negative floats are in the order of their bits: the lowest weight that is kept
    is found bit by bit, which reads the weights 31 times and sorts nothing.
    """
    ranks = jax.lax.bitcast_convert_type(weights, jnp.int32)

    def halve(i, highest_dropped):
        tried = highest_dropped + (1 << (30 - i))
        above = jnp.sum(jnp.where(ranks > tried[:, None], counted, 0.0), axis=-1)
        return jnp.where(above >= goal, tried, highest_dropped)

    nothing = jnp.full(weights.shape[0], -1, jnp.int32)
    dropped = jax.lax.fori_loop(0, 31, halve, nothing)
    return ranks > dropped[:, None]


def _truncated(
    scores: Float[Array, "B V"],
    top_k: int | Int[Array, ""] | None,
    top_p: float | Float[Array, ""] | Float[Array, " B"] | None,
) -> Float[Array, "B V"]:
    """Log-weights, those of dropped entries at minus infinity."""
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    if top_k is not None:
        weights = jnp.where(keep_top_k(weights, top_k), weights, 0.0)
    if top_p is not None:
        weights = jnp.where(keep_top_p(weights, top_p), weights, 0.0)
    return jnp.where(weights > 0, scores, -jnp.inf)


class _Blocks(NamedTuple):
    """Log-weights in blocks, and what is known of each block; rows may lead.

    Attributes:
      scores: minus infinity after the last.
      highest: of a block.
      sums: of the weights of a block, relative to the highest.
    """

    scores: Float[Array, "*B n size"]
    highest: Float[Array, "*B n"]
    sums: Float[Array, "*B n"]


def _in_blocks(scores: Float[Array, "B V"]) -> _Blocks:
    """Blocks of about sqrt(V) entries: float32 sums stay short.

    Sampling and log-probabilities need two numbers of each block and the entries of
    one block: the vocabulary is read once.
    """
    size = 2 ** round(scores.shape[-1].bit_length() / 2)
    padding = (0, 0), (0, -scores.shape[-1] % size)
    scores = jnp.pad(scores, padding, constant_values=-jnp.inf)
    scores = scores.reshape(scores.shape[0], -1, size)
    sums = jax.lax.platform_dependent(scores, cpu=_two_passes, default=_one_pass)
    return _Blocks(scores, *sums)


def _two_passes(scores):
    """Highest score and sum of weights over the last axis."""
    highest = jnp.max(scores, axis=-1)
    finite = jnp.maximum(highest, _LOWEST)
    # XLA may compute the scores once more for this pass, and round them otherwise: of
    # scores of -1e15, those of spare ids, one would be far above the highest.
    below = jnp.minimum(scores - finite[..., None], 0.0)
    return highest, jnp.sum(jnp.exp(below), axis=-1)


def _one_pass(scores):
    """`_two_passes` as a reduction of pairs, which GPUs compute in one kernel."""

    def add(one, other):
        highest = jnp.maximum(one[0], other[0])
        finite = jnp.maximum(highest, _LOWEST)
        parts = [total * jnp.exp(high - finite) for high, total in (one, other)]
        return highest, parts[0] + parts[1]

    nothing = jnp.float32(-jnp.inf), jnp.float32(0)
    pairs = scores, (scores > -jnp.inf).astype(jnp.float32)
    return jax.lax.reduce(pairs, nothing, add, (scores.ndim - 1,))


def _weights(row: _Blocks) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Weights of a row's blocks relative to its highest score, and that score."""
    top = jnp.maximum(jnp.max(row.highest), _LOWEST)
    return row.sums * jnp.exp(row.highest - top), top


def _logsumexp(row: _Blocks) -> Float[Array, ""]:
    weights, top = _weights(row)
    return top + jnp.log(jnp.sum(weights))


def _first_best(row: _Blocks) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """Index of the highest score, the first of equals, and the score."""
    block = jnp.argmax(row.highest)
    scores = row.scores[block]
    entry = jnp.argmax(scores)
    return (block * scores.shape[0] + entry).astype(jnp.int32), scores[entry]


def _draw(
    row: _Blocks, uniform: Float[Array, ""]
) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """Index drawn in proportion to the weights by a number in [0, 1), and its score.

    First the block, then the entry in it.
    """
    weights, top = _weights(row)
    block, rest = _first_above(weights, uniform * jnp.sum(weights))
    scores = row.scores[block]
    entry, _ = _first_above(jnp.exp(scores - top), rest)
    return block * scores.shape[0] + entry, scores[entry]


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
