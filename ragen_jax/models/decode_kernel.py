"""One new token per row through attention: two GPU kernels, in Pallas for Triton.

`project_normed` makes queries, keys and values of the stream: norm, product and bias,
which XLA launches as three kernels. `attend_new_token` rotates them, stores key and
value in the cache and attends: scores never leave the chip, and only filled slots are
read, where XLA's programs write scores of every slot to memory and read them twice.
Where there is no NVIDIA GPU, both compute the same in JAX's own operations.
"""

import functools
import importlib.util
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ragen_jax.models.attention import (
    MASKED_SCORE,
    attend_many,
    einsum_float32,
    rotate,
)
from ragen_jax.models.kv_cache import LayerCache, write_layer

# Slots per turn of the kernel's loop, and warps that share them.
BLOCK_SLOTS, NUM_WARPS = 64, 4
# Rows, columns and summands of a tile of the product.
TILE_ROWS, TILE_COLUMNS, TILE_SUM = 64, 32, 64
# Triton multiplies matrices of at least this many rows and columns.
LEAST_TILE = 16
_TRITON = "jax.experimental.pallas.triton"
# How tokens of a reply attend, see `rollout.decode_attention`.
DECODE_ATTENTIONS = ("auto", "plain", "triton")

Angles = tuple[Float[Array, "B 1 half"], Float[Array, "B 1 half"]]


def uses_kernel(name: str, head_dim: int, platform: str, num_tensor: int) -> bool:
    """Whether tokens of a reply attend by the kernel.

    Args:
      name: of `DECODE_ATTENTIONS`; "auto": by the kernel where it can run.
      head_dim: of the network.
      platform: of the devices that compute, as JAX names it.
      num_tensor: devices that share the heads.

    Raises:
      ValueError: it was asked for and cannot run.
    """
    half, problem = head_dim // 2, None
    if platform != "gpu":
        problem = f"needs an NVIDIA GPU, and JAX computes on a {platform} here"
    elif half < LEAST_TILE or half & (half - 1):
        problem = f"needs heads of 32, 64, 128 numbers, and the model's have {head_dim}"
    elif importlib.util.find_spec(_TRITON) is None:  # deprecated since JAX 0.11
        problem = f"needs {_TRITON}, and this JAX ({jax.__version__}) lacks it"
    elif num_tensor > 1:
        problem = f"does not split heads over devices, and mesh.tensor = {num_tensor}"
    if name == "triton" and problem:
        raise ValueError(f"rollout.decode_attention = 'triton' {problem}; use 'auto'")
    return name != "plain" and problem is None


def attend_new_token(
    heads: Float[Array, "B 1 n F"],
    angles: Angles,
    cache: LayerCache,
    positions: Int[Array, "B 1"],
) -> tuple[Float[Array, "B 1 m"], LayerCache]:
    """Rotate the new token's query and key, store key and value, and attend.

    Args:
      heads: `H` queries, `J` keys and `J` values of size F, neither rotated nor scaled.
      angles: cosine and sine at each row's position.
      cache: of the layer, keys stored like values; updated in place where the caller
        lets go of it.
      positions: slot of the new token, which sees the slots before it and itself.

    Returns:
      What the queries mixed, `m = H F`, and the cache.
    """
    mixed, keys, values = jax.lax.platform_dependent(
        heads,
        angles,
        cache.keys,
        cache.values,
        positions,
        cuda=attend_by_kernel,
        default=attend_plainly,
    )
    return mixed, cache._replace(keys=keys, values=values)


def attend_plainly(heads, angles, keys, values, positions):
    """`attend_new_token` in JAX's own operations; the cache as its two arrays."""
    num_kv_heads, num_slots = keys.shape[1:3]
    num_heads = heads.shape[2] - 2 * num_kv_heads
    cuts = [num_heads, num_heads + num_kv_heads]
    queries, new_keys, new_values = jnp.split(heads, cuts, axis=2)
    queries, new_keys = rotate(queries, angles), rotate(new_keys, angles)
    cache = LayerCache(keys, values, slots_last=False)
    cache = write_layer(cache, new_keys, new_values, positions[:, 0])
    batch, _, _, head_dim = queries.shape
    queries = queries.reshape(batch, 1, num_kv_heads, -1, head_dim) * head_dim**-0.5
    is_seen = jnp.arange(num_slots)[None, None] <= positions[:, :, None]
    mixed = attend_many(queries, cache.keys_by_column, cache.values, is_seen)
    return mixed.reshape(batch, 1, num_heads * head_dim), cache.keys, cache.values


