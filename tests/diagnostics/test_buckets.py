"""Assignment of groups to buckets, and the metrics of buckets."""

import numpy as np
import pytest

from ragen_jax.diagnostics.gradient_buckets import (
    bucket_metrics,
    fixed_buckets,
    quantile_buckets,
    signal_to_noise,
)


@pytest.mark.parametrize(
    ("stds", "count", "expected"),
    [
        ([0.3, 0.1, 0.2, 0.5], 2, [1, 0, 0, 1]),
        # The remainder goes to the last; ties keep their order.
        ([1, 1, 1, 1, 1, 0, 2, 3], 3, [0, 1, 1, 2, 2, 0, 2, 2]),
        ([0.2, 0.1], 6, [1, 0]),
        ([0.7], 6, [0]),
    ],
)
def test_quantile_buckets(stds, count, expected):
    result = quantile_buckets(np.array(stds, np.float32), count)
    np.testing.assert_array_equal(result, expected)


def test_fixed_buckets():
    stds = np.array([0, 0.99, 1.0, 2.5, 4.99, 5.0, 17.0])
    np.testing.assert_array_equal(fixed_buckets(stds, 6), [0, 0, 1, 2, 4, 5, 5])
    np.testing.assert_array_equal(fixed_buckets(stds, 2), [0, 0, 1, 1, 1, 1, 1])
    # Equal spreads of 1 in float32: one is 0.99999994.
    rewards = np.float32([[0.3, 1.3, 2.3], [9.1, 10.1, 11.1]])
    stds = rewards.std(axis=1, ddof=1)
    assert stds.min() < 1 <= stds.max()
    np.testing.assert_array_equal(fixed_buckets(stds, 6), [1, 1])


def test_signal_to_noise():
    """Noise alone gives 0 on average; a signal its squared size over the variance."""
    random, result = np.random.default_rng(0), {0.0: [], 0.5: []}
    for signal, estimates in result.items():
        for _ in range(400):
            groups = signal + random.normal(size=(8, 100))
            norm = np.linalg.norm(groups.mean(axis=0))
            squares = (groups**2).sum(axis=1).mean()
            estimates.append(signal_to_noise(norm, squares, 8))
    assert abs(np.mean(result[0.0])) < 0.003
    assert np.mean(result[0.5]) == pytest.approx(0.25, abs=0.01)
    assert signal_to_noise(1.0, 1.0, 1) is None
    assert signal_to_noise(0.0, 0.0, 4) == 0


def test_metrics():
    stds = np.array([0.5, 3.0, 0.0])
    norms = {"task": np.array([2.0, 0, 4, 3]), "entropy": np.array([1.0, 0, 1, 1])}
    losses = {"task": np.array([0.1, 0, 0.2, 0.3]), "entropy": -norms["entropy"]}
    metrics = bucket_metrics(
        stds,
        np.array([0, 2, 0]),
        4,
        num_tokens=np.array([10.0, 0, 5, 15]),
        norms=norms,
        losses=losses,
        squares=np.array([8.0, 0, 16, 18]),
    )
    assert not any(name.startswith("bucket_2/") for name in metrics)
    assert {name.split("/")[0] for name in metrics} == {"bucket_1", "bucket_3", "all"}
    first = {
        n.removeprefix("bucket_1/"): x for n, x in metrics.items() if "bucket_1" in n
    }
    assert first == pytest.approx(
        {
            "sample_count": 8,
            "sample_pct": 200 / 3,
            "reward_std_mean": 0.25,
            "reward_std_min": 0,
            "reward_std_max": 0.5,
            # Mean squared 4, variance (8 - 4) * 2, less one half.
            "snr": 0.0,
            "task": 2,
            "entropy": 1,
            "per_sample/task": 0.25,
            "per_sample/entropy": 0.125,
            "per_token/task": 0.2,
            "per_token/entropy": 0.1,
            "loss/policy": 0.1,
            "loss/entropy": -1,
            "loss/total": -0.9,
        }
    )
    assert "bucket_3/snr" not in metrics
    assert metrics["all/sample_count"] == 12
