"""The keys and values of past tokens, as a plain value: made, passed, returned.

The caller keeps the rows' lengths; the cache does not record how far a row is filled. A
row's tokens have no gaps, token `p` is in slot `p`. Slots from the row's length on may
hold anything: a query at position `p` reads slots `0..p` only, all of which are written
by then.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Shaped

from ragen_jax.models.config import ModelConfig


@struct.dataclass
class LayerCache:
    """Keys and values of one layer; see `KVCache`."""

    keys: Array
    values: Float[Array, "B J S F"]
    slots_last: bool = struct.field(pytree_node=False, default=True)
    reads_all: bool = struct.field(pytree_node=False, default=False)

    @property
    def keys_by_column(self) -> Float[Array, "B J F S"]:
        """The keys with slots last, however they are stored."""
        return self.keys if self.slots_last else jnp.swapaxes(self.keys, 2, 3)


@struct.dataclass
class KVCache:
    """One array per layer, so that a loop that carries the cache updates it in place.

    Never pass it through the inputs and outputs of a scan over layers: that copies all
    of it at every step. Both products of a decode step then sum over the axis before
    the last, which CPUs do a vector at a time; with keys stored like values a step
    takes half as long again (4 layers, width 128, 128 rows, 280 slots).

    Attributes:
      keys: per layer, rotated keys, slots last or as values are stored.
      values: per layer.
      slots_last: of the keys. If not, `kernels/decode` attends for single tokens.
      reads_all: attention of a CPU reads every slot, and not as many as the longest row
        has filled: a row's sums then do not depend on the others' lengths.
      pictured: kind of the picture that the token of a slot stands for a part of, from
        1, or 0 for text; of networks that see.
    """

    keys: tuple[Array, ...]
    values: tuple[Float[Array, "B J S F"], ...]
    slots_last: bool = struct.field(pytree_node=False, default=True)
    reads_all: bool = struct.field(pytree_node=False, default=False)
    pictured: Int[Array, "B S"] | None = None

    @property
    def num_slots(self) -> int:
        """`S`, tokens that fit in a row."""
        return self.values[0].shape[2]

    def layer(self, i: int) -> LayerCache:
        how = self.slots_last, self.reads_all
        return LayerCache(self.keys[i], self.values[i], *how)

    def with_layers(self, layers: Sequence[LayerCache]) -> "KVCache":
        keys = tuple(layer.keys for layer in layers)
        return self.replace(keys=keys, values=tuple(layer.values for layer in layers))


@struct.dataclass
class SharedCache:
    """Prompts that have been read once, for several rows each to continue.

    Attributes:
      cache: a row per prompt. It is read, never written.
      lengths: number of filled slots, per prompt.
    """

    cache: KVCache
    lengths: Int[Array, " P"]


@struct.dataclass
class PromptRows:
    """Prompts and the rows that continue them, in one call. For passes with gradients.

    A line of the call's tokens is a prompt, then its rows, one after the other; rows
    are of one width. Every matrix reads a prompt once, and nothing is stored.

    Attributes:
      lengths: number of the prompt's tokens that count, per line.
      prompt_tokens: tokens of a line before its rows.
      num_rows: rows of a line.
    """

    lengths: Int[Array, " P"]
    prompt_tokens: int = struct.field(pytree_node=False)
    num_rows: int = struct.field(pytree_node=False)

    def split(
        self, x: Shaped[Array, "P n *w"]
    ) -> tuple[Shaped[Array, "P Q *w"], Shaped[Array, "B R *w"]]:
        """Numbers of the prompts' tokens, and of the rows'."""
        prompts, rows = x[:, : self.prompt_tokens], x[:, self.prompt_tokens :]
        num_lines = x.shape[0] * self.num_rows
        return prompts, rows.reshape(num_lines, -1, *x.shape[2:])

    @staticmethod
    def join(
        prompts: Shaped[Array, "P Q *w"], rows: Shaped[Array, "B R *w"]
    ) -> Shaped[Array, "P n *w"]:
        """Inverse of `split`."""
        lines = rows.reshape(prompts.shape[0], -1, *rows.shape[2:])
        return jnp.concatenate([prompts, lines], axis=1)


class SharedLayer(NamedTuple):
    """One layer of a `SharedCache`."""

    cache: LayerCache
    lengths: Int[Array, " P"]


def init_cache(
    config: ModelConfig, batch: int, slots: int, dtype, *, slots_last: bool = True
) -> KVCache:
    """An empty cache for `batch` rows of up to `slots` tokens.

    `slots_last`: see `KVCache`.
    """
    heads, head_dim = config.num_key_value_heads, config.head_dim
    of_values = (batch, heads, slots, head_dim)
    of_keys = (batch, heads, head_dim, slots) if slots_last else of_values
    layers = range(config.num_hidden_layers)
    return KVCache(
        keys=tuple(jnp.zeros(of_keys, dtype) for _ in layers),
        values=tuple(jnp.zeros(of_values, dtype) for _ in layers),
        slots_last=slots_last,
        pictured=jnp.zeros((batch, slots), jnp.int8) if config.sees else None,
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
    of_values = (none, none, more, none)
    of_keys = (none, none, none, more) if cache.slots_last else of_values
    return cache.replace(
        keys=tuple(jnp.pad(x, of_keys) for x in cache.keys),
        values=tuple(jnp.pad(x, of_values) for x in cache.values),
        pictured=jax.tree.map(lambda x: jnp.pad(x, (none, more)), cache.pictured),
    )


def as_layer_cache(
    keys: Float[Array, "B Q J F"],
    values: Float[Array, "B Q J F"],
    *,
    slots_last: bool = True,
) -> LayerCache:
    """Keys and values of some tokens in the cache's layout, one slot per token."""
    order = (0, 2, 3, 1) if slots_last else (0, 2, 1, 3)
    return LayerCache(
        jnp.transpose(keys, order), jnp.swapaxes(values, 1, 2), slots_last
    )


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

    new = as_layer_cache(keys, values, slots_last=layer.slots_last)

    def write_row(keys, values, new_keys, new_values, at):
        update = jax.lax.dynamic_update_slice
        of_keys = (0, 0, at) if layer.slots_last else (0, at, 0)
        return update(keys, new_keys, of_keys), update(values, new_values, (0, at, 0))

    keys, values = jax.vmap(write_row)(
        layer.keys,
        layer.values,
        new.keys.astype(layer.keys.dtype),
        new.values.astype(layer.values.dtype),
        start,
    )
    return layer.replace(keys=keys, values=values)
