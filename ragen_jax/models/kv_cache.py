"""The keys and values of past tokens, as a plain value: made, passed, returned.

The caller keeps the rows' lengths; the cache does not record how far a row is filled. A
row's tokens lie without gaps, token `p` in slot `p`. Slots from the row's length on may
hold anything: a query at position `p` reads slots `0..p` only, all of which are written
by then.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from ragen_jax.models.config import ModelConfig

LayerCache = tuple[Float[Array, "B J F S"], Float[Array, "B J S F"]]


@struct.dataclass
class KVCache:
    """One array per layer, so that a loop that carries the cache updates it in place.

    Never pass it through the inputs and outputs of a scan over layers: that copies all
    of it at every step. Both products of a decode step then sum over the axis before
    the last, which CPUs do a vector at a time; with keys stored like values a step
    takes half as long again (4 layers, width 128, 128 rows, 280 slots).

    Attributes:
      keys: per layer, rotated keys, slots last.
      values: per layer.
    """

    keys: tuple[Float[Array, "B J F S"], ...]
    values: tuple[Float[Array, "B J S F"], ...]

    @property
    def num_slots(self) -> int:
        """`S`, tokens that fit in a row."""
        return self.values[0].shape[2]


@struct.dataclass
class SharedCache:
    """Prompts that have been read once, for several rows each to continue.

    Attributes:
      cache: a row per prompt. It is read, never written.
      lengths: number of filled slots, per prompt.
    """

    cache: KVCache
    lengths: Int[Array, " P"]


class SharedLayer(NamedTuple):
    """One layer of a `SharedCache`."""

    keys: Float[Array, "P J F S"]
    values: Float[Array, "P J S F"]
    lengths: Int[Array, " P"]


def init_cache(config: ModelConfig, batch: int, slots: int, dtype) -> KVCache:
    """An empty cache for `batch` rows of up to `slots` tokens."""
    heads, head_dim = config.num_key_value_heads, config.head_dim
    layers = range(config.num_hidden_layers)
    return KVCache(
        keys=tuple(jnp.zeros((batch, heads, head_dim, slots), dtype) for _ in layers),
        values=tuple(jnp.zeros((batch, heads, slots, head_dim), dtype) for _ in layers),
    )


def grow_cache(cache: KVCache, slots: int) -> KVCache:
    """The same cache with room for `slots` tokens a row.

    A decode step reads every slot, filled or not. A rollout whose early turns are short
    therefore starts with a small cache and grows it between turns.

    Raises:
      ValueError: the cache has more slots than that already.
    """
    extra = slots - cache.num_slots
    if extra < 0:
        raise ValueError(
            f"a cache of {cache.num_slots} slots cannot grow to {slots}; ask for at "
            f"least {cache.num_slots}"
        )
    none, more = (0, 0), (0, extra)
    return KVCache(
        keys=tuple(jnp.pad(x, (none, none, none, more)) for x in cache.keys),
        values=tuple(jnp.pad(x, (none, none, more, none)) for x in cache.values),
    )


def as_layer_cache(
    keys: Float[Array, "B Q J F"], values: Float[Array, "B Q J F"]
) -> LayerCache:
    """Keys and values of some tokens in the cache's layout, one slot per token."""
    return jnp.transpose(keys, (0, 2, 3, 1)), jnp.swapaxes(values, 1, 2)


def write_layer(
    layer: LayerCache,
    keys: Float[Array, "B Q J F"],
    values: Float[Array, "B Q J F"],
    start: Int[Array, " B"],
) -> LayerCache:
    """Puts row `b`'s `Q` tokens into its slots `start[b] .. start[b] + Q - 1`.

    The caller leaves room: where `start[b] + Q` exceeds the slots, the row's last `Q`
    slots are overwritten instead (XLA clamps the start), which is harmless only for
    rows that are never read again.
    """

    cached_keys, cached_values = layer
    new_keys, new_values = as_layer_cache(keys, values)

    def write_row(keys, values, new_keys, new_values, at):
        update = jax.lax.dynamic_update_slice
        return update(keys, new_keys, (0, 0, at)), update(
            values, new_values, (0, at, 0)
        )

    return jax.vmap(write_row)(
        cached_keys,
        cached_values,
        new_keys.astype(cached_keys.dtype),
        new_values.astype(cached_values.dtype),
        start,
    )
