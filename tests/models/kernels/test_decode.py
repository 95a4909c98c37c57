"""The kernel, interpreted, against its plain twin and against the plain network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models.attention import rope_angles
from ragen_jax.models.families import new_config
from ragen_jax.models.kernels import decode as decode_kernel
from ragen_jax.models.kernels import project as project_kernel
from ragen_jax.models.kernels.decode import (
    BLOCK_SLOTS,
    attend_by_kernel,
    attend_plainly,
    message_by_kernel,
    message_plainly,
    uses_kernel,
)
from ragen_jax.models.kernels.project import project_by_kernel, project_plainly
from ragen_jax.models.kv_cache import LayerCache, init_cache
from ragen_jax.models.policy import build_policy

SLOTS = 2 * BLOCK_SLOTS + 13
# Before any token, within a block, at the edges of one, in the last slot.
POSITIONS = np.asarray([0, 1, BLOCK_SLOTS - 1, BLOCK_SLOTS, 100, SLOTS - 1], np.int32)


def inputs(dtype, num_heads: int, num_kv_heads: int, head_dim: int):
    rng = np.random.default_rng(num_heads)
    rows = len(POSITIONS)
    sizes = [
        (rows, 1, num_heads + 2 * num_kv_heads, head_dim),
        (rows, num_kv_heads, SLOTS, head_dim),
        (rows, num_kv_heads, SLOTS, head_dim),
    ]
    heads, keys, values = (
        jnp.asarray(rng.standard_normal(size), dtype) for size in sizes
    )
    positions = jnp.asarray(POSITIONS)[:, None]
    return heads, rope_angles(positions, head_dim, 1e4), keys, values, positions


@pytest.mark.parametrize("shape", [(14, 2, 64), (2, 2, 32), (16, 2, 128), (3, 1, 32)])
@pytest.mark.parametrize(("dtype", "apart"), [("float32", 2e-6), ("bfloat16", 2e-2)])
def test_the_kernel_equals_its_plain_twin(shape, dtype, apart):
    arrays = inputs(dtype, *shape)
    expected = jax.jit(attend_plainly)(*arrays)
    actual = jax.jit(functools.partial(attend_by_kernel, interpret=True))(*arrays)
    for found, wanted in zip(actual, expected, strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        wide = (np.asarray(x, np.float32) for x in (found, wanted))
        np.testing.assert_allclose(*wide, atol=apart)
    # All slots but the new token's are what they were.
    kept = np.ones((len(POSITIONS), SLOTS), bool)
    kept[np.arange(len(POSITIONS)), POSITIONS] = False
    for before, after in zip(arrays[2:4], actual[1:], strict=True):
        before, after = (np.asarray(x, np.float32) for x in (before, after))
        rows = np.moveaxis(before, 2, 1)[kept], np.moveaxis(after, 2, 1)[kept]
        np.testing.assert_array_equal(*rows)


def test_slots_behind_the_token_are_never_read():
    heads, angles, keys, values, positions = inputs("float32", 4, 2, 32)
    behind = np.arange(SLOTS)[None] > POSITIONS[:, None]
    attend = jax.jit(functools.partial(attend_by_kernel, interpret=True))
    expected, *_ = attend(heads, angles, keys, values, positions)
    at = jnp.asarray(behind)[:, None, :, None]
    keys, values = jnp.where(at, jnp.nan, keys), jnp.where(at, jnp.nan, values)
    actual, *_ = attend(heads, angles, keys, values, positions)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("num_tokens", "shape"), [(1, (4, 2, 32)), (33, (14, 2, 64))])
@pytest.mark.parametrize(("dtype", "apart"), [("float32", 2e-6), ("bfloat16", 2e-2)])
def test_messages_attend_as_their_plain_twin(num_tokens, shape, dtype, apart):
    num_heads, num_kv_heads, head_dim = shape
    rng = np.random.default_rng(num_tokens)
    starts = np.minimum(POSITIONS, SLOTS - num_tokens)
    rows = len(starts)
    sizes = [(rows, num_tokens, num_heads, head_dim)]
    sizes += 2 * [(rows, num_kv_heads, SLOTS, head_dim)]
    queries, keys, values = (
        jnp.asarray(rng.standard_normal(size), dtype) for size in sizes
    )
    expected = jax.jit(message_plainly)(queries, keys, values, starts)
    # What lies behind a row's tokens is never read.
    behind = np.arange(SLOTS)[None] >= starts[:, None] + num_tokens
    at = jnp.asarray(behind)[:, None, :, None]
    keys, values = jnp.where(at, jnp.nan, keys), jnp.where(at, jnp.nan, values)
    kernel = functools.partial(message_by_kernel, interpret=True)
    actual = jax.jit(kernel)(queries, keys, values, starts)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    wide = (np.asarray(x, np.float32) for x in (actual, expected))
    np.testing.assert_allclose(*wide, atol=apart)


@pytest.mark.parametrize(("dtype", "is_used"), [("float32", False), ("bfloat16", True)])
def test_float32_messages_attend_plainly_on_a_gpu(dtype, is_used, monkeypatch):
    """A trace has the branches of all platforms."""
    traced = []

    def kernel(*arrays):
        traced.append("kernel")
        return message_plainly(*arrays)

    monkeypatch.setattr(decode_kernel, "message_by_kernel", kernel)
    cache = LayerCache(*(jnp.zeros((1, 2, 8, 32), dtype),) * 2, slots_last=False)
    queries = jnp.zeros((1, 3, 4, 32), dtype)
    attend = jax.jit(decode_kernel.attend_message)
    attend.trace(queries, cache, jnp.arange(3)[None])
    assert bool(traced) == is_used


@pytest.mark.parametrize("rows", [1, 64, 100])
@pytest.mark.parametrize(("dtype", "apart"), [("float32", 5e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_product_equals_its_plain_twin(rows, dtype, apart, has_bias):
    rng = np.random.default_rng(rows)
    columns = (96, 32, 64)
    sizes = (rows, 1, 192), (192,), *((192, n) for n in columns)
    x, scale, *weights = (jnp.asarray(rng.standard_normal(n), dtype) for n in sizes)
    biases = [jnp.asarray(rng.standard_normal(n), dtype) for n in columns]
    arrays = x, scale.astype(jnp.float32), weights, biases if has_bias else None
    how = {"eps": 1e-6}
    expected = jax.jit(functools.partial(project_plainly, **how))(*arrays)
    kernel = functools.partial(project_by_kernel, **how, interpret=True)
    actual = jax.jit(kernel)(*arrays)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    wide = (np.asarray(x, np.float32) for x in (actual, expected))
    np.testing.assert_allclose(*wide, atol=apart, rtol=apart)


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama"])
def test_the_network_is_the_same_with_either_cache(
    model_type, interpreted, monkeypatch
):
    """A message of several tokens, then single tokens; rows start at other slots."""
    jax.clear_caches()  # of layers that were traced with the functions replaced here
    if interpreted:
        kernel = functools.partial(attend_by_kernel, interpret=True)
        monkeypatch.setattr(decode_kernel, "attend_plainly", kernel)
        kernel = functools.partial(message_by_kernel, interpret=True)
        monkeypatch.setattr(decode_kernel, "message_plainly", kernel)
        kernel = functools.partial(project_by_kernel, interpret=True)
        monkeypatch.setattr(project_kernel, "project_plainly", kernel)
    shape = new_config(
        model_type,
        vocab_size=40,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_ids=(0,),
    )
    policy = build_policy(shape)
    params = policy.init(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (3, 9), 0, 40)

    @functools.partial(jax.jit, static_argnums=0)
    def hidden(slots_last: bool):
        cache = init_cache(shape, 3, 20, policy.dtype, slots_last=slots_last)
        starts, out = jnp.asarray([0, 3, 5]), []
        for first, end in [(0, 5), (5, 6), (6, 7), (7, 9)]:
            start = starts if first else jnp.zeros_like(starts)
            at = start[:, None] + jnp.arange(first, end)[None]
            found, cache = policy.forward(params, tokens[:, first:end], at, cache)
            out.append(found)
        return jnp.concatenate(out, axis=1)

    np.testing.assert_allclose(hidden(False), hidden(True), atol=2e-5)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ((64, "cpu", 1), "needs an NVIDIA GPU .*, and JAX computes on a cpu here"),
        ((80, "gpu", 1), "needs heads of 32, 64, 128 numbers, and the model's have 80"),
        ((256, "gpu", 1), "the model's have 256"),
        ((64, "Tesla T4", 1), "JAX computes on a Tesla T4 here"),
        ((16, "gpu", 1), "the model's have 16; use 'auto'"),
        ((64, "gpu", 2), "does not split heads over devices, and mesh.tensor = 2"),
    ],
)
def test_what_cannot_run_is_refused_and_never_chosen(where, message):
    assert not uses_kernel("auto", *where)
    with pytest.raises(ValueError, match=message):
        uses_kernel("triton", *where)
    assert uses_kernel("auto", 64, "gpu", 1)
    assert uses_kernel("triton", 64, "gpu", 1)
    assert not uses_kernel("plain", 64, "gpu", 1)


def test_a_jax_without_triton_has_no_kernel(monkeypatch):
    monkeypatch.setattr(decode_kernel, "_TRITON", "jax.experimental.pallas.gone")
    assert not uses_kernel("auto", 64, "gpu", 1)
    with pytest.raises(ValueError, match=r"needs jax\.experimental\.pallas\.gone, and"):
        uses_kernel("triton", 64, "gpu", 1)
