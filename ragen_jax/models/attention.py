"""Rotary embeddings and grouped-query attention, as functions on arrays.

`H` query heads share `J` key/value heads: query head `h` reads key/value head
`h // (H / J)`. Keys and values are never repeated. Scores and softmax are float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# Scores of slots a query may not see; finite, so that no row of scores can give NaN.
MASKED_SCORE = -1e30


def rope_angles(
    positions: Int[Array, "B Q"], head_dim: int, theta: float
) -> tuple[Float[Array, "B Q half"], Float[Array, "B Q half"]]:
    """Cosine and sine of each position's rotation angles, float32, half = F / 2.

    Pair `i` turns by `position * theta^(-2i/F)` (RoFormer, arXiv 2104.09864).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = 1.0 / np.float32(theta) ** exponents
    angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "B Q heads F"],
    angles: tuple[Float[Array, "B Q half"], Float[Array, "B Q half"]],
) -> Float[Array, "B Q heads F"]:
    """Turns pair (i, i + F/2) of each head by its angle; computed in float32."""
    cos, sin = (a[:, :, None] for a in angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def einsum_float32(spec: str, a: Array, b: Array) -> Array:
    """`einsum` of two arrays of one dtype, summed and returned in float32."""
    if a.dtype == jnp.float32:
        return jnp.einsum(spec, a, b)

    def accumulate(a, b):
        return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)

    def widen(a, b):  # XLA's CPU backend has no product of bfloat16s that gives float32
        return jnp.einsum(spec, a.astype(jnp.float32), b.astype(jnp.float32))

    return jax.lax.platform_dependent(a, b, cpu=widen, default=accumulate)


def attend(
    queries: Float[Array, "B Q H F"],
    keys: Float[Array, "B J F S"],
    values: Float[Array, "B J S F"],
    limits: Int[Array, "B Q"],
) -> Float[Array, "B Q H F"]:
    """Softmax attention; a query sees the slots up to and including its limit."""
    batch, num_queries, num_heads, head_dim = queries.shape
    num_kv_heads, num_slots = values.shape[1:3]
    shape = (batch, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    queries = queries.reshape(shape) * (head_dim**-0.5)
    is_seen = jnp.arange(num_slots)[None, None] <= limits[:, :, None]
    if num_queries == 1:
        mixed = jax.lax.platform_dependent(
            queries, keys, values, is_seen, cpu=attend_one, default=attend_many
        )
    else:
        mixed = attend_many(queries, keys, values, is_seen)
    return mixed.reshape(batch, num_queries, num_heads, head_dim)


def attend_many(
    queries: Float[Array, "B Q J g F"],
    keys: Float[Array, "B J F S"],
    values: Float[Array, "B J S F"],
    is_seen: Bool[Array, "B Q S"],
) -> Float[Array, "B Q J g F"]:
    """Attention as two batched matrix products: any number of scaled queries."""
    scores = einsum_float32("bqjgf,bjfs->bjgqs", queries, keys)
    scores = jnp.where(is_seen[:, None, None], scores, MASKED_SCORE)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    return jnp.einsum("bjgqs,bjsf->bqjgf", weights, values).astype(queries.dtype)


def attend_one(
    queries: Float[Array, "B 1 J g F"],
    keys: Float[Array, "B J F S"],
    values: Float[Array, "B J S F"],
    is_seen: Bool[Array, "B 1 S"],
) -> Float[Array, "B 1 J g F"]:
    """The same for one query per row, as multiply and reduce.

    XLA's CPU backend runs a batch of tiny products one library call each; a fused
    reduction over the cache takes about half the time.
    """
    query = queries[:, 0, :, :, :, None].astype(jnp.float32)  # [B, J, g, F, 1]
    scores = jnp.sum(query * keys[:, :, None].astype(jnp.float32), axis=-2)
    scores = jnp.where(is_seen[:, :, None], scores, MASKED_SCORE)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    products = weights[..., None].astype(jnp.float32) * values[:, :, None]
    return jnp.sum(products, axis=-2)[:, None].astype(queries.dtype)
