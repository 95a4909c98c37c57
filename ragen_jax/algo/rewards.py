"""Episode and turn rewards, and the token each is assigned to.

There are two sums: the rollout filter reads the rewards of the environment alone
(`raw_episode_rewards`), the learner adds format penalties and bonuses
(`episode_rewards`). An entry of `REWARD_PLACEMENTS` places the learner's sums on
tokens, called as

    placement(totals or turn_rewards, mask, *, <data>, <options>) -> Float[B, T]

with names of `EPISODE_DATA` in `ragen_jax/registry/functions.py`. Rows without a
trained token have no place for a reward and take no part in normalisation: to normalise
over all rows, place the rewards before filtering. Reference: arXiv 2504.20073 section
3, and RAGEN's reward normalisation; unlike there, format penalties count in both
placements, and the filter never sees a normalised reward. Bonuses for how a reply is
written (`ragen_jax.rollout.bonuses`) count wherever format penalties do.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ragen_jax.algo.masked import masked_deviation, masked_sum, masked_variance
from ragen_jax.algo.segments import (
    last_trained,
    last_trained_of_turns,
    spread_turns,
    takes_part,
)
from ragen_jax.registry.functions import EPISODE_DATA, Table
from ragen_jax.registry.numbers import Number

# A standard deviation up to this counts as zero, and it is added to it (RAGEN).
_STD_EPSILON = 1e-6
# Bounds of the asymmetric clip (RAGEN): a failure counts at most 1, a success up to 3.
_LOWEST, _HIGHEST = -1.0, 3.0
# Bound on one correction of the KL coefficient (arXiv 1909.08593).
_MAX_KL_ERROR = 0.2


def raw_episode_rewards(
    reward: Float[Array, "B K"], played: Bool[Array, "B K"]
) -> Float[Array, " B"]:
    """Sum of the environment's rewards over the turns played, and of nothing else."""
    return masked_sum(reward.astype(jnp.float32), played, axis=1)


def episode_rewards(
    reward: Float[Array, "B K"],
    penalty: Float[Array, "B K"],
    bonus: Float[Array, "B K"],
    played: Bool[Array, "B K"],
) -> Float[Array, " B"]:
    """Sum of the environment's rewards, the format penalties and the bonuses."""
    rewards, penalties, bonuses = (
        raw_episode_rewards(paid, played) for paid in (reward, penalty, bonus)
    )
    return rewards + penalties + bonuses


def rewards_per_turn(
    reward: Float[Array, "B K"],
    penalty: Float[Array, "B K"],
    bonus: Float[Array, "B K"],
    played: Bool[Array, "B K"],
) -> Float[Array, "B K"]:
    """Each turn's reward, format penalty and bonus, 0 where not played."""
    total = sum(x.astype(jnp.float32) for x in (reward, penalty, bonus))
    return jnp.where(played, total, 0.0)


def at_episode_end(
    totals: Float[Array, " B"],
    mask: Bool[Array, "B T"],
    *,
    group_size: int,
    env_index: Int[Array, " B"] | None,
    normalization: str,
    grouping: str,
) -> Float[Array, "B T"]:
    """The episode's normalised total at its last trained token.

    Args:
      totals: of the episodes, see `episode_rewards`.
      mask: tokens trained on.
      group_size: rows per group.
      env_index: which environment a row played, for grouping "environment".
      normalization: entry of `NORMALIZATIONS`.
      grouping: entry of `GROUPINGS`: the rows that are compared with each other.
    """
    labels = GROUPINGS[grouping](totals, group_size=group_size, env_index=env_index)
    is_trained = takes_part(mask)
    # peers[i, j]: row j is among those that row i is compared with.
    peers = (labels[:, None] == labels[None]) & is_trained[None]
    # A total compared only with itself would become 0 everywhere.
    is_alone = jnp.all(jnp.sum(peers, axis=1) <= 1, where=is_trained)
    normalized = NORMALIZATIONS[normalization](totals, peers)
    totals = jnp.where(is_alone, totals, normalized)
    return jnp.where(last_trained(mask), totals[:, None], 0.0)


def at_turn_ends(
    turn_rewards: Float[Array, "B K"],
    mask: Bool[Array, "B T"],
    *,
    turn_index: Int[Array, "B T"],
) -> Float[Array, "B T"]:
    """Each turn's reward, penalty and bonus at the turn's last trained token."""
    is_last = last_trained_of_turns(mask, turn_index, turn_rewards.shape[1])
    return jnp.where(is_last, spread_turns(turn_rewards, turn_index), 0.0)


def identity(
    totals: Float[Array, " B"], peers: Bool[Array, "B B"]
) -> Float[Array, " B"]:
    """The totals as they are."""
    del peers
    return totals


