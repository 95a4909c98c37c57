"""Attention over live slots against attention over all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models.attention import LIVE_SLOTS_STEP, attend, attend_cached

B, H, J, F, S = 20, 4, 2, 8, 2 * LIVE_SLOTS_STEP + 37


def arrays(num_queries: int, longest: int, seed: int = 0):
    """Queries whose limits are ragged, the largest being `longest`; a full cache."""
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((B, num_queries, H, F))
    keys, values = rng.standard_normal((B, J, F, S)), rng.standard_normal((B, J, S, F))
    ends = rng.integers(num_queries - 1, longest + 1, B)
    ends[3] = longest
    limits = ends[:, None] - np.arange(num_queries)[::-1]
    floats = (jnp.asarray(x, jnp.float32) for x in (queries, keys, values))
    return *floats, jnp.asarray(limits, jnp.int32)


def in_float64(queries, keys, values, limits):
    """One query, one head at a time."""
    queries, keys, values, limits = map(np.asarray, (queries, keys, values, limits))
    out = np.zeros(queries.shape)
    for b, q, h in np.ndindex(queries.shape[:3]):
        live = slice(0, limits[b, q] + 1)
        key, value = keys[b, h // (H // J)], values[b, h // (H // J)]
        scores = queries[b, q, h].astype(np.float64) @ key[:, live] / np.sqrt(F)
        weights = np.exp(scores - scores.max())
        out[b, q, h] = weights / weights.sum() @ value[live]
    return out


@pytest.mark.parametrize("num_queries", [1, 5])
@pytest.mark.parametrize("longest", [5, 63, 64, 127, 128, S - 1])
def test_attention_over_live_slots_equals_the_formula(num_queries, longest):
    """Every size of the live part, its borders included."""
    inputs = arrays(num_queries, longest)
    expected = in_float64(*inputs)
    for function in (attend, attend_cached):
        np.testing.assert_allclose(jax.jit(function)(*inputs), expected, atol=2e-6)


@pytest.mark.parametrize("num_queries", [1, 5])
def test_a_row_does_not_depend_on_how_long_the_others_are(num_queries):
    """To the bit: slots that are left out would have had weight 0."""
    queries, keys, values, limits = arrays(num_queries, 40)
    alone = jax.jit(attend_cached)(queries, keys, values, limits)
    for longest in (70, 130, S - 1):
        others = limits.at[3, -1].set(longest)
        together = jax.jit(attend_cached)(queries, keys, values, others)
        rows = [b for b in range(B) if b != 3]
        np.testing.assert_array_equal(alone[jnp.array(rows)], together[jnp.array(rows)])
