"""A branch per row that costs as much as the rows that take it.

Under `vmap`, `jax.lax.cond` computes both branches for every row. Few of many games end
at a step, and a new level costs as much as dozens of steps: here the rows that take the
branch are gathered, computed in small batches, and put back.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

# A batch is this share of the rows: about what ends at a step of games of 64 actions.
BATCH_SHARE = 64
# Batches below this size take as long as one of this size.
SMALLEST_BATCH = 8
# If more than this share of the rows takes the branch, one batch of all rows is faster.
DENSE_SHARE = 4


def replace_where(
    condition: Bool[Array, ""], make: Callable, arguments: tuple, otherwise: PyTree
) -> PyTree:
    """`make(*arguments)` where `condition` holds, else `otherwise`.

    Equal to a select of the two, also under `vmap`, nested or not. `make` must use
    batched arrays through `arguments` only.

    Args:
      condition: of one row.
      make: function of one row's arguments.
      arguments: pytrees of arrays or numbers; typed keys and raw keys will do.
      otherwise: pytree of the structure, shapes and types of the result.

    Raises:
      TypeError: `make` returns other types than those of `otherwise`.
    """

    @jax.custom_batching.custom_vmap
    def replace_rows(condition, arguments, otherwise):
        return _replace_rows(condition, jax.vmap(make), arguments, otherwise)

    @replace_rows.def_vmap
    def replace_rows_of_rows(axis_size, are_batched, *operands):
        def flatten(x, is_batched):
            x = x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        flat = jax.tree.map(flatten, operands, tuple(are_batched))
        rows = jax.tree.map(
            lambda x: x.reshape(axis_size, -1, *x.shape[1:]), replace_rows(*flat)
        )
        return rows, jax.tree.map(lambda _: True, rows)

    operands = (condition, arguments, otherwise)
    one_row = jax.tree.map(lambda x: jnp.asarray(x)[None], operands)
    return jax.tree.map(lambda x: x[0], replace_rows(*one_row))


def _replace_rows(condition, make_rows: Callable, arguments, otherwise):
    """`replace_where` for rows, on the first axis of every array."""
    num_rows = condition.shape[0]
    batch = max(num_rows // BATCH_SHARE, SMALLEST_BATCH)

    def replace_at_once(otherwise):
        def select(new, old):
            chosen = condition.reshape(-1, *(1,) * (old.ndim - 1))
            return jax.lax.select(jnp.broadcast_to(chosen, old.shape), new, old)

        return jax.tree.map(select, make_rows(*arguments), otherwise)

    if num_rows <= batch:
        return jax.lax.cond(
            condition.any(), replace_at_once, lambda otherwise: otherwise, otherwise
        )
    # `ranks[i]`: rows up to `i` that take the branch. `cumsum` would take four times as
    # long on a CPU.
    ranks = jax.lax.associative_scan(jnp.add, condition.astype(jnp.int32))

    def replace_batch(carry):
        done, result = carry
        wanted = done + jnp.arange(1, batch + 1, dtype=jnp.int32)
        rows = jnp.searchsorted(ranks, wanted)  # `num_rows` beyond the last
        taken = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), arguments)
        result = jax.tree.map(
            lambda old, new: old.at[rows].set(new, mode="drop"),
            result,
            make_rows(*taken),
        )
        return done + batch, result

    def replace_in_batches(otherwise):
        def is_left(carry):
            return carry[0] < ranks[-1]

        start = (jnp.int32(0), otherwise)
        return jax.lax.while_loop(is_left, replace_batch, start)[1]

    return jax.lax.cond(
        ranks[-1] > num_rows // DENSE_SHARE,
        replace_at_once,
        replace_in_batches,
        otherwise,
    )
