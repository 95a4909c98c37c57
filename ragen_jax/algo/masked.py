"""Reductions over the entries a mask selects. The empty case is defined: it is 0.

Entries off the mask are never read: not-a-number there changes neither the value nor
the gradient of the reduction.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

Axis = int | tuple[int, ...] | None

# Units in the last place of the largest number, or of 1 if that is larger: sums of the
# same rewards in another order, or cut into turns differently, differ by a few.
_ROUNDING_UNITS = 16


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


def as_float(x: Num[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Numbers that may be whole, such as rewards that a user counts, as float32."""
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def rounding(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Differences up to this are rounding in sums as large as `x` in magnitude."""
    return _ROUNDING_UNITS * jnp.finfo(x.dtype).eps * jnp.maximum(jnp.abs(x), 1.0)


def masked_deviation(
    x: Float[Array, "*shape"], mask: Bool[Array, "*shape"], axis: Axis = None
) -> Float[Array, "*shape"]:
    """`x - mean` of the selected entries; 0 where they are equal, and off the mask.

    Entries that differ by rounding alone (`rounding` of the largest) are equal: divided
    by their own standard deviation, they would become as large as real differences.
    """
    x = jnp.where(mask, x, 0.0)
    count = jnp.maximum(jnp.sum(mask, axis=axis, keepdims=True), 1)
    mean = jnp.sum(x, axis=axis, keepdims=True) / count.astype(x.dtype)
    largest = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf, where=mask)
    smallest = jnp.min(x, axis=axis, keepdims=True, initial=jnp.inf, where=mask)
    size = jnp.maximum(jnp.abs(largest), jnp.abs(smallest))
    is_equal = (largest - smallest <= rounding(size)) & jnp.isfinite(size)
    return jnp.where(mask & ~is_equal, x - mean, 0.0)


def masked_variance(
    x: Float[Array, "*shape"],
    mask: Bool[Array, "*shape"],
    axis: Axis = None,
    *,
    ddof: int,
) -> Float[Array, "..."]:
    """Variance of the selected entries, 0 when there are no more than `ddof`.

    Equal entries (see `masked_deviation`) have the variance 0, exactly.

    Args:
      x, mask: entries and which of them count.
      axis: reduced axes, None for all.
      ddof: subtracted from the count in the denominator; 1 is Bessel's correction.
    """
    squares = jnp.sum(masked_deviation(x, mask, axis) ** 2, axis=axis)
    degrees = jnp.sum(mask, axis=axis) - ddof
    variance = squares / jnp.maximum(degrees, 1).astype(squares.dtype)
    return jnp.where(degrees > 0, variance, 0.0)
