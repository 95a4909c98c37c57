"""Advantage estimators: how much better than expected each sampled token did.

In: arrays, NumPy's or JAX's. Out: an `Estimate`, 0 where `mask` is False. Every entry
of `ADVANTAGES` is called as

    estimator(rewards, mask, *, <data>, <options>) -> Estimate

with `rewards` per token, Float[B, T], and `mask`, Bool[B, T], true at the tokens that
are trained on. Its other parameters say all that the program has to know about it: each
option is the configuration key `algo.<name>`, and of the data

    values      Float[B, T], the critic's: a critic is built and trained
    group_size  the rows of a group are compared: a group of one row is refused
    turn_index, num_turns, turn_rewards, state_hash and others: see `EPISODE_DATA` in
                `ragen_jax/registry/functions.py`

Tokens that are not trained on are stepped over: the environment's text between two
replies costs no discount and breaks no chain. Rows that a filter dropped have no
trained token and take no part in any statistic. A group of which one row is left has
mean 0 and standard deviation 1, as in RAGEN: the row has no other to compare with.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from ragen_jax.algo.masked import masked_deviation, masked_sum, masked_variance
from ragen_jax.algo.segments import (
    Estimate,
    last_trained_of_turns,
    spread_turns,
    takes_part,
    turn_sums,
)
from ragen_jax.registry.functions import EPISODE_DATA, Table
from ragen_jax.registry.numbers import Number

# Added to the standard deviation that scores are divided by (RAGEN, veRL).
_STD_EPSILON = 1e-6
# Added to the variance that whitening divides by (RAGEN, veRL).
_VARIANCE_EPSILON = 1e-8


def gae(
    rewards: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    values: Float[Array, "B T"],
    gamma: Number,
    lam: Number,
) -> Estimate:
    """Generalised advantage estimation (arXiv 1506.02438), whitened.

        delta_t = r_t + gamma * V_{t+1} - V_t
        A_t = delta_t + gamma * lam * A_{t+1}          return_t = A_t + V_t

    where t + 1 is the next trained token of the row; past its last, V and A are 0.
    Advantages are whitened over the trained tokens of the batch, returns are not.

    Args:
      rewards, mask: per token, and the tokens trained on.
      values: the critic's.
      gamma: discount per trained token.
      lam: 0 trusts the critic for all but one step, 1 trusts only the rewards.
    """
    rewards, values = jnp.where(mask, rewards, 0.0), jnp.where(mask, values, 0.0)

    def step(carry, token):
        next_value, next_advantage = carry
        is_trained, reward, value = token
        delta = reward + gamma * next_value - value
        advantage = delta + gamma * lam * next_advantage
        # Other tokens pass the next value on: no discount, no broken chain.
        carry = (
            jnp.where(is_trained, value, next_value),
            jnp.where(is_trained, advantage, next_advantage),
        )
        return carry, advantage

    zero = jnp.zeros_like(values[:, 0])
    advantages = _scan_back(step, (zero, zero), mask, rewards, values)
    return _with_returns(advantages, values, mask)


def bi_level_gae(
    rewards: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    turn_index: Int[Array, "B T"],
    num_turns: int,
    values: Float[Array, "B T"],
    gamma: Number,
    lam: Number,
    high_level_gamma: Number,
) -> Estimate:
    """GAE over turns, then over the tokens of each turn (VAGEN; RAGEN section 5.5).

    Turns, with `r_k` the sum of turn k's token rewards and `V_k` the value at its last
    trained token:

        A_k = r_k + high_level_gamma * (V_{k+1} + lam * A_{k+1}) - V_k

    Tokens: the last of turn k has `A = A_k`; before it, with the turn's next token,

        A_t = gamma * (V_{t+1} + lam * A_{t+1}) - V_t          return_t = A_t + V_t

    Whitened as in `gae`. A turn without reward is a turn like any other.

    Args:
      rewards, mask: per token, and the tokens trained on.
      turn_index: turn of each token.
      num_turns: K, the most turns that an episode has.
      values: the critic's.
      gamma: discount per trained token inside a turn.
      lam: as in `gae`, on both levels.
      high_level_gamma: discount per turn.
    """
    values = jnp.where(mask, values, 0.0)
    sums = turn_sums(rewards, mask, turn_index, num_turns)
    # At every token of a turn; the scan below reads it at the last one.
    rewards = spread_turns(sums, turn_index)
    is_last = last_trained_of_turns(mask, turn_index, num_turns)

    def step(carry, token):
        turn_value, turn_advantage, next_value, next_advantage = carry
        is_trained, ends_turn, reward, value = token
        # The value of the next turn, which the last token of this one bootstraps from.
        ahead = turn_value + lam * turn_advantage
        of_turn = reward + high_level_gamma * ahead - value
        of_token = gamma * (next_value + lam * next_advantage) - value
        advantage = jnp.where(ends_turn, of_turn, of_token)
        carry = (
            jnp.where(ends_turn, value, turn_value),
            jnp.where(ends_turn, of_turn, turn_advantage),
            jnp.where(is_trained, value, next_value),
            jnp.where(is_trained, advantage, next_advantage),
        )
        return carry, advantage

    zero = jnp.zeros_like(values[:, 0])
    start = (zero, zero, zero, zero)
    advantages = _scan_back(step, start, mask, is_last, rewards, values)
    return _with_returns(advantages, values, mask)


def grpo(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], *, group_size: int
) -> Estimate:
    """Group-relative advantages over whole episodes (GRPO, arXiv 2402.03300).

        advantage = (score - mean) / (std + 1e-6)

    with the mean and the standard deviation (n - 1) of the scores of the group. A score
    is the sum of an episode's token rewards; its advantage is the same at every token.
    """
    centred, std, _ = _grouped_scores(rewards, mask, group_size)
    return _at_every_token((centred / (std + _STD_EPSILON)).reshape(-1), mask)


def dr_grpo(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], *, group_size: int
) -> Estimate:
    """`score - group mean` (Dr. GRPO, arXiv 2503.20783): easy and hard groups, which
    spread less, do not weigh more."""
    centred, _, _ = _grouped_scores(rewards, mask, group_size)
    return _at_every_token(centred.reshape(-1), mask)


def rloo(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], *, group_size: int
) -> Estimate:
    """`score - mean of the group's other scores` (RLOO, arXiv 2402.14740)."""
    centred, _, count = _grouped_scores(rewards, mask, group_size)
    # (x - mean) * n / (n - 1) is x minus the mean of the n - 1 others.
    correction = jnp.where(count > 1, count / jnp.maximum(count - 1, 1), 1.0)
    return _at_every_token((centred * correction).reshape(-1), mask)


def reinforce(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], *, gamma: Number
) -> Estimate:
    """Discounted reward from the token on (REINFORCE, Williams 1992), no baseline.

    Args:
      rewards, mask: per token, and the tokens trained on.
      gamma: discount per trained token.
    """
    return Estimate(_rewards_to_go(rewards, mask, gamma))


def reinforce_plus_plus(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], *, gamma: Number
) -> Estimate:
    """`reinforce`, whitened over the batch's trained tokens (arXiv 2501.03262)."""
    return Estimate(_whiten(_rewards_to_go(rewards, mask, gamma), mask))


