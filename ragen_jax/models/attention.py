"""Rotary embeddings and grouped-query attention, as functions on arrays.

`H` query heads share `J` key/value heads: query head `h` reads key/value head
`h // (H / J)`. Keys and values are never repeated. Scores and softmax are float32.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Shaped

from ragen_jax.models.config import Llama3Rope
from ragen_jax.models.products import einsum_float32, einsum_narrow

# Scores of slots a query may not see; finite, so that no row of scores can give NaN.
MASKED_SCORE = -1e30

# On CPUs: slots are read in steps of this many, or in this many steps at most; ...
LIVE_SLOTS_STEP, LIVE_SLOTS_SIZES = 64, 8
# ... and messages attend this many rows at a time.
BLOCK_ROWS = 16
# In passes with gradients: smallest block of queries, and largest number of blocks.
CAUSAL_BLOCK, CAUSAL_BLOCKS = 64, 6

# Largest head that all GPUs allow; the newest allow more.
MAX_CUDNN_HEAD = 128
# Lengths are rounded up to a multiple of it.
CUDNN_STEP = 8


def rope_angles(
    positions: Int[Array, "B Q"],
    head_dim: int,
    theta: float,
    scaling: Llama3Rope | None = None,
) -> tuple[Float[Array, "B Q half"], Float[Array, "B Q half"]]:
    """Cosine and sine of each position's rotation angles, float32, half = F / 2.

    Pair `i` turns by `position * theta^(-2i/F)` (RoFormer, arXiv 2104.09864), or more
    slowly, see `_slowed`.
    """
    frequencies = rope_frequencies(head_dim, theta)
    if scaling is not None:
        frequencies = _slowed(frequencies, scaling)
    angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None]
    return jnp.cos(angles), jnp.sin(angles)


def rope_frequencies(num_turned: int, theta: float) -> Float[np.ndarray, " half"]:
    """`theta^(-2i/n)` for the pairs `i` of `n` numbers, float32."""
    exponents = np.arange(0, num_turned, 2, dtype=np.float32) / np.float32(num_turned)
    return 1.0 / np.float32(theta) ** exponents


def _slowed(frequencies: np.ndarray, scaling: Llama3Rope) -> np.ndarray:
    """Frequencies of Llama 3.1, float32.

    Of `turns` of a pair within the original context: up to the low factor they are
    divided by `factor`, from the high factor on they stay, and between them the two are
    mixed linearly in `turns`.

    Source: the code released with Llama 3.1 (`apply_scaling` of its model.py).
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    context = scaling.original_max_position_embeddings
    turns = context * frequencies / np.float32(2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1).astype(np.float32)
    return (1 - kept) * frequencies / np.float32(scaling.factor) + kept * frequencies


