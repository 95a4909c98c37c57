"""Sampler against learner: the metrics, and that microbatches add up."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.algo.mismatch import MismatchSums, mismatch_sums
from ragen_jax.learner.metrics import MISMATCH_METRICS
from tests.reference import losses_oracle as oracle


def make_pair(seed=0):
    random = np.random.default_rng(seed)
    mask = random.random((6, 9)) < 0.6
    learner = np.where(mask, -3 * random.random(mask.shape), np.nan)
    sampler = learner + 0.3 * random.normal(size=mask.shape)
    return *(jnp.asarray(x, jnp.float32) for x in (learner, sampler)), jnp.asarray(mask)


NAMES = {
    "sampler_log_prob_difference": "mean_difference",
    "sampler_log_prob_difference_max": "max_difference",
    "sampler_kl": "kl",
    "sampler_effective_sample_size": "effective_sample_size",
    "sampler_weight_mean": "mean_weight",
    "sampler_weight_max": "max_weight",
    "sampler_weight_truncated": "truncated",
}
CAP = 1.2


def mismatch_metrics(sums):
    return {NAMES[m.key]: m.value(sums) for m in MISMATCH_METRICS}


def test_metrics_equal_oracle():
    learner, sampler, mask = make_pair()
    sums = jax.jit(functools.partial(mismatch_sums, cap=CAP))
    actual = mismatch_metrics(sums(learner, sampler, mask))
    chosen = (np.asarray(x)[np.asarray(mask)].tolist() for x in (learner, sampler))
    expected = oracle.mismatch(*chosen, CAP)
    assert set(actual) == set(expected) == set(NAMES.values())
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, err_msg=name)
    assert 0.5 < actual["effective_sample_size"] < 0.99
    assert 0.1 < actual["truncated"] < 0.9
    assert mismatch_metrics(mismatch_sums(learner, sampler, mask))["truncated"] == 0


def test_parts_add_up():
    learner, sampler, mask = make_pair()
    whole = mismatch_sums(learner, sampler, mask, CAP)
    total = MismatchSums.zero()
    for start in (0, 2, 4):
        rows = slice(start, start + 2)
        total = total.plus(mismatch_sums(learner[rows], sampler[rows], mask[rows], CAP))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), total, whole)


def test_equal_probabilities_mismatch_in_nothing():
    learner, _, mask = make_pair()
    metrics = mismatch_metrics(mismatch_sums(learner, learner, mask))
    for name in ("effective_sample_size", "mean_weight", "max_weight"):
        assert metrics.pop(name) == pytest.approx(1.0)
    assert not any(metrics.values())


def test_no_token_at_all():
    assert not any(mismatch_metrics(MismatchSums.zero()).values())
