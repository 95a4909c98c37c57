"""Norm, product and bias of a token's queries, keys and values as one GPU kernel.

XLA launches three. Where there is no NVIDIA GPU, `project_plainly` computes the same.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ragen_jax.models.kernels.decode import kernel_options
from ragen_jax.models.products import einsum_float32

# Rows, columns and summands of a tile of the product.
TILE_ROWS, TILE_COLUMNS, TILE_SUM = 64, 32, 64


def project_normed(
    x: Float[Array, "B 1 D"],
    scale: Float[Array, " D"],
    eps: float,
    weights: Sequence[Float[Array, "D n"]],
    biases: Sequence[Float[Array, " n"]] | None,
) -> Float[Array, "B 1 N"]:
    """`RMSNorm(x)` times each of the matrices, plus its bias, side by side.

    The norm and the biases are computed in float32.
    """
    plain = functools.partial(project_plainly, eps=eps)
    kernel = functools.partial(project_by_kernel, eps=eps)
    columns = [matrix.shape[1] for matrix in weights]
    # The kernel has no masks along the summed axis and the columns.
    if x.shape[-1] % TILE_SUM or any(n % TILE_COLUMNS for n in columns):
        kernel = plain
    return jax.lax.platform_dependent(
        x, scale, weights, biases, cuda=kernel, default=plain
    )


def project_plainly(x, scale, weights, biases, *, eps):
    """`project_normed` in JAX's own operations."""
    wide = x[:, 0].astype(jnp.float32)
    square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normed = (wide * jax.lax.rsqrt(square + eps) * scale[None]).astype(x.dtype)
    out = [einsum_float32("bd,dn->bn", normed, matrix) for matrix in weights]
    if biases is not None:
        out = [
            y + b[None].astype(jnp.float32) for y, b in zip(out, biases, strict=True)
        ]
    return jnp.concatenate(out, axis=1)[:, None].astype(x.dtype)


def project_by_kernel(x, scale, weights, biases, *, eps, interpret=False):
    """`project_normed` as a kernel; `interpret` runs it anywhere, for tests."""
    from jax.experimental import pallas as pl

    columns = [matrix.shape[1] for matrix in weights]
    sources = (x[:, 0], scale, *weights, *(biases or ()))
    out = pl.pallas_call(
        functools.partial(_product_kernel, eps, columns),
        grid=(pl.cdiv(x.shape[0], TILE_ROWS), sum(columns) // TILE_COLUMNS),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], sum(columns)), x.dtype),
        interpret=interpret,
        name="project_normed",
        **kernel_options(interpret),
    )(*sources)
    return out[:, None]


def _product_kernel(eps, columns, x, scale, *refs):
    """Some rows and columns: the squares first, then the product of what is normed."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    *sources, out = refs
    weights, biases = sources[: len(columns)], sources[len(columns) :]
    (batch, width), steps = x.shape, x.shape[1] // TILE_SUM
    rows = pl.ds(pl.program_id(0) * TILE_ROWS, TILE_ROWS)
    is_row = pl.program_id(0) * TILE_ROWS + jnp.arange(TILE_ROWS) < batch
    column = pl.program_id(1) * TILE_COLUMNS

    def part(k):
        at = x.at[rows, pl.ds(k * TILE_SUM, TILE_SUM)]
        return triton.load(at, mask=is_row[:, None], other=0.0).astype(jnp.float32)

    def add_squares(k, total):
        return total + jnp.sum(part(k) * part(k), axis=1)

    squares = jax.lax.fori_loop(0, steps, add_squares, jnp.zeros(TILE_ROWS))
    norm = jax.lax.rsqrt(squares / width + eps)[:, None]

    def multiply(i, first):
        at = pl.ds(column - first, TILE_COLUMNS)

        def add_products(k, total):
            some = pl.ds(k * TILE_SUM, TILE_SUM)
            normed = (part(k) * norm * scale[some][None]).astype(x.dtype)
            return total + triton.dot(normed, weights[i][some, at], allow_tf32=False)

        zeros = jnp.zeros((TILE_ROWS, TILE_COLUMNS))
        total = jax.lax.fori_loop(0, steps, add_products, zeros)
        if biases:
            total += biases[i][at].astype(jnp.float32)[None]
        to = out.at[rows, pl.ds(column, TILE_COLUMNS)]
        triton.store(to, total.astype(out.dtype), mask=is_row[:, None])

    for i, num_columns in enumerate(columns):
        first = sum(columns[:i])
        is_here = (first <= column) & (column < first + num_columns)
        pl.when(is_here)(functools.partial(multiply, i, first))
