"""Attention to a cache as GPU kernels, in Pallas for Triton.

Scores never leave the chip, and only filled slots are read; XLA's programs write the
scores of every slot to memory and read them twice. `attend_new_token` rotates one new
token per row, stores its key and value in the cache and attends; `attend_message`
attends for messages. Where there is no NVIDIA GPU, both compute the same in JAX's own
operations.
"""

import functools
import importlib.util

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ragen_jax.models.attention import (
    MASKED_SCORE,
    attend_many,
    rotate,
)
from ragen_jax.models.kv_cache import LayerCache, write_layer

# Slots per turn of a kernel's loop.
BLOCK_SLOTS = 64
# Warps of a program and turns whose loads are in flight, the fastest of 1 to 4 and 2
# to 3 on an H100 (docs/benchmarks-evidence.md).
NEW_TOKEN_WARPS, NEW_TOKEN_STAGES = 2, 3
# Queries of a message that share a block of slots.
TILE_ROWS = 64
# Triton multiplies matrices of at least this many rows and columns.
LEAST_TILE = 16
# Half of the largest head; the kernels have not been compiled for larger ones.
MOST_TILE = 64
_TRITON = "jax.experimental.pallas.triton"
# How tokens attend to the cache, see `rollout.decode_attention`.
DECODE_ATTENTIONS = ("auto", "plain", "triton")

Angles = tuple[Float[Array, "B 1 half"], Float[Array, "B 1 half"]]


def uses_kernel(name: str, head_dim: int, platform: str, num_tensor: int) -> bool:
    """Whether tokens of messages and replies attend by the kernels.

    Args:
      name: of `DECODE_ATTENTIONS`; "auto": by the kernel where it can run.
      head_dim: of the network.
      platform: of the devices that compute, see `sharding.kernel_platform`.
      num_tensor: devices that share the heads.

    Raises:
      ValueError: it was asked for and cannot run.
    """
    half, problem = head_dim // 2, None
    if platform != "gpu":
        problem = (
            "needs an NVIDIA GPU (Ampere or later), and JAX computes on a "
            f"{platform} here"
        )
    elif not LEAST_TILE <= half <= MOST_TILE or half & (half - 1):
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
    # Chosen when the program is lowered: it can be traced without a GPU.
    mixed, keys, values = jax.lax.platform_dependent(
        heads,
        angles,
        cache.keys,
        cache.values,
        positions,
        cuda=attend_by_kernel,
        default=attend_plainly,
    )
    return mixed, cache.replace(keys=keys, values=values)


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
    # A program per row and key/value head; axes that are None are absent in it.
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
        # Inputs 4 and 5, the cache, are outputs 1 and 2: one slot of it is written.
        input_output_aliases={4: 1, 5: 2},
        interpret=interpret,
        name="attend_new_token",
        **kernel_options(interpret, NEW_TOKEN_WARPS, NEW_TOKEN_STAGES),
    )(
        positions[:, 0],
        heads.reshape(batch, -1),
        *(angle[:, 0] for angle in angles),
        keys,
        values,
    )
    return mixed.reshape(batch, 1, num_heads * head_dim), keys, values


def kernel_options(interpret: bool, num_warps: int = 4, num_stages: int = 2) -> dict:
    """Keyword arguments of `pallas_call` for kernels of Triton."""
    if interpret:
        return {}
    from jax.experimental.pallas import triton

    params = triton.CompilerParams(num_warps=num_warps, num_stages=num_stages)
    return {"compiler_params": params}


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
    # The queries of a head are too few rows for Triton's products: empty ones fill up.
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
    # For later tokens; this one uses the copies that it holds.
    for part, offset in zip(key, (0, half), strict=True):
        keys[position, pl.ds(offset, half)] = part
    values[position, pl.ds(0, head_dim)] = value
    out = _attend(queries, key, value, old_keys, old_values, position)
    at = (rows * head_dim)[:, None] + jnp.arange(head_dim)[None]
    triton.store(mixed.at[at], out.astype(mixed.dtype), mask=is_query)


def _attend(queries, key, value, old_keys, old_values, position):
    """Softmax over the new token and the slots before it.

    Queries and keys are in halves, as they were rotated.
    """

    def wide(x):
        return x.astype(jnp.float32)

    # Softmax starts with the new token, so that its sum is never 0.
    score = sum(
        jnp.sum(wide(q) * wide(k)[None], axis=1)
        for q, k in zip(queries, key, strict=True)
    )
    sums = jnp.broadcast_to(wide(value), (score.shape[0], value.shape[0]))
    carry = (score, jnp.ones_like(score), sums)
    limits = jnp.full_like(score, position, jnp.int32)
    num_blocks = (position + BLOCK_SLOTS - 1) // BLOCK_SLOTS
    return _over_slots(queries, old_keys, old_values, limits, num_blocks, carry)