def reinforce_plus_plus_baseline(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], *, group_size: int
) -> Estimate:
    """`dr_grpo`, whitened over the batch's trained tokens (arXiv 2501.03262)."""
    centred = dr_grpo(rewards, mask, group_size=group_size).advantages
    return Estimate(_whiten(centred, mask))


def gigpo(
    rewards: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    turn_index: Int[Array, "B T"],
    turn_rewards: Float[Array, "B K"],
    state_hash: UInt32[Array, "B K 2"],
    group_size: int,
    gamma: Number,
    step_weight: Number,
) -> Estimate:
    """Group-in-group advantages (GiGPO, arXiv 2505.10978).

        advantage = grpo's + step_weight * (R_k - mean) / (std + 1e-6)

    where `R_k` is the turn's discounted reward from here on, and mean and std (n - 1)
    are over all turns of the group's episodes that began in the same state. A state met
    once adds nothing. A step is paid by `turn_rewards`, wherever `rewards` placed the
    episode's total.

    Args:
      rewards, mask: per token, and the tokens trained on.
      turn_index: turn of each token.
      turn_rewards: paid for each turn; 0 where not played.
      state_hash: of the state before each turn.
      group_size: rows per group.
      gamma: discount per turn.
      step_weight: weight of the step's against the episode's advantage (omega).
    """
    returns = _turn_returns(turn_rewards, gamma)
    num_turns = returns.shape[1]
    # A turn without a trained token was dropped by the filter, or not played.
    ones = jnp.ones(mask.shape, jnp.float32)
    counts = turn_sums(ones, mask, turn_index, num_turns) > 0

    def grouped(x):
        return x.reshape(-1, group_size, *x.shape[1:])

    of_steps = jax.vmap(_step_advantages)(
        grouped(returns), grouped(counts), grouped(state_hash)
    )
    of_steps = spread_turns(of_steps.reshape(returns.shape), turn_index)
    of_episodes = grpo(rewards, mask, group_size=group_size).advantages
    return Estimate(jnp.where(mask, of_episodes + step_weight * of_steps, 0.0))


