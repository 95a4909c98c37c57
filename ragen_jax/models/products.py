"""Matrix products in bfloat16 that CPUs with instructions for it compute as such.

XLA's CPU backend widens both matrices and takes twice the time, except where the
product is asked for in float32 and its form is one of some (seen with JAX 0.10.2 and
0.11.2 on AVX-512 BF16). Gradients in bfloat16 have these forms here, too.
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

# Name of a product, for policies of `jax.checkpoint`.
PRODUCT = "product"


def product(a: Float[Array, "n k"], b: Float[Array, "k m"]) -> Float[Array, "n m"]:
    """`a @ b` of two matrices of one dtype, in that dtype; sums are in float32."""
    out = a @ b if a.dtype == jnp.float32 else _narrow(a, b)
    return checkpoint_name(out, PRODUCT)


def product_float32(
    a: Float[Array, "... k"], b: Float[Array, "m k"]
) -> Float[Array, "... m"]:
    """`a @ b.T` of one dtype, in float32.

    The gradient is rounded to that dtype before it is multiplied by a matrix.
    """
    if a.dtype == jnp.float32:
        return jnp.einsum("...k,mk->...m", a, b)
    return _wide(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], -1)


def einsum_float32(spec: str, a: Array, b: Array) -> Array:
    """`einsum` of two arrays of one dtype, summed and returned in float32."""
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


def einsum_narrow(spec: str, a: Array, b: Array) -> Array:
    """`einsum` of two arrays of one dtype, in that dtype; sums are in float32.

    Without a gradient of its own: see `product` for a matrix of weights.
    """
    if a.dtype == jnp.float32:
        return jnp.einsum(spec, a, b)

    def on_cpu(a, b):
        return einsum_float32(spec, a, b).astype(a.dtype)

    def elsewhere(a, b):
        return jnp.einsum(spec, a, b)

    return jax.lax.platform_dependent(a, b, cpu=on_cpu, default=elsewhere)


@jax.custom_vjp
def _narrow(a, b):
    return einsum_narrow("nk,km->nm", a, b)


def _narrow_backward(inputs, gradient):
    a, b = inputs
    return einsum_narrow("nm,km->nk", gradient, b), _sum_of_rows(a, gradient)


_narrow.defvjp(lambda a, b: (_narrow(a, b), (a, b)), _narrow_backward)


@jax.custom_vjp
def _wide(a, b):
    return einsum_float32("nk,mk->nm", a, b)


def _wide_backward(inputs, gradient):
    a, b = inputs
    gradient = gradient.astype(a.dtype)
    return einsum_narrow("nm,mk->nk", gradient, b), _sum_of_rows(gradient, a)


_wide.defvjp(lambda a, b: (_wide(a, b), (a, b)), _wide_backward)


def _sum_of_rows(a: Float[Array, "n k"], b: Float[Array, "n m"]) -> Array:
    """`a.T @ b`, in their dtype."""

    def on_cpu(a, b):
        # The form that is not widened sums over two axes.
        both = ((0, 1), (0, 1)), ((), ())
        a, b = a[None], b[None]
        wide = jax.lax.dot_general(a, b, both, preferred_element_type=jnp.float32)
        return wide.astype(a.dtype)

    def elsewhere(a, b):
        return jax.lax.dot_general(a, b, (((0,), (0,)), ((), ())))

    return jax.lax.platform_dependent(a, b, cpu=on_cpu, default=elsewhere)
