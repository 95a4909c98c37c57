"""Attention over live slots against attention over all of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ragen_jax.devices.sharding import make_mesh
from ragen_jax.models import attention
from ragen_jax.models.attention import (
    AUTO,
    CAUSAL_ATTENTIONS,
    CAUSAL_BLOCK,
    CAUSAL_BLOCKS,
    LIVE_SLOTS_STEP,
    attend_cached,
    attend_causal,
    choose_attention,
)
from ragen_jax.models.policy import build_policy
from tests.models.random_adapters import EVEN

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
    actual = jax.jit(attend_cached)(*inputs)
    np.testing.assert_allclose(actual, expected, atol=2e-6)


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


def causal_arrays(num_tokens):
    """Queries, keys and values of so many tokens, and a gradient of what comes out."""
    rng = np.random.default_rng(1)
    shapes = [(2, num_tokens, heads, F) for heads in (H, J, J, H)]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    return [jnp.asarray(x, jnp.float32) for x in arrays]


def plain_causal(queries, keys, values):
    """The formula, for autodiff."""
    keys, values = (jnp.repeat(x, H // J, axis=2) for x in (keys, values))
    scores = jnp.einsum("bqhf,bshf->bhqs", queries, keys) / np.sqrt(F)
    is_seen = np.tri(queries.shape[1], dtype=bool)[None, None]
    weights = jax.nn.softmax(jnp.where(is_seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqs,bshf->bqhf", weights, values)


@pytest.mark.parametrize("name", ["blocks", "xla"])
@pytest.mark.parametrize(
    "num_tokens", [1, CAUSAL_BLOCK, CAUSAL_BLOCK + 1, CAUSAL_BLOCK * CAUSAL_BLOCKS + 5]
)
def test_causal_attention_and_its_gradient_equal_the_formula(num_tokens, name):
    """One block, whole blocks, more tokens than the smallest blocks hold."""
    *inputs, grad = causal_arrays(num_tokens)
    expected, pull = jax.vjp(plain_causal, *inputs)
    actual, own_pull = jax.vjp(jax.jit(CAUSAL_ATTENTIONS[name]), *inputs)
    np.testing.assert_allclose(actual, expected, atol=2e-6)
    for mine, theirs in zip(own_pull(grad), pull(grad), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


def test_causal_attention_in_bfloat16_is_near():
    """Scores and sums are float32, what is kept between them is not."""
    *inputs, grad = causal_arrays(2 * CAUSAL_BLOCK)
    narrow = [x.astype(jnp.bfloat16) for x in inputs]
    expected, pull = jax.vjp(plain_causal, *inputs)
    actual, own_pull = jax.vjp(attend_causal, *narrow)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(actual, expected, atol=0.05)
    for mine, theirs in zip(own_pull(grad.astype("bfloat16")), pull(grad), strict=True):
        assert mine.dtype == jnp.bfloat16
        np.testing.assert_allclose(mine, theirs, atol=0.1)


def test_the_network_attends_as_it_is_told(monkeypatch):
    """By another entry the same numbers, and by an entry that was asked for."""
    jax.clear_caches()  # of layers that were traced before `noted` was there
    asked = []
    xla = CAUSAL_ATTENTIONS["xla"]

    def noted(*arrays):
        asked.append(arrays[0].shape)
        return xla(*arrays)

    monkeypatch.setitem(CAUSAL_ATTENTIONS, "xla", noted)
    tokens = jax.random.randint(jax.random.key(1), (3, 9), 0, EVEN.vocab_size)
    order = jnp.tile(jnp.arange(9)[None], (3, 1))
    plain = build_policy(EVEN)
    params = plain.init(jax.random.key(0))
    expected, _ = plain.forward(params, tokens, order, None)
    assert not asked
    policy = build_policy(EVEN, attention="xla")
    hidden, _ = policy.forward(params, tokens, order, None)
    # All layers have one trace.
    assert asked == [(3, 9, 4, 4)]
    np.testing.assert_allclose(hidden, expected, atol=1e-5)


# Platform, dtype and size of heads that cuDNN refuses, and the reason.
REFUSED = [
    ("cpu", "bfloat16", 64, "needs an NVIDIA GPU .*, and JAX computes on a cpu here"),
    ("gpu", "float32", 64, "computes in bfloat16, and model.dtype = 'float32'; use"),
    ("gpu", "bfloat16", 12, "multiple of 8 numbers, 128 at most"),
    ("gpu", "bfloat16", 256, "and the model's have 256; use 'auto'"),
]


@pytest.mark.parametrize(("platform", "dtype", "head_dim", "message"), REFUSED)
def test_what_cannot_run_is_refused_and_never_chosen(
    platform, dtype, head_dim, message
):
    where = jnp.dtype(dtype), head_dim, platform
    with pytest.raises(ValueError, match=message):
        choose_attention("cudnn", *where)
    assert choose_attention(AUTO, *where) == "blocks"


def test_cudnn_is_chosen_on_a_gpu():
    """Its numbers are compared by `python -m benchmarks.attention`, which needs one."""
    where = jnp.dtype("bfloat16"), 64, "gpu"
    assert choose_attention(AUTO, *where) == choose_attention("cudnn", *where)
    assert choose_attention(AUTO, *where) == "cudnn"
    assert choose_attention("xla", *where) == "xla"


def test_the_librarys_attention_gets_a_devices_rows_and_heads_where_copies_compute(
    monkeypatch,
):
    """XLA cannot ask cuDNN how it is split where only some axes are automatic."""
    shapes = []

    def take(queries, keys, values):
        shapes.append([x.shape for x in (queries, keys, values)])
        return queries

    monkeypatch.setattr(attention, "_library", lambda _: take)
    rows = jnp.arange(8 * 5 * H * F, dtype=jnp.float32).reshape(8, 5, H, F)
    inputs = rows, rows[:, :, :J], rows[:, :, :J]
    np.testing.assert_array_equal(CAUSAL_ATTENTIONS["cudnn"](*inputs), rows)
    by_copy = PartitionSpec("data")
    in_copies = jax.shard_map(
        CAUSAL_ATTENTIONS["cudnn"],
        mesh=make_mesh(data=2, fsdp=2, tensor=2),
        in_specs=by_copy,
        out_specs=by_copy,
        axis_names={"data"},
        check_vma=False,
    )
    np.testing.assert_array_equal(jax.jit(in_copies)(*inputs), rows)
    # Padded to eight tokens.
    assert shapes[0] == [(8, 8, H, F), (8, 8, J, F), (8, 8, J, F)]
    assert shapes[-1] == [(2, 8, H // 2, F), (2, 8, J // 2, F), (2, 8, J // 2, F)]


def test_a_row_s_sums_do_not_depend_on_the_longest_row():
    """Where the cache says so: else as many slots are read as that row has filled."""
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    queries = draw(2, 1, 4, 32)
    keys, values = draw(2, 2, 32, 300), draw(2, 2, 300, 32)

    @functools.partial(jax.jit, static_argnames="reads_all")
    def of_first_row(longest, reads_all):
        limits = jnp.array([[40], [0]]).at[1, 0].set(longest)
        found = attention.attend_cached(
            queries, keys, values, limits, reads_all=reads_all
        )
        return found[0]

    alone, beside = (of_first_row(x, reads_all=True) for x in (40, 290))
    np.testing.assert_array_equal(alone, beside)
    np.testing.assert_allclose(alone, of_first_row(40, reads_all=False), atol=1e-6)
    # Programs that choose among numbers of slots have branches for each.
    texts = [
        of_first_row.lower(40, reads_all=x).as_text().count("stablehlo.dot_general")
        for x in (True, False)
    ]
    assert texts[0] < texts[1]
