"""Loss terms against the oracle, and the cases the clip is there for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.algo.losses import clipped_policy_loss, importance_weights
from tests.reference import losses_oracle

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def test_policy_loss_equals_oracle():
    random = np.random.default_rng(0)
    log_probs = random.normal(size=200).astype(np.float32)
    old = log_probs + random.normal(scale=0.4, size=200).astype(np.float32)
    advantages = random.normal(size=200).astype(np.float32)
    advantages[:5], old[5] = 0.0, log_probs[5] + 50.0
    loss, is_clipped = clipped_policy_loss(
        jnp.asarray(log_probs), jnp.asarray(old), jnp.asarray(advantages), **CLIP
    )
    expected = [
        losses_oracle.clipped_policy_loss(*map(float, token), 0.2, 0.28)
        for token in zip(log_probs, old, advantages, strict=True)
    ]
    np.testing.assert_allclose(loss, [e[0] for e in expected], rtol=1e-5)
    np.testing.assert_array_equal(is_clipped, [e[1] for e in expected])
    assert 20 < is_clipped.sum() < 180


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [(1, 0.5, -0.5), (1, 1.5, -1.28), (-1, 0.5, 0.8), (-1, 1.5, 1.5)],
)
def test_policy_loss_by_hand(advantage, ratio, loss):
    log_prob, old = jnp.log(jnp.asarray([ratio])), jnp.zeros(1)
    advantages = jnp.asarray([advantage], jnp.float32)
    actual, _ = clipped_policy_loss(log_prob, old, advantages, **CLIP)
    np.testing.assert_allclose(actual, [loss], rtol=1e-6)


@pytest.mark.parametrize(("advantage", "sign"), [(1.0, -1), (-1.0, 1)])
def test_descent_moves_towards_good_tokens_and_away_from_bad(advantage, sign):
    def loss(log_prob):
        return clipped_policy_loss(
            log_prob, jnp.zeros(1), jnp.asarray([advantage]), **CLIP
        )[0].sum()

    assert np.sign(jax.grad(loss)(jnp.zeros(1))[0]) == sign
    # Far beyond the clip nothing pulls any further; far on the wrong side it does.
    assert jax.grad(loss)(jnp.full(1, -sign * 1.0))[0] == 0
    assert np.sign(jax.grad(loss)(jnp.full(1, sign * 1.0))[0]) == sign


def test_no_difference_of_log_probs_overflows():
    far = jnp.asarray([1e4, -1e4])
    loss, _ = clipped_policy_loss(far, -far, -jnp.ones(2), **CLIP)
    assert np.isfinite(loss).all()


def test_importance_weights_equal_oracle():
    old, sampled = jnp.linspace(-3.0, 0.0, 9), jnp.linspace(-1.0, -2.0, 9)
    expected = [
        losses_oracle.importance_weight(float(a), float(b), 2.0)
        for a, b in zip(old, sampled, strict=True)
    ]
    actual = importance_weights(old, sampled, cap=2.0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert max(expected) == 2.0
    assert min(expected) < 0.2