def rotate(
    x: Float[Array, "B Q heads F"],
    angles: tuple[Float[Array, "B Q half"], Float[Array, "B Q half"]],
) -> Float[Array, "B Q heads F"]:
    """Turns pair (i, i + F/2) of each head by its angle; computed in float32."""
    cos, sin = (a[:, :, None] for a in angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def attend_causal(
    queries: Float[Array, "B Q H F"],
    keys: Float[Array, "B Q J F"],
    values: Float[Array, "B Q J F"],
) -> Float[Array, "B Q H F"]:
    """Softmax attention; query `i` sees the tokens `0..i`. For gradients."""
    keys, values = jnp.transpose(keys, (0, 2, 3, 1)), jnp.swapaxes(values, 1, 2)
    grouped = jnp.transpose(_by_kv_head(queries, keys), (0, 2, 3, 1, 4))
    mixed = _causal(grouped, keys, values)
    return jnp.transpose(mixed, (0, 3, 1, 2, 4)).reshape(queries.shape)


@jax.custom_vjp
def _causal(
    queries: Float[Array, "B J g Q F"],
    keys: Float[Array, "B J F Q"],
    values: Float[Array, "B J Q F"],
) -> Float[Array, "B J g Q F"]:
    """Scaled queries against slots, blocks of queries at a time.

    A block does not look at slots that none of its queries may see, which is nearly
    half of them. The gradient is written out: what autodiff makes of a softmax passes
    over the scores twice as often.
    """
    return _causal_forward(queries, keys, values)[0]


def _causal_forward(queries, keys, values):
    mixed, weights = [], []
    for first, end in _causal_blocks(queries.shape[3]):
        block = queries[:, :, :, first:end]
        scores = einsum_float32("bjgqf,bjfs->bjgqs", block, keys[..., :end])
        is_seen = np.arange(end)[None] <= np.arange(first, end)[:, None]
        scores = jnp.where(is_seen[None, None, None], scores, MASKED_SCORE)
        weight = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        mixed.append(einsum_narrow("bjgqs,bjsf->bjgqf", weight, values[:, :, :end]))
        weights.append(weight)
    out = jnp.concatenate(mixed, axis=3).astype(queries.dtype)
    return out, (queries, keys, values, out, weights)


def _causal_backward(residuals, grad):
    """With `P` the weights and `O` what was mixed: `dS = P * (dP - sum(dO * O))`.

    Source: FlashAttention, arXiv 2205.14135, appendix B.2.
    """
    queries, keys, values, out, weights = residuals
    wide = grad.astype(jnp.float32) * out.astype(jnp.float32)
    along = jnp.sum(wide, axis=-1, keepdims=True)
    grad, num_slots = grad.astype(values.dtype), values.shape[2]
    of_queries = []
    of_keys, of_values = jnp.zeros_like(keys), jnp.zeros_like(values)
    blocks = _causal_blocks(num_slots)
    for (first, end), weight in zip(blocks, weights, strict=True):
        block, rows = queries[:, :, :, first:end], grad[:, :, :, first:end]
        unseen = 0, num_slots - end
        of_value = einsum_narrow("bjgqs,bjgqf->bjsf", weight, rows)
        of_weight = einsum_float32("bjgqf,bjsf->bjgqs", rows, values[:, :, :end])
        of_score = weight.astype(jnp.float32) * (of_weight - along[:, :, :, first:end])
        of_score = of_score.astype(queries.dtype)
        of_query = einsum_narrow("bjgqs,bjfs->bjgqf", of_score, keys[..., :end])
        of_key = einsum_narrow("bjgqs,bjgqf->bjfs", of_score, block)
        of_queries.append(of_query)
        of_keys += jnp.pad(of_key, ((0, 0), (0, 0), (0, 0), unseen))
        of_values += jnp.pad(of_value, ((0, 0), (0, 0), unseen, (0, 0)))
    return jnp.concatenate(of_queries, axis=3), of_keys, of_values


def _causal_blocks(num_queries: int) -> list[tuple[int, int]]:
    size = max(CAUSAL_BLOCK, -(-num_queries // CAUSAL_BLOCKS))
    return [(i, min(i + size, num_queries)) for i in range(0, num_queries, size)]


_causal.defvjp(_causal_forward, _causal_backward)


def attend_cached(
    queries: Float[Array, "B Q H F"],
    keys: Float[Array, "B J F S"],
    values: Float[Array, "B J S F"],
    limits: Int[Array, "B Q"],
    *,
    reads_all: bool = False,
) -> Float[Array, "B Q H F"]:
    """Attention over the slots up to each query's limit; not for gradients.

    `reads_all`: see `KVCache`.
    """
    queries = _by_kv_head(queries, keys)

    def everything(queries, keys, values, limits):
        is_seen = _is_seen(limits, keys.shape[-1])
        return attend_many(queries, keys, values, is_seen)

    on_cpu = everything if reads_all else attend_live
    mixed = jax.lax.platform_dependent(
        queries, keys, values, limits, cpu=on_cpu, default=everything
    )
    return mixed.reshape(*limits.shape, -1, keys.shape[2])


def attend_shared(
    queries: Float[Array, "B Q H F"],
    keys: Float[Array, "B J F Q"],
    values: Float[Array, "B J Q F"],
    shared_keys: Float[Array, "P J F S"],
    shared_values: Float[Array, "P J S F"],
    lengths: Int[Array, " P"],
) -> Float[Array, "B Q H F"]:
    """Attention of rows that continue prompts, whose keys are stored once per prompt.

    Args:
      queries, keys, values: of the rows' tokens. Each prompt has the same number of
        rows, which are adjacent. A token sees its row's tokens up to itself, and the
        prompt.
      shared_keys, shared_values: of the prompts.
      lengths: number of filled slots of each prompt.
    """
    num_prompts = lengths.shape[0]

    def by_prompt(x):  # [B, ...] -> [P, rows of a prompt, ...]
        return x.reshape(num_prompts, -1, *x.shape[1:])

    grouped = jnp.transpose(_by_kv_head(queries, keys), (0, 2, 3, 1, 4))
    is_prompt = jnp.arange(shared_keys.shape[-1])[None] < lengths[:, None]
    rows = (by_prompt(x) for x in (grouped, keys, values))
    mixed = _shared_causal(*rows, shared_keys, shared_values, is_prompt)
    mixed = jnp.transpose(mixed.reshape(grouped.shape), (0, 3, 1, 2, 4))
    return mixed.reshape(queries.shape)


@jax.custom_vjp
def _shared_causal(
    queries: Float[Array, "P m J g Q F"],
    keys: Float[Array, "P m J F Q"],
    values: Float[Array, "P m J Q F"],
    shared_keys: Float[Array, "P J F S"],
    shared_values: Float[Array, "P J S F"],
    is_prompt: Bool[Array, "P S"],
) -> Float[Array, "P m J g Q F"]:
    """`_causal` with the slots of a prompt before those of its `m` rows.

    Scores of both kinds stay in arrays of their own, laid out as their products leave
    them: a prompt's queries of all rows are one matrix. Only maxima and sums cross.
    """
    return _shared_forward(
        queries, keys, values, shared_keys, shared_values, is_prompt
    )[0]


def _shared_forward(queries, keys, values, shared_keys, shared_values, is_prompt):
    of_prompt = einsum_float32("pjmgqf,pjfs->pjmgqs", _swap(queries), shared_keys)
    is_seen = is_prompt[:, None, None, None, None]
    of_prompt = jnp.where(is_seen, of_prompt, MASKED_SCORE)
    highest = _swap(jnp.max(of_prompt, axis=-1))
    blocks, of_rows, tops, sums = _causal_blocks(queries.shape[4]), [], [], []
    for first, end in blocks:
        block = queries[:, :, :, :, first:end]
        scores = einsum_float32("pmjgqf,pmjfs->pmjgqs", block, keys[..., :end])
        is_past = np.arange(end)[None] <= np.arange(first, end)[:, None]
        scores = jnp.where(is_past[None, None, None, None], scores, MASKED_SCORE)
        top = jnp.maximum(jnp.max(scores, axis=-1), highest[..., first:end])
        scores = jnp.exp(scores - top[..., None])
        of_rows.append(scores)
        tops.append(top)
        sums.append(jnp.sum(scores, axis=-1))
    top = _swap(jnp.concatenate(tops, axis=-1))
    of_prompt = jnp.exp(of_prompt - top[..., None])
    total = jnp.concatenate(sums, axis=-1) + _swap(jnp.sum(of_prompt, axis=-1))
    of_prompt = (of_prompt / _swap(total)[..., None]).astype(values.dtype)
    mixed, weights = [], []
    for (first, end), scores in zip(blocks, of_rows, strict=True):
        weight = (scores / total[..., first:end, None]).astype(values.dtype)
        seen = values[:, :, :, :end]
        mixed.append(einsum_narrow("pmjgqs,pmjsf->pmjgqf", weight, seen))
        weights.append(weight)
    out = jnp.concatenate(mixed, axis=4)
    out += _swap(einsum_narrow("pjmgqs,pjsf->pjmgqf", of_prompt, shared_values))
    out = out.astype(queries.dtype)
    arrays = queries, keys, values, shared_keys, shared_values
    return out, (*arrays, out, of_prompt, weights)


def _shared_backward(residuals, grad):
    """See `_causal_backward`."""
    queries, keys, values, shared_keys, shared_values, out, weight, weights = residuals
    wide = grad.astype(jnp.float32) * out.astype(jnp.float32)
    along = jnp.sum(wide, axis=-1, keepdims=True)
    grad, num_slots = grad.astype(values.dtype), values.shape[3]
    of_queries = []
    of_keys, of_values = jnp.zeros_like(keys), jnp.zeros_like(values)
    for (first, end), of_row in zip(_causal_blocks(num_slots), weights, strict=True):
        block, rows = (x[:, :, :, :, first:end] for x in (queries, grad))
        unseen = [(0, 0)] * 3 + [(0, num_slots - end)]
        of_value = einsum_narrow("pmjgqs,pmjgqf->pmjsf", of_row, rows)
        of_weight = einsum_float32("pmjgqf,pmjsf->pmjgqs", rows, values[:, :, :, :end])
        of_weight -= along[:, :, :, :, first:end]
        of_score = (of_row.astype(jnp.float32) * of_weight).astype(queries.dtype)
        of_query = einsum_narrow("pmjgqs,pmjfs->pmjgqf", of_score, keys[..., :end])
        of_key = einsum_narrow("pmjgqs,pmjgqf->pmjfs", of_score, block)
        of_queries.append(of_query)
        of_keys += jnp.pad(of_key, [(0, 0), *unseen])
        of_values += jnp.pad(of_value, [*unseen, (0, 0)])
    rows, along = _swap(grad), _swap(along)
    of_shared_values = einsum_narrow("pjmgqs,pjmgqf->pjsf", weight, rows)
    of_weight = einsum_float32("pjmgqf,pjsf->pjmgqs", rows, shared_values) - along
    of_score = (weight.astype(jnp.float32) * of_weight).astype(queries.dtype)
    of_shared_keys = einsum_narrow("pjmgqs,pjmgqf->pjfs", of_score, _swap(queries))
    of_query = _swap(einsum_narrow("pjmgqs,pjfs->pjmgqf", of_score, shared_keys))
    of_query += jnp.concatenate(of_queries, axis=4)
    return of_query, of_keys, of_values, of_shared_keys, of_shared_values, None


def _swap(x: Shaped[Array, "P a b *w"]) -> Shaped[Array, "P b a *w"]:
    return jnp.swapaxes(x, 1, 2)


_shared_causal.defvjp(_shared_forward, _shared_backward)


def _by_kv_head(queries: Float[Array, "B Q H F"], keys) -> Float[Array, "B Q J g F"]:
    batch, num_queries, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    shape = (batch, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    return queries.reshape(shape) * (head_dim**-0.5)


def _is_seen(limits: Int[Array, "B Q"], num_slots: int) -> Bool[Array, "B Q S"]:
    return jnp.arange(num_slots)[None, None] <= limits[:, :, None]


def attend_live(
    queries: Float[Array, "B Q J g F"],
    keys: Float[Array, "B J F S"],
    values: Float[Array, "B J S F"],
    limits: Int[Array, "B Q"],
) -> Float[Array, "B Q J g F"]:
    """Attention over as many leading slots as any query may see, for CPUs.

    The number of slots is rounded up to one of a few sizes, each compiled. The others
    would have weight 0: results differ by the order of sums alone.
    """
    num_slots = keys.shape[-1]
    step = max(LIVE_SLOTS_STEP, -(-num_slots // LIVE_SLOTS_SIZES))
    sizes = [*range(step, num_slots, step), num_slots]

    def over(size: int, queries, keys, values, limits):
        keys, values = keys[..., :size], values[:, :, :size]
        is_seen = _is_seen(limits, size)
        if queries.shape[1] == 1:
            return attend_many(queries, keys, values, is_seen)
        return attend_in_blocks(queries, keys, values, is_seen)

    index = jnp.max(limits) // step
    branches = [functools.partial(over, size) for size in sizes]
    return jax.lax.switch(index, branches, queries, keys, values, limits)


def attend_many(
    queries: Float[Array, "B Q J g F"],
    keys: Float[Array, "B J F S"],
    values: Float[Array, "B J S F"],
    is_seen: Bool[Array, "B Q S"],
) -> Float[Array, "B Q J g F"]:
    """Attention as two batched matrix products: any number of scaled queries.

    Queries are laid out like the scores first: on CPUs the products, and even more so
    their gradients, then take half the time.
    """
    queries = jnp.transpose(queries, (0, 2, 3, 1, 4))
    scores = einsum_float32("bjgqf,bjfs->bjgqs", queries, keys)
    scores = jnp.where(is_seen[:, None, None], scores, MASKED_SCORE)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    mixed = einsum_narrow("bjgqs,bjsf->bjgqf", weights, values).astype(queries.dtype)
    return jnp.transpose(mixed, (0, 3, 1, 2, 4))


def attend_in_blocks(
    queries: Float[Array, "B Q J g F"],
    keys: Float[Array, "B J F S"],
    values: Float[Array, "B J S F"],
    is_seen: Bool[Array, "B Q S"],
) -> Float[Array, "B Q J g F"]:
    """`attend_many`, a few rows at a time: their scores stay in a CPU's cache."""
    arrays = (queries, keys, values, is_seen)
    return jax.lax.map(
        lambda row: attend_many(*(x[None] for x in row))[0],
        arrays,
        batch_size=BLOCK_ROWS,
    )


def choose_attention(name: str, dtype: jnp.dtype, head_dim: int, platform: str) -> str:
    """The entry of `CAUSAL_ATTENTIONS` that a value of `model.attention` names.

    Args:
      name: an entry, or "auto": cuDNN's where it can run, else ours.
      dtype, head_dim: of the network.
      platform: of the devices that compute, see `sharding.kernel_platform`.

    Raises:
      ValueError: cuDNN cannot run there, or not with this dtype or head size.
    """
    problem = None
    if platform != "gpu":
        problem = (
            "needs an NVIDIA GPU (Ampere or later), and JAX computes on a "
            f"{platform} here"
        )
    elif dtype == jnp.float32:
        problem = "computes in bfloat16, and model.dtype = 'float32'"
    elif head_dim % 8 or head_dim > MAX_CUDNN_HEAD:
        problem = (
            f"needs heads of a multiple of 8 numbers, {MAX_CUDNN_HEAD} at most, and "
            f"the model's have {head_dim}"
        )
    if name == AUTO:
        return "blocks" if problem else "cudnn"
    if name == "cudnn" and problem:
        raise ValueError(f"model.attention = 'cudnn' {problem}; use {AUTO!r}")
    return name


def _library(implementation: str):
    return functools.partial(
        jax.nn.dot_product_attention, is_causal=True, implementation=implementation
    )


def _on_each_head(function: Callable) -> Callable:
    """`function` of arrays [rows, tokens, heads, F], by each device for what it holds.

    cuDNN's attention says itself how it is split, which XLA asks where all axes of the
    mesh are automatic. Where some are not, JAX has to split it by the others.
    """
    mesh = jax.sharding.get_abstract_mesh()
    automatic = set(mesh.axis_names) - set(mesh.manual_axes)
    if not mesh.manual_axes or not automatic:
        return function
    rows = tuple(axis for axis in mesh.axis_names if axis in automatic - {"tensor"})
    by_head = PartitionSpec(rows, None, "tensor" if "tensor" in automatic else None)
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=by_head,
        out_specs=by_head,
        axis_names=automatic,
        check_vma=False,
    )


def _cudnn(queries, keys, values):
    """Pads to even lengths, which the gradient needs; padding is never attended to."""
    num_tokens = queries.shape[1]
    padding = (0, 0), (0, -num_tokens % CUDNN_STEP), (0, 0), (0, 0)
    padded = (jnp.pad(x, padding) for x in (queries, keys, values))
    return _on_each_head(_library("cudnn"))(*padded)[:, :num_tokens]


# Attention of whole rows, in the learner: queries [B, Q, H, F], keys and values
# [B, Q, J, F] -> [B, Q, H, F]. Sampling, which reads a cache, does not use it.
CAUSAL_ATTENTIONS = {
    "blocks": attend_causal,
    "xla": _library("xla"),
    "cudnn": _cudnn,
}
# `model.attention` that leaves the choice to `choose_attention`.
AUTO = "auto"
