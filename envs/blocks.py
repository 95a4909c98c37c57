"""Many states in blocks of one size, so that a solver is compiled once for all of them.

In: a function of states and any number of states. Out: its results, on the host. A
program is compiled for a number of rows; the levels of training, those of validation
and the states on the way would be three programs that find the same thing.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

# States of a block: more are slower per state on a CPU, whose caches they leave, fewer
# would keep a GPU waiting for the next block.
BLOCK_ROWS = 512


def in_blocks(function: Callable[[Any], Any], states: Any) -> Any:
    """`function(states)` as NumPy arrays, computed for `BLOCK_ROWS` states at a time.

    Args:
      function: from a pytree of JAX's arrays to another one, each row by itself.
      states: pytree of arrays with the same leading axis.
    """
    states = jax.device_get(states)
    num_rows = len(jax.tree.leaves(states)[0])
    # The last block is filled up with states that are there.
    rows = np.resize(np.arange(num_rows), -(-num_rows // BLOCK_ROWS) * BLOCK_ROWS)
    blocks = [
        function(jax.device_put(jax.tree.map(lambda x, block=block: x[block], states)))
        for block in np.split(rows, len(rows) // BLOCK_ROWS)
    ]
    return jax.tree.map(
        lambda *parts: np.concatenate(parts)[:num_rows], *jax.device_get(blocks)
    )
