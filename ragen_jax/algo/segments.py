"""Segments of an episode: its rows, turns and context windows, as token arrays.

In: arrays with one number per token, turn or window. Out: the same numbers in another
of these layouts. Every sampled token has exactly one place in each layout. Rows that a
filter dropped have an empty `loss_mask`; a row takes part in statistics if it has a
trained token.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from ragen_jax.algo.masked import masked_sum


@struct.dataclass
class Estimate:
    """An estimator's result; both fields are 0 where `loss_mask` is False.

    Attributes:
      advantages: how much better than expected each token did.
      returns: the critic's targets; None from estimators that use no critic.
    """

    advantages: Float[Array, "B T"]
    returns: Float[Array, "B T"] | None = None


def takes_part(loss_mask: Bool[Array, "B T"]) -> Bool[Array, " B"]:
    """The row has a token to train on."""
    return jnp.any(loss_mask, axis=1)


def last_trained(loss_mask: Bool[Array, "B T"]) -> Bool[Array, "B T"]:
    """True at each row's last trained token, nowhere in a row without one."""
    order = jnp.arange(loss_mask.shape[1])[None]
    last = jnp.max(jnp.where(loss_mask, order, -1), axis=1)
    return order == last[:, None]


def last_trained_of_turns(
    loss_mask: Bool[Array, "B T"], turn_index: Int[Array, "B T"], num_turns: int
) -> Bool[Array, "B T"]:
    """True at the last trained token of each turn that has one."""
    order = jnp.arange(loss_mask.shape[1])[None]

    def last_of(turn):
        return jnp.max(
            jnp.where(loss_mask & (turn_index == turn), order, -1), axis=1, initial=-1
        )

    last = jax.vmap(last_of, out_axes=1)(jnp.arange(num_turns))
    return loss_mask & (order == spread_turns(last, turn_index))


def turn_sums(
    x: Float[Array, "B T"],
    loss_mask: Bool[Array, "B T"],
    turn_index: Int[Array, "B T"],
    num_turns: int,
) -> Float[Array, "B K"]:
    """Sum over each turn's trained tokens.

    One masked reduction per turn: scattered additions would come in any order on a GPU,
    and not give the same bits twice.
    """

    def sum_of(turn):
        return masked_sum(x, loss_mask & (turn_index == turn), axis=1)

    return jax.vmap(sum_of, out_axes=1)(jnp.arange(num_turns))


def spread_turns(
    x: Float[Array, "B K"] | Int[Array, "B K"], turn_index: Int[Array, "B T"]
) -> Float[Array, "B T"] | Int[Array, "B T"]:
    """Each token's entry of its turn; on padding the first turn's."""
    return jnp.take_along_axis(x, jnp.clip(turn_index, 0, x.shape[1] - 1), axis=1)


def to_windows(
    x: Shaped[Array, "B T"],
    *,
    turn_index: Int[Array, "B T"],
    reply_start: Int[Array, "B K"],
    reply_length: Int[Array, "B K"],
    window_of_turn: Int[Array, "B K"],
    window_start: Int[Array, "B K"],
    num_windows: int,
    width: int,
) -> Shaped[Array, "B M W"]:
    """Values of the sampled tokens by token of the windows; 0 elsewhere.

    Args:
      x: values by token of the dialogue.
      turn_index: of the dialogue's tokens.
      reply_start, reply_length: place of each reply in the dialogue.
      window_of_turn: the window that holds each reply.
      window_start: index of each reply's first token in its window.
      num_windows, width: M and W.
    """
    places = reply_start, window_of_turn, window_start
    place, nth = _places(turn_index, *places, width=width)
    length = spread_turns(reply_length, turn_index)
    is_reply = (turn_index >= 0) & (nth >= 0) & (nth < length)
    # Every token has a place of its own, so that none is written twice.
    place = jnp.where(is_reply, place, num_windows * width)
    rows = jnp.arange(x.shape[0])[:, None]
    y = jnp.zeros_like(x, shape=(x.shape[0], num_windows * width))
    y = y.at[rows, place].set(x, mode="drop")
    return y.reshape(-1, num_windows, width)


def from_windows(
    y: Shaped[Array, "B M W"],
    *,
    mask: Bool[Array, "B T"],
    turn_index: Int[Array, "B T"],
    reply_start: Int[Array, "B K"],
    window_of_turn: Int[Array, "B K"],
    window_start: Int[Array, "B K"],
) -> Shaped[Array, "B T"]:
    """Values of the sampled tokens by token of the dialogue; 0 where `mask` is False.

    Args: see `to_windows`; `mask` is of the dialogue's tokens.
    """
    num_windows, width = y.shape[1:]
    places = reply_start, window_of_turn, window_start
    place, _ = _places(turn_index, *places, width=width)
    x = jnp.take_along_axis(y.reshape(-1, num_windows * width), place, axis=1)
    return jnp.where(mask, x, jnp.zeros_like(x))


def _places(
    turn_index: Int[Array, "B T"],
    reply_start: Int[Array, "B K"],
    window_of_turn: Int[Array, "B K"],
    window_start: Int[Array, "B K"],
    *,
    width: int,
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Each sampled token's place among the windows' tokens, and in its reply."""
    window, start = (
        spread_turns(x, turn_index) for x in (window_of_turn, window_start)
    )
    order = jnp.arange(turn_index.shape[1], dtype=jnp.int32)[None, :]
    nth = order - spread_turns(reply_start, turn_index)
    return window * width + jnp.clip(start + nth, 0, width - 1), nth
