"""Products in bfloat16: their numbers, their gradients, and how XLA is asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models.attention import attend_cached, attend_causal
from ragen_jax.models.products import einsum_narrow, product, product_float32

SHAPES = [(1, 3, 5), (40, 24, 16), (300, 8, 4)]


def arrays(n, k, m):
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = (n, k), (k, m), (n, m)
    return [jax.random.normal(*x) for x in zip(keys, sizes, strict=True)]


def gradients(function, a, b, weights):
    def loss(a, b):
        out = function(a, b).astype(jnp.float32)
        return jnp.sum(out * weights.astype(jnp.float32))

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(a, b)


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("is_wide", [False, True])
def test_numbers_and_gradients_are_those_of_float64(sizes, is_wide):
    """Of the rounded matrices; each result is rounded once more."""
    narrow = [x.astype(jnp.bfloat16) for x in arrays(*sizes)]
    a, b, weights = (np.asarray(x, np.float64) for x in narrow)
    if is_wide:

        def function(a, b):
            return product_float32(a, b.T)

    else:
        function = product
    out = jax.jit(function)(*narrow[:2])
    assert out.dtype == (jnp.float32 if is_wide else jnp.bfloat16)
    expected = (a @ b, weights @ b.T, a.T @ weights)
    results = (out, *gradients(function, *narrow[:2], narrow[2]))
    for result, exact, scale in zip(
        results, expected, (sizes[1], sizes[2], sizes[0]), strict=True
    ):
        size = np.sqrt(scale)
        np.testing.assert_allclose(
            np.asarray(result, np.float64), exact, atol=size / 64
        )
    if is_wide:
        np.testing.assert_allclose(np.asarray(out), expected[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_einsum_is_that_of_float64_in_the_dtype_of_its_arrays(dtype):
    keys = jax.random.split(jax.random.key(0))
    a = jax.random.normal(keys[0], (2, 3, 200)).astype(dtype)
    b = jax.random.normal(keys[1], (2, 200, 4)).astype(dtype)
    out = jax.jit(lambda a, b: einsum_narrow("bgs,bsf->bgf", a, b))(a, b)
    assert out.dtype == dtype
    exact = np.einsum("bgs,bsf->bgf", *(np.asarray(x, np.float64) for x in (a, b)))
    # Sums in bfloat16 would be off by more: each is rounded once, to 8 bits.
    rounding = 2.0**-8 if dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(out.astype("float32"), exact, rtol=rounding, atol=1e-3)


def test_rows_of_any_shape_have_scores():
    a, b, _ = (x.astype(jnp.bfloat16) for x in arrays(6, 4, 5))
    whole = product_float32(a, b.T)
    split = product_float32(a.reshape(2, 3, 4), b.T)
    np.testing.assert_array_equal(split.reshape(6, 5), whole)


def test_float32_is_the_plain_product():
    a, b, weights = arrays(7, 4, 5)
    np.testing.assert_array_equal(product(a, b), a @ b)
    for ours, plain in zip(
        gradients(product, a, b, weights),
        gradients(jnp.matmul, a, b, weights),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("function", [product, lambda a, b: product_float32(a, b.T)])
def test_a_cpu_is_asked_for_float32_of_bfloat16s(function):
    """In the gradients, too: what is asked for in bfloat16 takes twice the time."""
    a, b, weights = (x.astype(jnp.bfloat16) for x in arrays(8, 4, 4))
    lowered = jax.jit(lambda *x: gradients(function, *x)).lower(a, b, weights)
    assert_float32_of_bfloat16s(lowered)


def assert_float32_of_bfloat16s(lowered):
    dots = [x for x in lowered.as_text().splitlines() if "dot_general" in x]
    assert len(dots) >= 2
    for dot in dots:
        into, out = dot.rsplit(" : ", 1)[1].split(" -> ")
        assert into.count("bf16") == 2, dot
        assert out.endswith("f32>"), dot


def test_attention_asks_a_cpu_for_float32_of_bfloat16s():
    """For a new token, for a message, and for whole rows with their gradient."""
    queries, keys = jnp.zeros((2, 3, 4, 8), "bfloat16"), jnp.zeros((2, 3, 2, 8))
    keys = keys.astype("bfloat16")
    cached = jnp.zeros((2, 2, 8, 5), "bfloat16"), jnp.zeros((2, 2, 5, 8), "bfloat16")
    for num_tokens in (1, 3):
        limits = jnp.zeros((2, num_tokens), "int32")
        assert_float32_of_bfloat16s(
            jax.jit(attend_cached).lower(queries[:, :num_tokens], *cached, limits)
        )

    def gradients(*arrays):
        out, pull = jax.vjp(attend_causal, *arrays)
        return pull(out)

    assert_float32_of_bfloat16s(jax.jit(gradients).lower(queries, keys, keys))
