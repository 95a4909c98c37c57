"""Success rates with confidence intervals, and pass@k.

In: success of every sample of every prompt, or a number per run. Out: numbers. NumPy on
the host; knows no environments and no models.

Prompts are independent draws. Samples of one prompt share its level and are alike, so
an interval that took them for independent would be too narrow. All intervals here are
over prompts.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Bool, Float

from ragen_jax import rngs

# Two-sided 95 % quantile of the standard normal distribution.
_Z95 = 1.959964
NUM_RESAMPLES = 10_000


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion (Wilson 1927)."""
    share = successes / trials
    scale = 1 + _Z95**2 / trials
    centre = (share + _Z95**2 / (2 * trials)) / scale
    half = _Z95 * math.sqrt(share * (1 - share) / trials + _Z95**2 / (4 * trials**2))
    return max(0.0, centre - half / scale), min(1.0, centre + half / scale)


def prompt_interval(
    shares: Float[np.ndarray, " P"], trials_per_prompt: float
) -> tuple[float, float]:
    """95 % interval of a mean over prompts.

    Wilson's interval with the number of independent trials that would vary as much:
    `m (1 - m) / variance of the mean over prompts` (Korn and Graubard 1998; compared
    with other intervals for clustered samples by Franco et al. 2019), at least the
    number of prompts. With one trial per prompt it is `wilson_interval`.

    Args:
      shares: one value in [0, 1] per prompt.
      trials_per_prompt: independent trials that a value is the mean of, at most.
    """
    num_prompts, mean = len(shares), float(np.mean(shares))
    variance = float(np.mean((shares - mean) ** 2)) / num_prompts
    trials = mean * (1 - mean) / variance if variance > 0 else math.inf
    if mean in (0.0, 1.0) or num_prompts == 1:
        # No variance, hence no evidence that a prompt's samples are independent.
        trials = num_prompts
    trials = min(max(trials, num_prompts), num_prompts * trials_per_prompt)
    return wilson_interval(mean * trials, trials)


def bootstrap_interval(
    values: Sequence[float], minus: Sequence[float] | None = None
) -> tuple[float, float] | None:
    """95 % interval of a mean: percentiles of the means of resamples (Efron 1979).

    The same values in the same order always give the same interval. Of few values it is
    too narrow: no resample has a value beyond them.

    Args:
      values: independent measurements, runs of several seeds for example.
      minus: others, resampled on their own, whose mean is subtracted.

    Returns:
      Its ends; None for fewer than three values: of two it would be the two.
    """
    samples = [values] if minus is None else [values, minus]
    if min(map(len, samples)) < 3:
        return None
    root, means = rngs.stream(rngs.root_key(0), "bootstrap"), 0.0
    keys = (root, jax.random.fold_in(root, 1))
    for key, sample, sign in zip(keys, samples, (1, -1), strict=False):
        shape = (NUM_RESAMPLES, len(sample))
        chosen = np.asarray(jax.random.randint(key, shape, 0, len(sample)))
        means += sign * np.asarray(sample, np.float64)[chosen].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def pass_at(success: Bool[np.ndarray, "P N"], k: int) -> Float[np.ndarray, " P"]:
    """Chance that at least one of `k` samples succeeds, for each prompt.

    The unbiased estimate `1 - C(N - c, k) / C(N, k)` from `N` samples with `c`
    successes (Chen et al. 2021, arXiv 2107.03374, section 2.1).

    Raises:
      ValueError: `k` is not between 1 and `N`.
    """
    num_samples = success.shape[1]
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} needs at least {max(k, 1)} samples per prompt, there are "
            f"{num_samples}; use 1 <= k <= samples"
        )
    total = math.comb(num_samples, k)
    failed = num_samples - np.sum(success, axis=1)
    # Whole numbers of any size, divided once.
    return np.array([1 - math.comb(int(count), k) / total for count in failed])


def summarize(
    success: Bool[np.ndarray, "P N"], ceiling: float | None, ks: Sequence[int]
) -> dict[str, float]:
    """Success, its interval, what is missing to the ceiling, and pass@k.

    Returns:
      `success`, `success_low`, `success_high`, and for each of `ks` `pass@k`,
      `pass@k_low` and `pass@k_high`; where the ceiling is known `ceiling` and `regret`.
    """
    num_samples = success.shape[1]
    shares = np.mean(success, axis=1)
    mean = float(np.mean(success))
    low, high = prompt_interval(shares, num_samples)
    metrics = {"success": mean, "success_low": low, "success_high": high}
    if ceiling is not None:
        metrics |= {"ceiling": ceiling, "regret": ceiling - mean}
    for k in ks:
        passed = pass_at(success, k)
        low, high = prompt_interval(passed, num_samples / k)
        metrics |= {
            f"pass@{k}": float(np.mean(passed)),
            f"pass@{k}_low": low,
            f"pass@{k}_high": high,
        }
    return metrics