def attend_by_kernel(heads, angles, keys, values, positions, *, interpret=False):
    """`attend_new_token` as a kernel; `interpret` runs it anywhere, for tests."""
    from jax.experimental import pallas as pl

    batch, num_kv_heads, num_slots, head_dim = keys.shape
    num_heads = heads.shape[2] - 2 * num_kv_heads
    half, group = head_dim // 2, num_heads // num_kv_heads
    of_row = pl.BlockSpec((None, heads.shape[2] * head_dim), lambda b, j: (b, 0))
    of_angle = pl.BlockSpec((None, half), lambda b, j: (b, 0))
    of_head = pl.BlockSpec((None, None, num_slots, head_dim), lambda b, j: (b, j, 0, 0))
    of_group = pl.BlockSpec((None, None, group * head_dim), lambda b, j: (b, j, 0))
    of_position = pl.BlockSpec((1,), lambda b, j: (b,))
    mixed, keys, values = pl.pallas_call(
        functools.partial(_kernel, num_heads, num_kv_heads, head_dim),
        grid=(batch, num_kv_heads),
        in_specs=[of_position, of_row, of_angle, of_angle, of_head, of_head],
        out_specs=[of_group, of_head, of_head],
        out_shape=[
            jax.ShapeDtypeStruct((batch, num_kv_heads, group * head_dim), heads.dtype),
            jax.ShapeDtypeStruct(keys.shape, keys.dtype),
            jax.ShapeDtypeStruct(values.shape, values.dtype),
        ],
        input_output_aliases={4: 1, 5: 2},
        interpret=interpret,
        name="attend_new_token",
        **_options(interpret),
    )(
        positions[:, 0],
        heads.reshape(batch, -1),
        *(angle[:, 0] for angle in angles),
        keys,
        values,
    )
    return mixed.reshape(batch, 1, num_heads * head_dim), keys, values


def _options(interpret: bool) -> dict:
    if interpret:
        return {}
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=NUM_WARPS, num_stages=2)}


def _kernel(
    num_heads,
    num_kv_heads,
    head_dim,
    positions,
    heads,
    cosines,
    sines,
    old_keys,
    old_values,
    mixed,
    keys,
    values,
):
    """Of one row and key/value head: the queries that read it, over filled slots."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    dtype, half, group = old_keys.dtype, head_dim // 2, num_heads // num_kv_heads
    tile = max(LEAST_TILE, 1 << (group - 1).bit_length())
    j, position = pl.program_id(1), positions[0]
    angles = cosines[...], sines[...]
    rows = jnp.arange(tile)
    is_query = (rows < group)[:, None]

    def turn(first, second, cos, sin):
        first, second = first.astype(jnp.float32), second.astype(jnp.float32)
        return first * cos - second * sin, second * cos + first * sin

    def queries_from(offset):
        at = ((j * group + rows) * head_dim + offset)[:, None] + jnp.arange(half)[None]
        return triton.load(heads.at[at], mask=is_query, other=0.0)

    # As the plain network does: rotated in float32, kept in the computation's dtype.
    queries = turn(queries_from(0), queries_from(half), *(x[None] for x in angles))
    queries = [(x.astype(dtype) * head_dim**-0.5).astype(dtype) for x in queries]
    of_key = (num_heads + j) * head_dim
    halves = heads[pl.ds(of_key, half)], heads[pl.ds(of_key + half, half)]
    key = [x.astype(dtype) for x in turn(*halves, *angles)]
    of_value = (num_heads + num_kv_heads + j) * head_dim
    value = heads[pl.ds(of_value, head_dim)].astype(dtype)
    for part, offset in zip(key, (0, half), strict=True):
        keys[position, pl.ds(offset, half)] = part
    values[position, pl.ds(0, head_dim)] = value
    out = _attend(queries, key, value, old_keys, old_values, position)
    at = (rows * head_dim)[:, None] + jnp.arange(head_dim)[None]
    triton.store(mixed.at[at], out.astype(mixed.dtype), mask=is_query)


def _attend(queries, key, value, old_keys, old_values, position):
    """Softmax over the new token and the slots before it, a block of them at a time.

    Each turn corrects the sums by the highest score so far (arXiv 2205.14135, section
    3.1). Queries and keys are in halves, as they were rotated.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def wide(x):
        return x.astype(jnp.float32)

    half, dtype = key[0].shape[0], value.dtype
    own = sum(
        jnp.sum(wide(q) * wide(k)[None], axis=1)
        for q, k in zip(queries, key, strict=True)
    )
    sums = jnp.broadcast_to(wide(value), (own.shape[0], value.shape[0]))

    def step(i, carry):
        highest, total, sums = carry
        first = i * BLOCK_SLOTS
        is_seen = first + jnp.arange(BLOCK_SLOTS) < position

        def block(of, offset, size):
            at = of.at[pl.ds(first, BLOCK_SLOTS), pl.ds(offset, size)]
            return triton.load(at, mask=is_seen[:, None], other=0.0)

        scores = sum(
            pl.dot(query, block(old_keys, offset, half), trans_b=True, allow_tf32=False)
            for query, offset in zip(queries, (0, half), strict=True)
        )
        scores = jnp.where(is_seen[None], scores, MASKED_SCORE)
        top = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights, shrink = jnp.exp(scores - top[:, None]), jnp.exp(highest - top)
        total = total * shrink + jnp.sum(weights, axis=1)
        mixed = block(old_values, 0, 2 * half)
        more = pl.dot(weights.astype(dtype), mixed, allow_tf32=False)
        return top, total, sums * shrink[:, None] + more

    num_blocks = (position + BLOCK_SLOTS - 1) // BLOCK_SLOTS
    carry = (own, jnp.ones_like(own), sums)
    _, total, sums = jax.lax.fori_loop(0, num_blocks, step, carry)
    return sums / total[:, None]


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
        **_options(interpret),
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
            return total + pl.dot(normed, weights[i][some, at], allow_tf32=False)

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
