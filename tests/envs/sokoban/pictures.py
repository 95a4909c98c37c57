"""States from pictures in the default symbols."""

import jax.numpy as jnp
import numpy as np

from envs.sokoban.env import EnvState


def states_of(*pictures, time=0):
    """A state of each picture."""
    boards = np.array([[list(row) for row in picture] for picture in pictures])
    flat = boards.reshape(len(pictures), -1)

    def cells(*symbols):
        return np.stack([np.flatnonzero(np.isin(row, symbols)) for row in flat])

    return EnvState(
        time=jnp.full(len(pictures), time, jnp.int32),
        walls=jnp.asarray(flat == "#"),
        targets=jnp.asarray(np.isin(flat, list("O√S"))),
        boxes=jnp.asarray(cells("X", "√"), jnp.int32),
        player=jnp.asarray(cells("P", "S")[:, 0], jnp.int32),
    )
