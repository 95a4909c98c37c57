"""Reductions over the entries a mask selects. The empty case is defined: it is 0.

Entries off the mask are never read: not-a-number there changes neither the value nor
the gradient of the reduction.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Axis = int | tuple[int, ...] | None


def masked_sum(
    x: Float[Array, "*shape"], mask: Bool[Array, "*shape"], axis: Axis = None
) -> Float[Array, "..."]:
    """Sum of the selected entries, 0 when there are none."""
    return jnp.sum(jnp.where(mask, x, 0.0), axis=axis)


def masked_mean(
    x: Float[Array, "*shape"], mask: Bool[Array, "*shape"], axis: Axis = None
) -> Float[Array, "..."]:
    """Mean of the selected entries, 0 when there are none."""
    total = masked_sum(x, mask, axis)
    return total / jnp.maximum(jnp.sum(mask, axis=axis), 1).astype(total.dtype)


def masked_variance(
    x: Float[Array, "*shape"],
    mask: Bool[Array, "*shape"],
    axis: Axis = None,
    *,
    ddof: int,
) -> Float[Array, "..."]:
    """Variance of the selected entries, 0 when there are no more than `ddof`.

    Args:
      x, mask: entries and which of them count.
      axis: reduced axes, None for all.
      ddof: subtracted from the count in the denominator; 1 is Bessel's correction.
    """
    x = jnp.where(mask, x, 0.0)
    count = jnp.maximum(jnp.sum(mask, axis=axis, keepdims=True), 1)
    mean = jnp.sum(x, axis=axis, keepdims=True) / count.astype(x.dtype)
    deviation = x - mean
    squares = masked_sum(deviation**2, mask, axis)
    degrees = jnp.sum(mask, axis=axis) - ddof
    variance = squares / jnp.maximum(degrees, 1).astype(x.dtype)
    return jnp.where(degrees > 0, variance, 0.0)
