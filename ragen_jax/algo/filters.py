"""Rollout filters: which groups, or rows, are learned from (StarPO-S, RAGEN-2).

Two tables: a score per group, and a rule that turns scores into a mask of rows.

    score(rewards or mask or entropies, *, group_size or num_groups) -> Float[G]
    rule(scores, *, group_size or rewards, <options>) -> Bool[G, N]

`rewards` are the environment's, never normalised or penalised ones: of each episode,
Float[B], for a score, and the same by group, Float[G, N], for a rule. `mask` is true at
sampled tokens, Bool[B, T], and `entropies` are theirs, Float[B, T]. Rows without any,
whose game has failed, do not count: `counted`, Bool[B], is False there, and None where
no game can fail; for a rule their reward is not-a-number. A score that takes
`group_size` compares the rows of a group, so that groups of one row cannot be chosen by
it; one that takes `num_groups` adds them up. Kept groups stay where they are, and all
rows of a group share its fate except under `within_group`. Nothing may be kept.

Two options are shared. `direction`: "largest" or "smallest" scores are wanted; of equal
scores the earlier group wins, and not-a-number is wanted last in either direction.
`keep_zero`: groups whose score is 0 are candidates at all (a score of not-a-number
counts as 0 here).

Sources: StarPO-S, arXiv 2504.20073 section 4.3; SNR-adaptive filtering, arXiv
2604.06268; details as in RAGEN. Where paper and code differ, each way has a name here:
`docs/algorithms.md`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from ragen_jax.algo.masked import as_float, masked_mean, masked_variance, rounding
from ragen_jax.algo.segments import takes_part
from ragen_jax.registry.functions import EPISODE_DATA, Table
from ragen_jax.registry.numbers import Number

DIRECTIONS = ("largest", "smallest")
# A score this small counts as zero (RAGEN).
ZERO_SCORE = 1e-10
# A share of a number of groups this near to a whole number, relatively, is that number:
# twice the rounding of a share and of a product in float32.
_ROUNDING = 2.0**-22
# Two variances closer than this share of the larger are equal (float32 rounding).
_EQUAL_VARIANCES = 1e-5


def reward_std(
    rewards: Num[Array, " B"],
    counted: Bool[Array, " B"] | None = None,
    *,
    group_size: int,
) -> Float[Array, " G"]:
    """Standard deviation (n - 1) of the raw episode rewards; 0 for a group of one.

    RAGEN's code calls it "reward_variance".
    """
    return jnp.sqrt(reward_variance(rewards, counted, group_size=group_size))


def reward_variance(
    rewards: Num[Array, " B"],
    counted: Bool[Array, " B"] | None = None,
    *,
    group_size: int,
) -> Float[Array, " G"]:
    """Variance (n - 1) of the raw episode rewards, as the RAGEN-2 paper has it."""
    rewards = jnp.reshape(as_float(rewards), (-1, group_size))
    return masked_variance(rewards, _by_group(counted, rewards), axis=1, ddof=1)


def reward_mean(
    rewards: Num[Array, " B"],
    counted: Bool[Array, " B"] | None = None,
    *,
    num_groups: int,
) -> Float[Array, " G"]:
    """Mean of the raw episode rewards; 0 where it is rounding."""
    total = reward_sum(rewards, counted, num_groups=num_groups)
    counts = jnp.sum(_by_group(counted, rewards.reshape(num_groups, -1)), axis=1)
    return total / jnp.maximum(counts, 1).astype(total.dtype)


def reward_sum(
    rewards: Num[Array, " B"],
    counted: Bool[Array, " B"] | None = None,
    *,
    num_groups: int,
) -> Float[Array, " G"]:
    """Sum of the raw episode rewards; 0 where it is rounding."""
    rewards = as_float(rewards).reshape(num_groups, -1)
    rewards = jnp.where(_by_group(counted, rewards), rewards, 0.0)
    total, sizes = jnp.sum(rewards, axis=1), jnp.sum(jnp.abs(rewards), axis=1)
    is_rounding = (jnp.abs(total) <= rounding(sizes)) & jnp.isfinite(sizes)
    return jnp.where(is_rounding, 0.0, total)


def length(mask: Bool[Array, "B T"], *, num_groups: int) -> Float[Array, " G"]:
    """Mean number of trained tokens per episode."""
    lengths = jnp.sum(mask, axis=1, dtype=jnp.float32).reshape(num_groups, -1)
    return masked_mean(lengths, lengths > 0, axis=1)


def entropy(
    entropies: Float[Array, "B T"], mask: Bool[Array, "B T"], *, num_groups: int
) -> Float[Array, " G"]:
    """Mean over the episodes that have trained tokens of their mean token entropy."""
    means, mask = masked_mean(entropies, mask, axis=1), takes_part(mask)
    means, mask = means.reshape(num_groups, -1), mask.reshape(num_groups, -1)
    return masked_mean(means, mask, axis=1)


def entropy_std(
    entropies: Float[Array, "B T"], mask: Bool[Array, "B T"], *, group_size: int
) -> Float[Array, " G"]:
    """Standard deviation (n - 1) of the numbers that `entropy` is the mean of."""
    means, mask = masked_mean(entropies, mask, axis=1), takes_part(mask)
    means, mask = means.reshape(-1, group_size), mask.reshape(-1, group_size)
    return jnp.sqrt(masked_variance(means, mask, axis=1, ddof=1))


def top_fraction(
    scores: Float[Array, " G"],
    *,
    group_size: int,
    direction: str,
    keep_zero: bool,
    keep_fraction: Number,
) -> Bool[Array, "G N"]:
    """Keep the `max(1, floor(keep_fraction * G))` most wanted groups.

    The fraction is of all groups, also where fewer are candidates.
    """
    count = jnp.maximum(1, _share_of(keep_fraction, scores.shape[0]))
    candidates = _candidates(scores, keep_zero)
    kept = candidates & (_ranks(scores, candidates, direction) < count)
    return _whole_groups(kept, group_size)


def top_k(
    scores: Float[Array, " G"],
    *,
    group_size: int,
    direction: str,
    keep_zero: bool,
    top_k: Number,
) -> Bool[Array, "G N"]:
    """Keep the `max(1, top_k)` most wanted groups, or as many as are candidates."""
    candidates = _candidates(scores, keep_zero)
    kept = candidates & (_ranks(scores, candidates, direction) < jnp.maximum(1, top_k))
    return _whole_groups(kept, group_size)


def top_p(
    scores: Float[Array, " G"],
    *,
    group_size: int,
    direction: str,
    keep_zero: bool,
    top_p: Number,
    top_p_epsilon: Number,
) -> Bool[Array, "G N"]:
    """Keep the fewest most wanted groups whose scores add up to a share of the total.

    Groups are taken in order while their sum is below `top_p * total - top_p_epsilon`
    and the next score is above 0. Scores that begin at 0 or below keep nothing, nor
    does a threshold that is not above 0. `top_p >= 1` keeps all.
    """
    candidates = _candidates(scores, keep_zero)
    order = jnp.argsort(_ranks(scores, candidates, direction))
    mass = jnp.where(candidates & ~jnp.isnan(scores), scores, 0.0)[order]
    before, total = _running_sums(mass)
    is_stop = (before >= top_p * total - top_p_epsilon) | (mass <= 0)
    # RAGEN also drops what was taken if the walk ends short of the threshold. It
    # cannot: by then it has taken all scores above 0, and the others add nothing.
    taken = jnp.cumsum(is_stop) == 0
    kept = jnp.zeros_like(candidates).at[order].set(taken)
    return _whole_groups(jnp.where(top_p >= 1, candidates, kept), group_size)


def top_p_softmax(
    scores: Float[Array, " G"],
    *,
    group_size: int,
    direction: str,
    keep_zero: bool,
    top_p: Number,
) -> Bool[Array, "G N"]:
    """Keep the fewest most wanted groups with a share `top_p` of softmax(+-scores).

    Not empty while there is a candidate, and not free of scale: rewards ten times as
    large choose other groups. `top_p >= 1` keeps all.
    """
    every = _candidates(scores, keep_zero)
    candidates = every & ~jnp.isnan(scores)
    mass = jax.nn.softmax(_wish(scores, direction), where=candidates)
    order = jnp.argsort(_ranks(scores, candidates, direction))
    before, _ = _running_sums(mass[order])
    taken = (before < top_p) & candidates[order]
    kept = jnp.zeros_like(candidates).at[order].set(taken)
    return _whole_groups(jnp.where(top_p >= 1, every, kept), group_size)


def min_p(
    scores: Float[Array, " G"],
    *,
    group_size: int,
    direction: str,
    keep_zero: bool,
    min_p: Number,
) -> Bool[Array, "G N"]:
    """Keep groups whose score comes up to a share of the best one.

    Largest: `score >= min_p * max - 1e-10`. Smallest: `score <= min / (min_p + 1e-10) +
    1e-10`. Not-a-number never does.
    """
    candidates = _candidates(scores, keep_zero) & ~jnp.isnan(scores)
    if direction == "largest":
        best = jnp.max(scores, initial=-jnp.inf, where=candidates)
        is_near = scores >= min_p * best - ZERO_SCORE
    else:
        best = jnp.min(scores, initial=jnp.inf, where=candidates)
        is_near = scores <= best / (min_p + ZERO_SCORE) + ZERO_SCORE
    return _whole_groups(candidates & is_near, group_size)


def quantile_band(
    scores: Float[Array, " G"],
    *,
    group_size: int,
    keep_zero: bool,
    quantile_low: Number,
    quantile_high: Number,
) -> Bool[Array, "G N"]:
    """Keep groups from one quantile of the candidates' scores up to another.

    Of n candidates in ascending order, those from `floor(quantile_low * n)` up to and
    without `floor(quantile_high * n)`: adjoining bands share the groups out among them.
    Not-a-number is in no band.
    """
    candidates = _candidates(scores, keep_zero) & ~jnp.isnan(scores)
    ranks = _ranks(scores, candidates, "smallest")
    count = jnp.sum(candidates)
    first, end = _share_of(quantile_low, count), _share_of(quantile_high, count)
    is_inside = (first <= ranks) & (ranks < end)
    return _whole_groups(candidates & is_inside, group_size)


def within_group(
    scores: Float[Array, " G"],
    *,
    rewards: Num[Array, "G N"],
    keep_zero: bool,
    rows_per_group: Number,
) -> Bool[Array, "G N"]:
    """Keep, of each candidate group, the rows whose rewards differ most.

    The j lowest and k - j highest of a group's rewards, with k = `rows_per_group` and
    the j that makes their variance largest: no other k rows have a larger one. Of equal
    variances the smallest j, of equal rewards the earlier row is the lower one.
    """
    choose = jax.vmap(_extremes, in_axes=(0, None))
    chosen = choose(as_float(rewards), rows_per_group)
    return chosen & _candidates(scores, keep_zero)[:, None]


def _extremes(rewards: Float[Array, " N"], count: Number) -> Bool[Array, " N"]:
    """One group's choice. Rows whose reward is not a number are never chosen."""
    is_number = ~jnp.isnan(rewards)
    ranks = _ranks(_levels(rewards), is_number, "smallest")
    num_numbers = jnp.sum(is_number)
    count = jnp.minimum(count, num_numbers)

    def choose(num_lowest):
        is_low = ranks < num_lowest
        return is_number & (is_low | (ranks >= num_numbers - count + num_lowest))

    num_lowest = jnp.arange(rewards.shape[0] + 1)
    chosen = jax.vmap(choose)(num_lowest)
    spread = jnp.broadcast_to(rewards, chosen.shape)
    variances = masked_variance(spread, chosen, axis=1, ddof=0)
    variances = jnp.where(num_lowest <= count, variances, -1.0)
    is_best = variances >= jnp.max(variances) * (1.0 - _EQUAL_VARIANCES)
    return chosen[jnp.argmax(is_best)]


