"""The batch of an update: a trajectory laid out as the networks read it.

In: a trajectory, all rows or those that a filter kept. Out: its arrays by the names
that functions of `ragen_jax.algo` ask for, the networks' numbers for its tokens, and
the `Samples` that minibatches are taken from. Networks read one row per episode or,
where the model saw context windows, one row per window; everything else is per token of
the dialogue, so these functions go from one layout to the other.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from ragen_jax.algo.credit import CreditAssignment
from ragen_jax.algo.rewards import (
    episode_rewards,
    raw_episode_rewards,
    rewards_per_turn,
)
from ragen_jax.algo.segments import Estimate, from_windows, to_windows
from ragen_jax.learner.loss import Samples, TokenStats
from ragen_jax.learner.passes import AllParams, Passes
from ragen_jax.types import Trajectory


def named_arrays(trajectory: Trajectory, *, group_size: int) -> dict[str, Any]:
    """What functions of `ragen_jax.algo` may ask for by name: `EPISODE_DATA`."""
    turns = trajectory.turns
    paid = turns.reward, turns.penalty, turns.bonus, turns.played
    return {
        "trajectory": trajectory,
        "mask": trajectory.loss_mask,
        "turn_index": trajectory.turn_index,
        "num_turns": turns.played.shape[1],
        "played": turns.played,
        "turn_rewards": rewards_per_turn(*paid),
        "totals": episode_rewards(*paid),
        "game_rewards": game_rewards(trajectory),
        "state_hash": turns.state_hash,
        "env_index": trajectory.env_index,
        "group_size": group_size,
        "num_groups": trajectory.lengths.shape[0] // group_size,
    }


def replace_rewards(
    trajectory: Trajectory, credit: CreditAssignment, *, group_size: int
) -> Trajectory:
    """The trajectory with the rewards that are learned from."""
    turns = trajectory.turns
    arrays = named_arrays(trajectory, group_size=group_size)
    reward = credit.replace_rewards(turns.reward, arrays)
    return trajectory.replace(turns=turns.replace(reward=reward))


def game_rewards(trajectory: Trajectory) -> Float[Array, " B"]:
    """What the game paid in each episode: what scores of the filter read."""
    turns = trajectory.turns
    return raw_episode_rewards(turns.reward, turns.played)


def drop_rows(trajectory: Trajectory, kept: Bool[Array, " B"]) -> Trajectory:
    """The trajectory with nothing to train on in the other rows; shapes stay."""
    return trajectory.replace(loss_mask=trajectory.loss_mask & kept[:, None])


def token_stats(
    passes: Passes, params: AllParams, trajectory: Trajectory, kept: Bool[Array, " B"]
) -> TokenStats:
    """Log-probabilities and values of the trained tokens, before any step.

    Args:
      passes: the learner's.
      params: of the networks that played, and frozen ones.
      trajectory: without its dropped rows, see `drop_rows`.
      kept: the other rows, which are read.
    """
    mask = trajectory.loss_mask
    # Values off the mask are arbitrary, also not-a-number.
    sampled = jnp.where(mask, trajectory.sample_log_probs, 0.0)
    stats = passes.token_stats(
        params,
        row_tokens(trajectory),
        to_rows(mask, trajectory),
        to_rows(sampled, trajectory),
        rows_of(kept, trajectory),
        message_lengths(passes, trajectory),
    )
    return jax.tree.map(lambda y: from_rows(y, trajectory), stats)


def token_entropies(
    passes: Passes, params: AllParams, trajectory: Trajectory
) -> Float[Array, "B T"]:
    """The policy's entropy at every sampled token, 0 elsewhere.

    Args: see `token_stats`; all rows are read.
    """
    tokens, mask = row_tokens(trajectory), to_rows(trajectory.loss_mask, trajectory)
    lengths = message_lengths(passes, trajectory)
    return from_rows(passes.entropies(params, tokens, mask, lengths), trajectory)


def gather_samples(
    passes: Passes, trajectory: Trajectory, estimate: Estimate, stats: TokenStats
) -> Samples:
    """The loss's inputs, in the rows that networks read.

    Args:
      passes: the learner's.
      trajectory: without its dropped rows.
      estimate, stats: per token of the dialogue.
    """
    mask = trajectory.loss_mask
    by_token = {
        "mask": mask,
        "advantages": estimate.advantages,
        "returns": estimate.returns,
        "sample_log_probs": jnp.where(mask, trajectory.sample_log_probs, 0.0),
        "token_stats": stats,
    }
    by_row = jax.tree.map(lambda x: to_rows(x, trajectory), by_token)
    lengths = message_lengths(passes, trajectory)
    return Samples(tokens=row_tokens(trajectory), message_lengths=lengths, **by_row)


def message_lengths(passes: Passes, trajectory: Trajectory) -> Int[Array, " B"] | None:
    """Tokens before the first reply of each row, where groups share them."""
    return None if passes.prompts is None else trajectory.turns.reply_start[:, 0]


def row_tokens(trajectory: Trajectory) -> Int[Array, "R L"]:
    """The networks' input; padding, which may be anything, becomes 0."""
    of = trajectory if trajectory.windows is None else trajectory.windows
    tokens = of.tokens.reshape(-1, of.tokens.shape[-1])
    order = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    return jnp.where(order[None] < of.lengths.reshape(-1, 1), tokens, 0)


def rows_of(kept: Bool[Array, " B"], trajectory: Trajectory) -> Bool[Array, " R"]:
    """The rows of some episodes; windows without a token are none."""
    if trajectory.windows is None:
        return kept
    return (kept[:, None] & (trajectory.windows.lengths > 0)).reshape(-1)


def to_rows(x: Shaped[Array, "B T"], trajectory: Trajectory) -> Shaped[Array, "R L"]:
    """Numbers of the dialogue's tokens, laid out as the rows that networks read."""
    if trajectory.windows is None:
        return x
    windows, turns = trajectory.windows, trajectory.turns
    num_windows, width = windows.tokens.shape[1:]
    y = to_windows(
        x,
        turn_index=trajectory.turn_index,
        reply_start=turns.reply_start,
        reply_length=turns.reply_length,
        window_of_turn=windows.of_turn,
        window_start=windows.reply_start,
        num_windows=num_windows,
        width=width,
    )
    return y.reshape(-1, y.shape[-1])


def from_rows(y: Shaped[Array, "R L"], trajectory: Trajectory) -> Shaped[Array, "B T"]:
    """Inverse of `to_rows`; 0 off the trained tokens where rows are windows."""
    if trajectory.windows is None:
        return y
    windows = trajectory.windows
    return from_windows(
        y.reshape(windows.tokens.shape),
        mask=trajectory.loss_mask,
        turn_index=trajectory.turn_index,
        reply_start=trajectory.turns.reply_start,
        window_of_turn=windows.of_turn,
        window_start=windows.reply_start,
    )
