"""Masked reductions: agreement with NumPy, and the empty case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.algo.masked import masked_mean, masked_sum, masked_variance

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4, 7)).astype(np.float32) + 3.0
MASK = RANDOM.random((4, 7)) < 0.5


def test_over_everything():
    x, mask = jnp.asarray(X), jnp.asarray(MASK)
    np.testing.assert_allclose(masked_sum(x, mask), X[MASK].sum(), rtol=1e-6)
    np.testing.assert_allclose(masked_mean(x, mask), X[MASK].mean(), rtol=1e-6)
    for ddof in (0, 1):
        np.testing.assert_allclose(
            masked_variance(x, mask, ddof=ddof), X[MASK].var(ddof=ddof), rtol=1e-5
        )


def test_along_an_axis():
    x, mask = jnp.asarray(X), jnp.asarray(MASK)
    rows = [X[i][MASK[i]] for i in range(4)]
    np.testing.assert_allclose(
        masked_mean(x, mask, axis=1), [row.mean() for row in rows], rtol=1e-6
    )
    np.testing.assert_allclose(
        masked_variance(x, mask, axis=1, ddof=1),
        [row.var(ddof=1) for row in rows],
        rtol=1e-5,
    )


@pytest.mark.parametrize("num_selected", [0, 1])
def test_too_few_entries_give_zero(num_selected):
    x = jnp.asarray([2.0, 3.0])
    mask = jnp.arange(2) < num_selected
    assert masked_sum(x, mask) == (2.0 if num_selected else 0.0)
    assert masked_mean(x, mask) == (2.0 if num_selected else 0.0)
    assert masked_variance(x, mask, ddof=1) == 0.0


def test_what_is_left_out_may_be_anything():
    x = jnp.asarray([1.0, jnp.nan, 3.0, jnp.inf])
    mask = jnp.asarray([True, False, True, False])
    for reduce in (
        masked_sum,
        masked_mean,
        lambda x, m: masked_variance(x, m, ddof=1),
    ):
        value, gradient = jax.value_and_grad(reduce)(x, mask)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert not gradient[1]