def mean(totals: Float[Array, " B"], peers: Bool[Array, "B B"]) -> Float[Array, " B"]:
    """`x - mean` of each row's peers (`peers[i, j]`: row j is a peer of row i)."""
    spread = jnp.broadcast_to(totals, peers.shape)
    return jnp.diagonal(masked_deviation(spread, peers, axis=1))


def mean_std(
    totals: Float[Array, " B"], peers: Bool[Array, "B B"]
) -> Float[Array, " B"]:
    """`(x - mean) / (std + 1e-6)`, with n - 1 in it; 0 where the std is up to 1e-6."""
    spread = jnp.broadcast_to(totals, peers.shape)
    std = jnp.sqrt(masked_variance(spread, peers, axis=1, ddof=1))
    scaled = mean(totals, peers) / (std + _STD_EPSILON)
    return jnp.where(std <= _STD_EPSILON, 0.0, scaled)


def asymmetric_clip(
    totals: Float[Array, " B"], peers: Bool[Array, "B B"]
) -> Float[Array, " B"]:
    """`mean_std`, clipped to [-1, 3]."""
    return jnp.clip(mean_std(totals, peers), _LOWEST, _HIGHEST)


def by_state(
    totals: Float[Array, " B"], *, group_size: int, env_index: Int[Array, " B"] | None
) -> Int[Array, " B"]:
    """Rows of one group, which began in the same state, share a label."""
    del env_index
    return jnp.arange(totals.shape[0]) // group_size


def by_batch(
    totals: Float[Array, " B"], *, group_size: int, env_index: Int[Array, " B"] | None
) -> Int[Array, " B"]:
    """All rows share a label."""
    del group_size, env_index
    return jnp.zeros(totals.shape, jnp.int32)


def by_environment(
    totals: Float[Array, " B"], *, group_size: int, env_index: Int[Array, " B"] | None
) -> Int[Array, " B"]:
    """Rows of one environment share a label."""
    del totals, group_size
    if env_index is None:
        raise ValueError(
            "algo.grouping = 'environment' needs env_index, the environment of each "
            "row; pass it, or use 'state' or 'batch'"
        )
    return env_index


def penalize_kl(
    rewards: Float[Array, "B T"],
    kl: Float[Array, "B T"],
    loss_mask: Bool[Array, "B T"],
    *,
    kl_coeff: Number,
) -> Float[Array, "B T"]:
    """`rewards - kl_coeff * kl` at each trained token.

    `kl` estimates how far the sampling policy has moved from the reference there, by an
    entry of `losses.KL_ESTIMATORS`. The charge falls on every trained token, so that
    turn borders must not be read off the rewards.
    """
    return jnp.where(loss_mask, rewards - kl_coeff * kl, rewards)


def adapt_kl_coeff(
    kl_coeff: Float[Array, ""],
    kl: Float[Array, ""],
    *,
    num_rows: Int[Array, ""] | int,
    kl_target: Number,
    kl_horizon: Number,
) -> Float[Array, ""]:
    """The KL coefficient of the next iteration (arXiv 1909.08593 section 2.2).

        error = clip(kl / kl_target - 1, -0.2, 0.2)
        coeff <- coeff * (1 + error * num_rows / kl_horizon)

    Args:
      kl_coeff: the coefficient `kl` was measured under.
      kl: mean KL per trained token of this iteration.
      num_rows: episodes it was measured on; with none, the coefficient stays.
      kl_target: the KL to be held (0.1 in RAGEN).
      kl_horizon: episodes over which a full error multiplies by e^0.2 (10,000).
    """
    error = jnp.clip(kl / kl_target - 1.0, -_MAX_KL_ERROR, _MAX_KL_ERROR)
    # A not-a-number measurement would stay in the coefficient for ever.
    error = jnp.where(jnp.isnan(error), 0.0, error)
    share = error * jnp.float32(num_rows) / jnp.float32(kl_horizon)
    return kl_coeff * (1.0 + share)


# reward(<data>, *, <options>) -> Float[B, K], in place of what the game pays, which is
# `rewards`, Float[B, K]; users' functions only.
REWARDS = Table({}, data=("rewards", *EPISODE_DATA), returns=Array)
REWARD_PLACEMENTS = Table(
    {"episode": at_episode_end, "turn": at_turn_ends},
    data=EPISODE_DATA,
    returns=Array,
)
NORMALIZATIONS = {
    "identity": identity,
    "mean": mean,
    "mean_std": mean_std,
    "asymmetric_clip": asymmetric_clip,
}
GROUPINGS = {"state": by_state, "batch": by_batch, "environment": by_environment}
