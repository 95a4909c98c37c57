"""The keys and values of past tokens, as a plain value: made, passed, returned.

Who calls owns the rows' lengths; nothing here knows how far a row is filled. A row's
tokens lie without gaps, token `p` in slot `p`. Slots from the row's length on may hold
anything: a query at position `p` reads slots `0..p` only, all of which are written by
then.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from ragen_jax.models.qwen2_config import Qwen2Config

LayerCache = tuple[Float[Array, "B J S F"], Float[Array, "B J S F"]]


@struct.dataclass
class KVCache:
    """One array per layer, so that a loop that carries the cache updates it in place.

    Never pass it through the inputs and outputs of a scan over layers: that copies all
    of it at every step. Slots are next to each other per head: measured on CPUs, one
    query reads this layout faster than heads within slots.

    Attributes:
      keys: per layer, rotated keys.
      values: per layer.
    """

    keys: tuple[Float[Array, "B J S F"], ...]
    values: tuple[Float[Array, "B J S F"], ...]

    @property
    def num_slots(self) -> int:
        """`S`, tokens that fit in a row."""
        return self.keys[0].shape[2]


def init_cache(config: Qwen2Config, batch: int, slots: int, dtype) -> KVCache:
    """An empty cache for `batch` rows of up to `slots` tokens."""
    shape = (batch, config.num_key_value_heads, slots, config.head_dim)
    layers = range(config.num_hidden_layers)
    return KVCache(
        keys=tuple(jnp.zeros(shape, dtype) for _ in layers),
        values=tuple(jnp.zeros(shape, dtype) for _ in layers),
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
    pad = ((0, 0), (0, 0), (0, extra), (0, 0))
    return jax.tree.map(lambda x: jnp.pad(x, pad), cache)


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

    def write_row(slots, new, at):
        return jax.lax.dynamic_update_slice(slots, new, (0, at, 0))

    cached_keys, cached_values = layer
    write = jax.vmap(write_row)
    keys = jnp.swapaxes(keys, 1, 2).astype(cached_keys.dtype)
    values = jnp.swapaxes(values, 1, 2).astype(cached_values.dtype)
    return write(cached_keys, keys, start), write(cached_values, values, start)
