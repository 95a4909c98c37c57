"""Intervals and pass@k against enumeration and simulation."""

import itertools

import numpy as np
import pytest

from ragen_jax.evaluation.statistics import (
    pass_at,
    prompt_interval,
    summarize,
    wilson_interval,
)


def test_pass_at_k_is_the_mean_over_all_subsets():
    success = np.array([[1, 0, 0, 1, 0, 0], [0] * 6, [1] * 6, [0, 0, 0, 0, 0, 1]], bool)
    for k in range(1, 7):
        subsets = list(itertools.combinations(range(6), k))
        expected = [[row[list(s)].any() for s in subsets] for row in success]
        np.testing.assert_allclose(pass_at(success, k), np.mean(expected, axis=1))
    # Not the plug-in estimate, which is too high.
    assert pass_at(success, 3)[0] > 1 - (1 - 2 / 6) ** 3


@pytest.mark.parametrize("k", [0, 7])
def test_pass_at_more_than_there_are(k):
    with pytest.raises(ValueError, match=f"pass@{k} needs"):
        pass_at(np.ones((2, 6), bool), k)


def test_large_numbers_of_samples():
    success = np.zeros((1, 2000), bool)
    success[0, 0] = True
    assert pass_at(success, 500)[0] == pytest.approx(0.25)


def test_one_sample_per_prompt_is_wilson_s():
    """The known interval of 60 of 100."""
    success = np.arange(100)[:, None] < 60
    metrics = summarize(success, 0.9, (1,))
    assert metrics["success_low"] == pytest.approx(0.5020, abs=1e-4)
    assert metrics["success_high"] == pytest.approx(0.6906, abs=1e-4)
    assert metrics["regret"] == pytest.approx(0.3)
    for end in ("", "_low", "_high"):
        assert metrics[f"pass@1{end}"] == pytest.approx(metrics[f"success{end}"])


def test_samples_that_are_copies_tell_nothing_more():
    success = np.repeat(np.arange(100)[:, None] < 60, 8, axis=1)
    found = prompt_interval(success.mean(axis=1), 8)
    assert found == pytest.approx(wilson_interval(60, 100))


def test_samples_that_are_independent_tell_all():
    shares = np.full(100, 0.6)
    assert prompt_interval(shares, 8) == pytest.approx(wilson_interval(480, 800))


def test_samples_of_one_prompt_are_one_trial():
    expected = wilson_interval(0.5, 1)
    assert prompt_interval(np.array([0.5]), 16) == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_where_all_end_alike_only_prompts_count(share):
    expected = wilson_interval(100 * share, 100)
    assert prompt_interval(np.full(100, share), 8) == pytest.approx(expected)


def test_intervals_hold_what_they_promise():
    """Prompts of very different difficulty: the naive interval is far too narrow.

    2,000 experiments; the standard error of a coverage of 95 % is 0.5 points.
    """
    draws = np.random.default_rng(3)
    num_experiments, num_prompts, num_samples = 2000, 64, 8
    chances = draws.beta(0.3, 0.7, (num_experiments, num_prompts))
    counts = draws.binomial(num_samples, chances)
    held = naive = 0
    for row in counts:
        low, high = prompt_interval(row / num_samples, num_samples)
        held += low <= 0.3 <= high
        low, high = wilson_interval(row.sum(), num_prompts * num_samples)
        naive += low <= 0.3 <= high
    assert 0.93 < held / num_experiments < 0.97
    assert naive / num_experiments < 0.75