def _over_slots(queries, keys, values, limits, num_blocks, carry):
    """Softmax over the slots below each row's limit, a block of slots at a time.

    Each turn corrects the sums by the highest score so far (arXiv 2205.14135, section
    3.1). The parts of the queries lie side by side in the keys.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    head_dim = values.shape[1]
    size = head_dim // len(queries)

    def step(i, carry):
        highest, total, sums = carry
        first = i * BLOCK_SLOTS
        slots = first + jnp.arange(BLOCK_SLOTS)
        # Blocks have one size: after the last slot they are zero-padded and masked.
        is_slot = (slots < jnp.max(limits))[:, None]

        def block(of, offset, size):
            at = of.at[pl.ds(first, BLOCK_SLOTS), pl.ds(offset, size)]
            return triton.load(at, mask=is_slot, other=0.0)

        # TF32 would round float32 inputs to 10 bits of mantissa.
        product = functools.partial(triton.dot, allow_tf32=False)
        scores = sum(
            product(query, block(keys, k * size, size), trans_b=True)
            for k, query in enumerate(queries)
        )
        is_seen = slots[None] < limits[:, None]
        scores = jnp.where(is_seen, scores, MASKED_SCORE)
        top = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights, shrink = jnp.exp(scores - top[:, None]), jnp.exp(highest - top)
        total = total * shrink + jnp.sum(weights, axis=1)
        mixed = block(values, 0, head_dim)
        more = product(weights.astype(mixed.dtype), mixed)
        return top, total, sums * shrink[:, None] + more

    _, total, sums = jax.lax.fori_loop(0, num_blocks, step, carry)
    return sums / total[:, None]


def attend_message(
    queries: Float[Array, "B Q H F"],
    cache: LayerCache,
    positions: Int[Array, "B Q"],
) -> Float[Array, "B Q H F"]:
    """Tokens of a message, which the cache holds already, over the slots up to each.

    In float32 they attend plainly: the matrix units would round to TF32, and without
    them the kernel took 57 ms on an H100 where the plain operations take 2.

    Args:
      positions: of successive tokens.
    """
    is_wide = queries.dtype == jnp.float32
    return jax.lax.platform_dependent(
        queries,
        cache.keys,
        cache.values,
        positions[:, 0],
        cuda=message_plainly if is_wide else message_by_kernel,
        default=message_plainly,
    )


def message_plainly(queries, keys, values, starts):
    """`attend_message` in JAX's own operations; the cache as its two arrays."""
    batch, num_tokens, _, head_dim = queries.shape
    limits = starts[:, None] + jnp.arange(num_tokens)[None]
    is_seen = jnp.arange(keys.shape[2])[None, None] <= limits[:, :, None]
    grouped = (batch, num_tokens, keys.shape[1], -1, head_dim)
    grouped = queries.reshape(grouped) * head_dim**-0.5
    mixed = attend_many(grouped, jnp.swapaxes(keys, 2, 3), values, is_seen)
    return mixed.reshape(queries.shape)


def message_by_kernel(queries, keys, values, starts, *, interpret=False):
    """`attend_message` as a kernel; `interpret` runs it anywhere, for tests."""
    from jax.experimental import pallas as pl

    batch, num_tokens, num_heads, head_dim = queries.shape
    num_kv_heads, num_slots = keys.shape[1:3]
    group = num_heads // num_kv_heads
    rows = num_tokens * group
    # A token's queries of a key/value head are adjacent rows of one matrix.
    grouped = queries.reshape(batch, num_tokens, num_kv_heads, group, head_dim)
    grouped = jnp.swapaxes(grouped, 1, 2).reshape(batch, num_kv_heads, rows, head_dim)
    of_rows = pl.BlockSpec((None, None, rows, head_dim), lambda b, j, i: (b, j, 0, 0))
    of_slots = pl.BlockSpec(
        (None, None, num_slots, head_dim), lambda b, j, i: (b, j, 0, 0)
    )
    mixed = pl.pallas_call(
        functools.partial(_message_kernel, group),
        grid=(batch, num_kv_heads, pl.cdiv(rows, TILE_ROWS)),
        in_specs=[
            pl.BlockSpec((1,), lambda b, j, i: (b,)),
            of_rows,
            of_slots,
            of_slots,
        ],
        out_specs=of_rows,
        out_shape=jax.ShapeDtypeStruct(grouped.shape, queries.dtype),
        interpret=interpret,
        name="attend_message",
        **kernel_options(interpret),
    )(starts, grouped, keys, values)
    mixed = mixed.reshape(batch, num_kv_heads, num_tokens, group, head_dim)
    return jnp.swapaxes(mixed, 1, 2).reshape(queries.shape)


def _message_kernel(group, starts, queries, keys, values, mixed):
    """Some queries of one row and key/value head, over the slots that they may see."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (num_rows, head_dim), num_slots = queries.shape, keys.shape[0]
    first = pl.program_id(2) * TILE_ROWS
    rows = first + jnp.arange(TILE_ROWS)
    is_row = (rows < num_rows)[:, None]
    at = pl.ds(first, TILE_ROWS), pl.ds(0, head_dim)
    query = triton.load(queries.at[at], mask=is_row, other=0.0)
    query = (query * head_dim**-0.5).astype(query.dtype)
    # Rows after the last query repeat it, and are not stored.
    tokens = jnp.minimum(rows, num_rows - 1) // group
    limits = jnp.minimum(starts[0] + tokens + 1, num_slots)
    num_blocks = (jnp.max(limits) + BLOCK_SLOTS - 1) // BLOCK_SLOTS
    # Finite: minus infinity minus itself would be not-a-number.
    nothing = (
        jnp.full(TILE_ROWS, MASKED_SCORE, jnp.float32),
        jnp.zeros(TILE_ROWS),
        jnp.zeros((TILE_ROWS, head_dim)),
    )
    out = _over_slots([query], keys, values, limits, num_blocks, nothing)
    triton.store(mixed.at[at], out.astype(mixed.dtype), mask=is_row)
