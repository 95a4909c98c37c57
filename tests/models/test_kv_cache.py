"""The cache as a value: what is written where, and growing."""

import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models.families import read_config
from ragen_jax.models.kv_cache import (
    KVCache,
    LayerCache,
    as_layer_cache,
    grow_cache,
    init_cache,
    write_layer,
)
from tests.models.random_models import CASES

CONFIG = read_config(CASES["small_tied"])
BATCH, SLOTS, TOKENS = 3, 7, 2


def random_array(seed, *shape):
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


def test_write_puts_each_row_at_its_own_slots():
    heads, head_dim = CONFIG.num_key_value_heads, CONFIG.head_dim
    old_keys = random_array(0, BATCH, heads, head_dim, SLOTS)
    old_values = random_array(1, BATCH, heads, SLOTS, head_dim)
    new_keys = random_array(2, BATCH, TOKENS, heads, head_dim)
    new_values = random_array(3, BATCH, TOKENS, heads, head_dim)
    start = np.array([0, 5, 2], np.int32)

    written = write_layer(
        LayerCache(jnp.asarray(old_keys), jnp.asarray(old_values)),
        jnp.asarray(new_keys),
        jnp.asarray(new_values),
        jnp.asarray(start),
    )
    for row in range(BATCH):
        for i in range(TOKENS):
            old_keys[row, :, :, start[row] + i] = new_keys[row, i]
            old_values[row, :, start[row] + i] = new_values[row, i]
    np.testing.assert_array_equal(written.keys, old_keys)
    np.testing.assert_array_equal(written.values, old_values)


def test_write_keeps_the_dtype_of_the_cache():
    cache = init_cache(CONFIG, BATCH, SLOTS, jnp.bfloat16)
    new = jnp.ones((BATCH, 1, CONFIG.num_key_value_heads, CONFIG.head_dim))
    layer = cache.layer(0)
    written = write_layer(layer, new, new, jnp.zeros(BATCH, jnp.int32))
    assert {written.keys.dtype, written.values.dtype} == {jnp.dtype("bfloat16")}


def test_fresh_cache_is_one_pair_per_layer():
    cache = init_cache(CONFIG, BATCH, SLOTS, jnp.float32)
    assert len(cache.keys) == len(cache.values) == CONFIG.num_hidden_layers
    assert cache.num_slots == SLOTS
    assert all(x.dtype == jnp.float32 for x in cache.keys + cache.values)


def test_growing_keeps_what_is_there():
    heads, head_dim = CONFIG.num_key_value_heads, CONFIG.head_dim
    tokens = random_array(0, BATCH, SLOTS, heads, head_dim)
    layer = as_layer_cache(jnp.asarray(tokens), jnp.asarray(2 * tokens))
    grown = grow_cache(KVCache(keys=(layer.keys,), values=(layer.values,)), SLOTS + 4)
    assert grown.num_slots == SLOTS + 4
    np.testing.assert_array_equal(grown.keys[0][..., :SLOTS], layer.keys)
    np.testing.assert_array_equal(grown.values[0][:, :, :SLOTS], layer.values)
    assert not np.any(grown.keys[0][..., SLOTS:])
    assert not np.any(grown.values[0][:, :, SLOTS:])


def test_an_empty_cache_can_grow():
    grown = grow_cache(init_cache(CONFIG, BATCH, 0, jnp.float32), SLOTS)
    fresh = init_cache(CONFIG, BATCH, SLOTS, jnp.float32)
    assert [x.shape for x in grown.keys] == [x.shape for x in fresh.keys]


def test_a_cache_cannot_shrink():
    cache = init_cache(CONFIG, BATCH, SLOTS, jnp.float32)
    with pytest.raises(ValueError, match="7 slots cannot grow to 6"):
        grow_cache(cache, 6)
