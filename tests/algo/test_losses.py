"""Loss terms against the oracle, and the cases the clips are there for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.algo.losses import (
    AGGREGATIONS,
    KL_ESTIMATORS,
    POLICY_LOSSES,
    clipped_value_loss,
    importance_weights,
    ppo,
)
from tests.algo.calls import compiled, options_of
from tests.reference import losses_oracle as oracle

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
SHAPE = (6, 9)
SEEDS = st.integers(0, 2**16)
few = settings(max_examples=10, deadline=None)


def make_tokens(seed, scale=0.4):
    """Log-probs, others, advantages and a mask with an empty row; NaN off the mask."""
    random = np.random.default_rng(seed)
    mask = random.random(SHAPE) < 0.6
    mask[0], mask[1, :2] = False, True
    log_probs = -3 * random.random(SHAPE)
    other = log_probs + scale * random.normal(size=SHAPE)
    advantages = random.normal(size=(SHAPE[0], 1)) * np.ones(SHAPE)
    noisy = (np.where(mask, x, np.nan) for x in (log_probs, other, advantages))
    return *(jnp.asarray(x, jnp.float32) for x in noisy), jnp.asarray(mask)


def each_token(mask, *arrays):
    """(index, numbers) of each trained token."""
    arrays = [np.asarray(x, float) for x in arrays]
    for index in zip(*np.nonzero(mask), strict=True):
        yield index, [float(x[index]) for x in arrays]


def policy_oracle(name, log_probs, old, advantages, mask):
    """Terms, clipped and gradients of all tokens; GSPO's ratio is the row's."""
    mask = np.asarray(mask)
    terms, clipped, grads = np.zeros(SHAPE), np.zeros(SHAPE, bool), np.zeros(SHAPE)
    for (row, t), (new, before, advantage) in each_token(
        mask, log_probs, old, advantages
    ):
        if name == "cispo":
            found = oracle.cispo(new, before, advantage, 0.2, 0.28)
            terms[row, t], clipped[row, t], grads[row, t] = found
            continue
        r = oracle.ratio(new, before)
        if name == "gspo":
            chosen = mask[row]
            rows = np.asarray(log_probs)[row][chosen], np.asarray(old)[row][chosen]
            r = oracle.sequence_ratio(*(x.astype(float).tolist() for x in rows))
        dual = 3.0 if name == "ppo" else None
        found = oracle.clipped_policy_loss(r, advantage, 0.2, 0.28, dual)
        terms[row, t], clipped[row, t] = found
        grads[row, t] = 0.0 if clipped[row, t] else -advantage * r
    return terms, clipped, grads


@pytest.mark.parametrize("name", POLICY_LOSSES)
@few
@given(seed=SEEDS)
def test_policy_loss_and_gradient_equal_oracle(name, seed):
    """0 off the mask, whatever stands there, in value and in gradient."""
    log_probs, old, advantages, mask = make_tokens(seed, scale=0.8)
    expected = policy_oracle(name, log_probs, old, advantages, mask)
    loss, is_clipped = compiled(POLICY_LOSSES[name])(log_probs, old, advantages, mask)
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(is_clipped, expected[1])
    grads = gradient(name)(log_probs, old, advantages, mask)
    np.testing.assert_allclose(grads, expected[2], rtol=1e-4, atol=1e-6)


@functools.cache
def gradient(name):
    entry = POLICY_LOSSES[name]
    options = options_of(entry)
    return jax.jit(jax.grad(lambda *args: entry(*args, **options)[0].sum()))


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_without_a_step_all_losses_pull_alike(name):
    """At the old policy the gradient is -A at every trained token."""
    log_probs, _, advantages, mask = make_tokens(3)
    grads = gradient(name)(log_probs, log_probs, advantages, mask)
    expected = np.where(mask, -advantages, 0.0)
    np.testing.assert_allclose(grads, expected, rtol=1e-6)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_padding_does_not_matter(name):
    tokens = make_tokens(4)
    padded = [jnp.pad(x, ((0, 0), (0, 3)), constant_values=0) for x in tokens]
    loss, is_clipped = compiled(POLICY_LOSSES[name])(*padded)
    usual, usually_clipped = compiled(POLICY_LOSSES[name])(*tokens)
    np.testing.assert_allclose(loss[:, :-3], usual, rtol=1e-5)
    np.testing.assert_array_equal(is_clipped[:, :-3], usually_clipped)
    assert not loss[:, -3:].any()


def one(*numbers):
    return (jnp.asarray([[number]], jnp.float32) for number in numbers)


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [(1, 0.5, -0.5), (1, 1.5, -1.28), (-1, 0.5, 0.8), (-1, 1.5, 1.5), (-1, 4, 3)],
)
def test_ppo_by_hand(advantage, ratio, loss):
    arrays = one(np.log(ratio), 0.0, advantage)
    actual, _ = ppo(*arrays, jnp.ones((1, 1), bool), dual_clip=3.0, **CLIP)
    np.testing.assert_allclose(actual, [[loss]], rtol=1e-6)


def test_the_dual_clip_can_be_off():
    arrays = one(np.log(4.0), 0.0, -1.0)
    actual, _ = ppo(*arrays, jnp.ones((1, 1), bool), dual_clip=None, **CLIP)
    np.testing.assert_allclose(actual, [[4.0]], rtol=1e-6)


@pytest.mark.parametrize(("advantage", "sign"), [(1.0, -1), (-1.0, 1)])
def test_descent_moves_towards_good_tokens_and_away_from_bad(advantage, sign):
    def pull(log_prob):
        arrays = one(log_prob, 0.0, advantage)
        return float(gradient("ppo")(*arrays, jnp.ones((1, 1), bool))[0, 0])

    assert np.sign(pull(0.0)) == sign
    # Far beyond the clip nothing pulls any further; on the wrong side it does.
    assert pull(-sign * 1.0) == 0
    assert np.sign(pull(sign * 1.0)) == sign


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_no_difference_of_log_probs_overflows(name):
    far = jnp.asarray([[1e4, -1e4]])
    mask = jnp.ones((1, 2), bool)
    loss, _ = compiled(POLICY_LOSSES[name])(far, -far, -jnp.ones((1, 2)), mask)
    assert np.isfinite(loss).all()


def test_cispo_keeps_a_gradient_where_ppo_has_none():
    arrays = list(one(1.0, 0.0, 1.0))
    mask = jnp.ones((1, 1), bool)
    assert gradient("ppo")(*arrays, mask) == 0
    np.testing.assert_allclose(gradient("cispo")(*arrays, mask), [[-1.28]], rtol=1e-6)


# KL estimators.


@pytest.mark.parametrize("name", KL_ESTIMATORS)
@few
@given(seed=SEEDS, scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_kl_and_gradient_equal_oracle(name, seed, scale):
    log_probs, ref, _, mask = make_tokens(seed, scale)
    expected, expected_grads = np.zeros(SHAPE), np.zeros(SHAPE)
    for index, (new, other) in each_token(mask, log_probs, ref):
        expected[index] = oracle.kl(name, new, other)
        expected_grads[index] = oracle.kl_gradient(name, new, other)
    kl, grads = kl_and_gradient(name)(log_probs, ref, mask)
    assert kl.dtype == jnp.float32
    np.testing.assert_allclose(kl, expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(grads, expected_grads, rtol=1e-3, atol=1e-5)


@functools.cache
def kl_and_gradient(name):
    def total(log_probs, ref, mask):
        kl = KL_ESTIMATORS[name](log_probs, ref, mask)
        return kl.sum(), kl

    differentiate = jax.jit(jax.grad(total, has_aux=True))
    return lambda *args: differentiate(*args)[::-1]


def test_what_the_estimators_pull_on_average():
    """Over tokens drawn from p: k1 pulls nowhere, k2 and the straight-through forms as
    the KL itself does."""
    logits = jnp.asarray([0.3, -1.0, 0.8, 0.1])
    ref = jax.nn.log_softmax(jnp.asarray([-0.5, 0.4, 0.2, 1.0]))
    probs = jax.nn.softmax(logits)

    def mean_pull(name):
        def weighted(logits):
            log_probs = jax.nn.log_softmax(logits)[None]
            kl = KL_ESTIMATORS[name](log_probs, ref[None], jnp.ones((1, 4), bool))
            return jnp.sum(jax.lax.stop_gradient(probs)[None] * kl)

        return jax.grad(weighted)(logits)

    def true_kl(logits):
        log_probs = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.exp(log_probs) * (log_probs - ref))

    np.testing.assert_allclose(mean_pull("k1"), np.zeros(4), atol=1e-6)
    for name in ("k2", "k1+", "k3+"):
        np.testing.assert_allclose(
            mean_pull(name), jax.grad(true_kl)(logits), rtol=1e-4
        )


@pytest.mark.parametrize("name", ["k1", "k3", "k1+", "k3+"])
def test_kl_estimators_are_unbiased(name):
    log_probs = jax.nn.log_softmax(jnp.asarray([[0.3, -1.0, 0.8, 0.1]]))
    ref = jax.nn.log_softmax(jnp.asarray([[-0.5, 0.4, 0.2, 1.0]]))
    kl = KL_ESTIMATORS[name](log_probs, ref, jnp.ones((1, 4), bool))
    expected = jnp.sum(jnp.exp(log_probs) * (log_probs - ref))
    np.testing.assert_allclose(jnp.sum(jnp.exp(log_probs) * kl), expected, rtol=1e-5)


# The critic, weights of tokens, weights of the sampler.


@few
@given(seed=SEEDS)
def test_value_loss_equals_oracle(seed):
    values, old, returns, mask = make_tokens(seed, scale=1.0)
    expected, is_held = np.zeros(SHAPE), np.zeros(SHAPE, bool)
    for index, numbers in each_token(mask, values, old, returns):
        expected[index], is_held[index] = oracle.clipped_value_loss(*numbers, 0.5)
    loss, is_clipped = clipped_value_loss(values, old, returns, mask, clip_value=0.5)
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(is_clipped, is_held)


def test_value_loss_pulls_towards_the_return_until_it_is_held():
    def pull(value, target, clip_value=0.5):
        def loss(value):
            arrays = (value, *one(0.0, target), jnp.ones((1, 1), bool))
            return clipped_value_loss(*arrays, clip_value=clip_value)[0].sum()

        return float(jax.grad(loss)(jnp.full((1, 1), value))[0, 0])

    assert pull(0.25, 1.0) == pytest.approx(-0.75)
    assert pull(0.75, 1.0) == 0.0
    assert pull(0.75, 1.0, clip_value=None) == pytest.approx(-0.25)
    assert pull(-0.75, 1.0) == pytest.approx(-1.75)


def test_value_loss_is_finite_off_the_mask():
    values, old, returns, mask = make_tokens(1)
    for clip_value in (0.5, None):
        options = {"clip_value": clip_value}
        loss = functools.partial(clipped_value_loss, **options)
        grads = jax.grad(lambda v, loss=loss: loss(v, old, returns, mask)[0].sum())
        assert np.isfinite(grads(values)).all()
        assert not grads(values)[~mask].any()


@pytest.mark.parametrize("name", AGGREGATIONS)
@few
@given(seed=SEEDS)
def test_aggregation_equals_oracle(name, seed):
    _, terms, _, mask = make_tokens(seed)
    weights = compiled(AGGREGATIONS[name])(mask)
    assert weights.dtype == jnp.float32
    assert not weights[~mask].any()
    rows = [
        np.asarray(row, float)[np.asarray(chosen)].tolist()
        for row, chosen in zip(terms, mask, strict=True)
    ]
    expected = oracle.aggregate(name, rows, SHAPE[1])
    total = (weights * jnp.where(mask, terms, 0.0)).sum()
    np.testing.assert_allclose(total, expected, rtol=1e-5)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregation_of_nothing(name):
    assert not AGGREGATIONS[name](jnp.zeros(SHAPE, bool)).any()


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_rows_without_tokens_do_not_matter(name):
    mask = make_tokens(2)[3]
    weights = AGGREGATIONS[name](mask)
    fewer = AGGREGATIONS[name](mask[1:])
    np.testing.assert_array_equal(weights[1:], fewer)


def test_importance_weights_equal_oracle():
    old, sampled = jnp.linspace(-3.0, 0.0, 9), jnp.linspace(-1.0, -2.0, 9)
    expected = [
        oracle.importance_weight(float(a), float(b), 2.0)
        for a, b in zip(old, sampled, strict=True)
    ]
    actual = importance_weights(old, sampled, cap=2.0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert max(expected) == 2.0
    assert min(expected) < 0.2
    assert (importance_weights(old, sampled, cap=None) == 1.0).all()
