"""Permutation tests and intervals, against SciPy's."""

import itertools

import numpy as np
import pytest
from scipy import stats

from ragen_jax.evaluation.statistics import bootstrap_interval
from studies import permutation

HIGH = [0.61, 0.55, 0.58, 0.52, 0.66]
LOW = [0.50, 0.57, 0.49, 0.51, 0.53]


def difference(a, b, axis):
    return np.mean(a, axis=axis) - np.mean(b, axis=axis)


@pytest.mark.parametrize("high", [HIGH, HIGH[:3], [0.4, 0.62, 0.45, 0.512]])
@pytest.mark.parametrize("low", [LOW, LOW[:2]])
def test_two_samples(high, low):
    found = permutation.two_samples(high, low)
    for alternative, p in (("greater", found.above), ("less", found.below)):
        expected = stats.permutation_test(
            (high, low), difference, alternative=alternative, n_resamples=np.inf
        )
        assert p == pytest.approx(expected.pvalue)


def test_samples_that_do_not_overlap_are_as_unlikely_as_can_be():
    found = permutation.two_samples([3, 4, 5], [0, 1, 2])
    assert found == (1 / 20, 1.0, 1 / 20)


def test_many_runs_are_drawn():
    rng = np.random.default_rng(1)
    high, low = rng.normal(0.6, 1, 40), rng.normal(0, 1, 40)
    expected = stats.permutation_test(
        (high, low), difference, alternative="greater", rng=rng
    )
    found = permutation.two_samples(high, low)
    assert found.above == pytest.approx(expected.pvalue, abs=0.01)
    assert found == permutation.two_samples(high, low)


@pytest.mark.parametrize("values", [[0.1, -0.05, 0.2, 0.15, 0.02], [-1.0, -2.0, 0.5]])
def test_one_sample(values):
    found = permutation.one_sample(values)
    for alternative, p in (("greater", found.above), ("less", found.below)):
        expected = stats.permutation_test(
            (values,),
            lambda a, axis: np.mean(a, axis=axis),
            permutation_type="samples",
            alternative=alternative,
            n_resamples=np.inf,
        )
        assert p == pytest.approx(expected.pvalue)


def test_rank_correlation():
    rng = np.random.default_rng(2)
    x = np.repeat(np.arange(5), 5)
    y = 0.3 * x + rng.normal(size=25)
    size, p = permutation.rank_correlation(x, y)
    expected = stats.spearmanr(x, y, alternative="greater")
    assert size == pytest.approx(expected.statistic)
    assert p.above == pytest.approx(expected.pvalue, abs=0.01)
    back, q = permutation.rank_correlation(x, -y)
    assert back == pytest.approx(-size)
    assert q.below == pytest.approx(p.above, abs=0.01)


def test_blocks_are_ranked_alone():
    # Within both blocks y falls with x; the blocks differ in both.
    x = [1, 2, 3, 4, 11, 12, 13, 14]
    y = [4, 3, 2, 1, 14, 13, 12, 11]
    blocks = ["a"] * 4 + ["b"] * 4
    assert permutation.rank_correlation(x, y)[0] > 0.5
    size, p = permutation.rank_correlation(x, y, blocks)
    assert size == pytest.approx(-1)
    assert p.below < 0.05
    assert p.above == 1
    # Exchanged within blocks alone: all orders of both, one of which is as extreme.
    assert p.below == pytest.approx(1 / 24**2, abs=0.003)


def test_few_orders_of_ranks_are_all_gone_through():
    x, y = [0.3, 0.1, 0.9, 0.7, 0.5, 0.2], [2.0, 2.5, 6.0, 3.0, 4.0, 1.0]
    size, p = permutation.rank_correlation(x, y)
    for alternative, found in (("greater", p.above), ("less", p.below)):
        expected = stats.permutation_test(
            (y,),
            lambda values: stats.spearmanr(x, values).statistic,
            permutation_type="pairings",
            alternative=alternative,
            n_resamples=np.inf,
        )
        assert found == pytest.approx(expected.pvalue)
    assert p.least == pytest.approx(1 / 720)
    # Three units and two, among each other: in the first block the ranks agree (2/9),
    # in the second they do not (-1/8). Of 3! 2! orders four add up to as much.
    names = ["a", "b", "a", "b", "a"]
    size, p = permutation.rank_correlation([1, 2, 3, 4, 5], [1, 9, 2, 8, 3], names)
    assert size == pytest.approx((2 / 9 - 1 / 8) / (2 / 9 + 1 / 8))
    assert (p.above, p.least) == pytest.approx((4 / 12, 1 / 12))


def test_runs_of_two_arms_are_too_few():
    """Of six ways to give two places to four runs one is as extreme."""
    _, p = permutation.rank_correlation([0, 0, 1, 1], [1.0, 2.0, 3.0, 4.0])
    assert (p.above, p.least) == pytest.approx((1 / 6, 1 / 6))


def test_no_spread_is_no_correlation():
    assert permutation.rank_correlation([1, 2, 3], [1, 1, 1]) == (0.0, (1.0, 1.0, 0.0))


def test_the_interval_of_a_difference_is_that_of_all_resamples():
    means = [
        [np.mean(x) for x in itertools.product(sample, repeat=len(sample))]
        for sample in (HIGH, LOW[:3])
    ]
    expected = np.quantile(np.subtract.outer(*means), (0.025, 0.975))
    found = bootstrap_interval(HIGH, LOW[:3])
    np.testing.assert_allclose(found, expected, atol=0.005)
    assert bootstrap_interval(HIGH, LOW[:2]) is None