def _levels(x: Float[Array, " N"]) -> Float[Array, " N"]:
    """0 for the smallest numbers, 1 for the next larger ones, and so on."""
    order = jnp.argsort(x)
    ascending = x[order]
    steps = jnp.diff(ascending) > rounding(ascending[1:])
    # Infinity is as far from any number as its own rounding.
    steps |= jnp.diff(jnp.isinf(ascending).astype(jnp.int32)) != 0
    levels = jnp.cumsum(jnp.concatenate([jnp.zeros(1, bool), steps]))
    return jnp.zeros_like(x).at[order].set(levels.astype(x.dtype))


def _by_group(
    counted: Bool[Array, " B"] | None, rewards: Num[Array, "G N"]
) -> Bool[Array, "G N"]:
    """The rows that count, in the shape of the rewards; None: all."""
    if counted is None:
        return jnp.ones(rewards.shape, bool)
    return counted.reshape(rewards.shape)


def _candidates(scores: Float[Array, " G"], keep_zero: bool) -> Bool[Array, " G"]:
    if keep_zero:
        return jnp.ones(scores.shape, bool)
    return jnp.abs(scores) > ZERO_SCORE


def _wish(scores: Float[Array, " G"], direction: str) -> Float[Array, " G"]:
    """The larger, the more wanted."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction = {direction!r}; choose 'largest' or 'smallest'")
    return scores if direction == "largest" else -scores


def _ranks(
    scores: Float[Array, " G"], candidates: Bool[Array, " G"], direction: str
) -> Int[Array, " G"]:
    """0 for the most wanted candidate, and so on; then the others."""
    # Not-a-number is sorted last.
    key = jnp.where(candidates, -_wish(scores, direction), jnp.nan)
    order = jnp.argsort(key, stable=True)
    ranks = jnp.arange(scores.shape[0], dtype=jnp.int32)
    return jnp.zeros_like(ranks).at[order].set(ranks)


def _share_of(share: Number, count: Int[Array, ""] | int) -> Int[Array, ""]:
    """`floor(share * count)`; a share meant exactly loses no group to rounding.

    0.29 of 100 is 29, though the product is 28.999998. Shares are told apart up to
    their sixth digit.
    """
    product = jnp.float32(share) * jnp.float32(count)
    nearest = jnp.round(product)
    is_whole = jnp.abs(product - nearest) <= _ROUNDING * product
    return jnp.where(is_whole, nearest, jnp.floor(product)).astype(jnp.int32)


def _running_sums(
    mass: Float[Array, " G"],
) -> tuple[Float[Array, " G"], Float[Array, ""]]:
    """Exclusive prefix sums and the total, rounded identically."""
    sums = jnp.cumsum(mass)
    return jnp.concatenate([jnp.zeros_like(sums[:1]), sums[:-1]]), sums[-1]


def _whole_groups(kept: Bool[Array, " G"], group_size: int) -> Bool[Array, "G N"]:
    return jnp.broadcast_to(kept[:, None], (kept.shape[0], group_size))


# name -> score(rewards or mask or entropies, *, group_size or num_groups).
SCORES = Table(
    {
        "reward_std": reward_std,
        "reward_variance": reward_variance,
        "reward_mean": reward_mean,
        "reward_sum": reward_sum,
        "length": length,
        "entropy": entropy,
        "entropy_std": entropy_std,
    },
    data=("rewards", *EPISODE_DATA, "counted", "entropies"),
    returns=Array,
)
# name -> rule(scores, *, group_size or rewards, <options>).
FILTERS = Table(
    {
        "top_fraction": top_fraction,
        "top_k": top_k,
        "top_p": top_p,
        "top_p_softmax": top_p_softmax,
        "min_p": min_p,
        "quantile_band": quantile_band,
        "within_group": within_group,
    },
    data=("scores", "group_size", "num_groups", "rewards"),
)
