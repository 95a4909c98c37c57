"""The rows that networks read: dialogues, or the windows the model saw of them.

In: a trajectory. Out: rows of tokens, and the way from its tokens to theirs and back.
Where the model saw the whole dialogue a row is an episode; where it saw a window a row
is a turn (`R = B` or `R = B * K` rows of `L = T` or `W` tokens). Rewards, filters and
advantages live on the dialogue's side, forward passes on this one.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from ragen_jax.algo.windows import from_windows, to_windows
from ragen_jax.types import Trajectory


def row_tokens(trajectory: Trajectory) -> Int[Array, "R L"]:
    """What to read; padding, which may be anything, becomes 0."""
    of = trajectory if trajectory.windows is None else trajectory.windows
    tokens = of.tokens.reshape(-1, of.tokens.shape[-1])
    order = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    return jnp.where(order[None] < of.lengths.reshape(-1, 1), tokens, 0)


def rows_of(kept: Bool[Array, " B"], trajectory: Trajectory) -> Bool[Array, " R"]:
    """The rows of some episodes; turns that were not played have none."""
    if trajectory.windows is None:
        return kept
    return (kept[:, None] & trajectory.turns.played).reshape(-1)


def to_rows(x: Shaped[Array, "B T"], trajectory: Trajectory) -> Shaped[Array, "R L"]:
    """A number per token of the dialogue, for the tokens of the rows."""
    if trajectory.windows is None:
        return x
    y = to_windows(x, trajectory)
    return y.reshape(-1, y.shape[-1])


def from_rows(y: Shaped[Array, "R L"], trajectory: Trajectory) -> Shaped[Array, "B T"]:
    """The way back; 0 off the trained tokens where rows are windows."""
    if trajectory.windows is None:
        return y
    return from_windows(y.reshape(trajectory.windows.tokens.shape), trajectory)