def _step_advantages(
    returns: Float[Array, "N K"],
    counts: Bool[Array, "N K"],
    hashes: UInt32[Array, "N K 2"],
) -> Float[Array, "N K"]:
    """One group's turns, each compared with those that began in its state.

    All pairs of turns are compared: (N K)^2 comparisons per group.
    """
    flat, states = returns.reshape(-1), hashes.reshape(-1, 2)
    peers = jnp.all(states[:, None] == states[None], axis=-1) & counts.reshape(1, -1)
    spread = jnp.broadcast_to(flat, peers.shape)
    std = jnp.sqrt(masked_variance(spread, peers, axis=1, ddof=1))
    centred = jnp.diagonal(masked_deviation(spread, peers, axis=1))
    return (centred / (std + _STD_EPSILON)).reshape(returns.shape)


def _turn_returns(rewards: Float[Array, "B K"], gamma: Number) -> Float[Array, "B K"]:
    def step(later, reward):
        total = reward + gamma * later
        return total, total

    return _scan_back(step, jnp.zeros_like(rewards[:, 0]), rewards)


def _rewards_to_go(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], gamma: Number
) -> Float[Array, "B T"]:
    rewards = jnp.where(mask, rewards, 0.0)

    def step(later, token):
        is_trained, reward = token
        total = jnp.where(is_trained, reward + gamma * later, later)
        return total, total

    totals = _scan_back(step, jnp.zeros_like(rewards[:, 0]), mask, rewards)
    return jnp.where(mask, totals, 0.0)


def _scan_back(step, start, *columns):
    """Scan from the last column to the first; a single array is passed as it is."""
    xs = tuple(x.T for x in columns)
    xs = xs[0] if len(xs) == 1 else xs
    return jax.lax.scan(step, start, xs, reverse=True)[1].T


def _with_returns(advantages, values, mask) -> Estimate:
    """Whitened advantages, and the returns, which are the critic's targets."""
    returns = jnp.where(mask, advantages + values, 0.0)
    return Estimate(_whiten(advantages, mask), returns)


def _whiten(x: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, "B T"]:
    """Mean 0, variance (n - 1) 1 over the selected entries; a single one becomes 0."""
    variance = masked_variance(x, mask, ddof=1)
    return masked_deviation(x, mask) / jnp.sqrt(variance + _VARIANCE_EPSILON)


def _at_every_token(
    advantages: Float[Array, " B"], mask: Bool[Array, "B T"]
) -> Estimate:
    return Estimate(jnp.where(mask, advantages[:, None], 0.0))


def _grouped_scores(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], group_size: int
) -> tuple[Float[Array, "G N"], Float[Array, "G 1"], Float[Array, "G 1"]]:
    """Scores less their group's mean; standard deviation and size of the groups.

    A score is an episode's sum of token rewards; only rows that take part count. A
    group of one: mean 0, standard deviation 1.
    """
    scores = masked_sum(rewards, mask, axis=1).reshape(-1, group_size)
    mask = takes_part(mask).reshape(-1, group_size)
    centred = masked_deviation(scores, mask, axis=1)
    std = jnp.sqrt(masked_variance(scores, mask, axis=1, ddof=1))[:, None]
    count = jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.float32)
    # A lone row would always have advantage 0: RAGEN keeps its score.
    is_alone = count == 1
    return jnp.where(is_alone, scores, centred), jnp.where(is_alone, 1.0, std), count


ADVANTAGES = Table(
    {
        "gae": gae,
        "bi_level_gae": bi_level_gae,
        "grpo": grpo,
        "dr_grpo": dr_grpo,
        "rloo": rloo,
        "reinforce": reinforce,
        "reinforce_plus_plus": reinforce_plus_plus,
        "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
        "gigpo": gigpo,
    },
    data=("rewards", *EPISODE_DATA, "values"),
    returns=Estimate,
)
