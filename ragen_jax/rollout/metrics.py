"""Metrics of a batch of episodes.

In: a trajectory. Out: scalars by name, RAGEN's where it has one. Every metric is a sum
and a weight; the metric is their quotient, 0 where the weight is 0. Runs inside `jit`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ragen_jax.types import Trajectory

SumAndWeight = tuple[Float[Array, ""], Float[Array, ""]]


def rollout_metrics(
    trajectory: Trajectory, *, group_size: int
) -> dict[str, Float[Array, ""]]:
    """Means over the episodes of a trajectory, by name (see `METRICS`).

    Besides those, `pass@N`: share of the groups of `group_size` = N rows in which at
    least one row succeeded.
    """
    values = {name: function(trajectory) for name, function in METRICS.items()}
    values[f"pass@{group_size}"] = _share(
        jnp.any(trajectory.success.reshape(-1, group_size), axis=1)
    )
    return {
        name: total / jnp.maximum(weight, 1) for name, (total, weight) in values.items()
    }


def success(trajectory: Trajectory) -> SumAndWeight:
    """Share of the episodes that reached the goal."""
    return _share(trajectory.success)


def episodic_return(trajectory: Trajectory) -> SumAndWeight:
    """Sum of an episode's rewards, format penalties not included."""
    return _share(jnp.sum(trajectory.turns.reward, axis=1))


def format_penalty(trajectory: Trajectory) -> SumAndWeight:
    """Sum of an episode's format penalties."""
    return _share(jnp.sum(trajectory.turns.penalty, axis=1))


def bonus(trajectory: Trajectory) -> SumAndWeight:
    """Sum of an episode's bonuses for how its replies are written."""
    return _share(jnp.sum(trajectory.turns.bonus, axis=1))


def num_turns(trajectory: Trajectory) -> SumAndWeight:
    """Turns per episode."""
    return _share(jnp.sum(trajectory.turns.played, axis=1))


def num_actions(trajectory: Trajectory) -> SumAndWeight:
    """Executed actions per episode."""
    return _share(jnp.sum(trajectory.turns.num_executed, axis=1))


def action_is_effective(trajectory: Trajectory) -> SumAndWeight:
    """Share of the executed actions that changed the player's situation."""
    turns = trajectory.turns
    return _ratio(turns.num_effective, turns.num_executed)


def action_is_valid(trajectory: Trajectory) -> SumAndWeight:
    """Share of the turns whose answer held a valid action."""
    turns = trajectory.turns
    return _ratio(turns.num_valid > 0, turns.played)


def has_format(trajectory: Trajectory) -> SumAndWeight:
    """Share of the turns whose reply had a thought and an answer in their tags."""
    return _ratio(trajectory.turns.has_format, trajectory.turns.played)


def reply_is_cut(trajectory: Trajectory) -> SumAndWeight:
    """Share of the turns whose reply reached the length limit."""
    return _ratio(trajectory.turns.reply_is_cut, trajectory.turns.played)


def response_length(trajectory: Trajectory) -> SumAndWeight:
    """Sampled tokens per episode."""
    return _share(jnp.sum(trajectory.loss_mask, axis=1))


def reply_length(trajectory: Trajectory) -> SumAndWeight:
    """Sampled tokens per turn."""
    return _ratio(trajectory.turns.reply_length, trajectory.turns.played)


def is_truncated(trajectory: Trajectory) -> SumAndWeight:
    """Share of the episodes that a budget ended."""
    return _share(trajectory.truncated)


def _share(values: Array) -> SumAndWeight:
    return _ratio(values, jnp.ones(values.shape))


def _ratio(numerators: Array, denominators: Array) -> SumAndWeight:
    return (
        jnp.sum(numerators, dtype=jnp.float32),
        jnp.sum(denominators, dtype=jnp.float32),
    )


METRICS = {
    "success": success,
    "episodic_return": episodic_return,
    "format_penalty": format_penalty,
    "bonus": bonus,
    "num_turns": num_turns,
    "num_actions": num_actions,
    "action_is_effective": action_is_effective,
    "action_is_valid": action_is_valid,
    "format": has_format,
    "reply_is_cut": reply_is_cut,
    "response_length": response_length,
    "reply_length": reply_length,
    "is_truncated": is_truncated,
}
