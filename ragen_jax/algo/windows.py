"""From the tokens of a dialogue to those of its windows, and back.

In: one number per token of a trajectory, or of its windows. Out: the same on the other
side, 0 off the replies. What is decided per token of the dialogue (advantages) so
reaches the rows the model reads, and what the model says of those (log-probabilities)
comes back. Exact: each sampled token stands once on either side.
"""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from ragen_jax.types import Trajectory


def to_windows(
    x: Shaped[Array, "B T"], trajectory: Trajectory
) -> Shaped[Array, "B K W"]:
    """Values of the sampled tokens, laid out as `trajectory.windows.tokens`."""
    windows, turns = trajectory.windows, trajectory.turns
    place = jnp.arange(windows.tokens.shape[2])[None, None, :]
    nth = place - windows.reply_start[..., None]
    is_reply = (nth >= 0) & (nth < turns.reply_length[..., None])
    source = jnp.clip(nth + turns.reply_start[..., None], 0, x.shape[1] - 1)
    found = jnp.take_along_axis(x[:, None, :], source, axis=2)
    return jnp.where(is_reply, found, jnp.zeros_like(found))


def from_windows(
    y: Shaped[Array, "B K W"], trajectory: Trajectory
) -> Shaped[Array, "B T"]:
    """Values of the sampled tokens, laid out as `trajectory.tokens`."""
    windows, turns = trajectory.windows, trajectory.turns
    num_turns, width = y.shape[1:]
    turn = jnp.clip(trajectory.turn_index, 0, num_turns - 1)
    shift = jnp.take_along_axis(windows.reply_start - turns.reply_start, turn, axis=1)
    place = jnp.arange(turn.shape[1])[None, :] + shift
    source = turn * width + jnp.clip(place, 0, width - 1)
    found = jnp.take_along_axis(y.reshape(-1, num_turns * width), source, axis=1)
    return jnp.where(trajectory.loss_mask, found, jnp.zeros_like(found))
