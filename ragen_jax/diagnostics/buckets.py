"""Groups by the spread of their rewards, and what is said of a bucket of them.

In: numbers per group, on the host. Out: which bucket each group is in, and metrics by
name. Where a group's rewards hardly differ there is nothing to learn from, while the
entropy and KL parts of the loss pull all the same: how the parts' gradients compare,
bucket by bucket, shows whether an update learns or only regularises (arXiv 2604.06268,
section 4).
"""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float, Int

# The bucket of all groups, behind the others.
ALL = "all"
FIXED_BUCKETS = 6


def quantile_buckets(
    stds: Float[np.ndarray, " G"], num_buckets: int
) -> Int[np.ndarray, " G"]:
    """Equal numbers of groups by their spread, the remainder in the last bucket.

    With fewer groups than buckets each group is a bucket of its own.
    """
    rank = np.empty(len(stds), np.int32)
    rank[np.argsort(stds, kind="stable")] = np.arange(len(stds))
    count = min(num_buckets, len(stds))
    return np.minimum(rank // (len(stds) // count), count - 1)


def fixed_buckets(
    stds: Float[np.ndarray, " G"], num_buckets: int
) -> Int[np.ndarray, " G"]:
    """A standard deviation of 0 to 1, 1 to 2, ...; the last bucket takes the rest."""
    return np.minimum(np.floor(stds), num_buckets - 1).astype(np.int32)


def signal_to_noise(norm: float, squares: float, num_groups: int) -> float | None:
    """How far the groups' gradients agree: an unbiased |G|^2 over their variance.

    With contributions h_i whose mean is the bucket's gradient, and their variance
    s^2 = sum |h_i - mean|^2 / (n - 1), it is |mean|^2 / s^2 - 1 / n: 0 where the groups
    pull in unrelated directions, below it by chance alone. Its inverse is the gradient
    noise scale of arXiv 1812.06162 (appendix A), counted in groups.

    Args:
      norm: of the mean.
      squares: mean of |h_i|^2.
      num_groups: `n`.

    Returns:
      None with fewer than two groups; 0 where there is neither signal nor noise.
    """
    if num_groups < 2:
        return None
    variance = (squares - norm**2) * num_groups / (num_groups - 1)
    if variance <= 0:
        return 0.0
    return norm**2 / variance - 1 / num_groups


def bucket_metrics(
    stds: Float[np.ndarray, " G"],
    buckets: Int[np.ndarray, " G"],
    group_size: int,
    *,
    num_tokens: Float[np.ndarray, " b"],
    norms: Mapping[str, Float[np.ndarray, " b"]],
    losses: Mapping[str, Float[np.ndarray, " b"]],
    squares: Float[np.ndarray, " b"],
) -> dict[str, float]:
    """Metrics named `<bucket>/...` with buckets `bucket_1` ... and `all`.

    Args:
      stds, buckets: of the groups; buckets from 0, empty ones are left out.
      group_size: rows per group.
      num_tokens: trained tokens of each bucket, `all` last, as everything below.
      norms, losses: of each part of the loss ("task", "entropy", "kl").
      squares: mean of the groups' squared contributions to the task's gradient.
    """
    metrics = {}
    for b in range(len(num_tokens)):
        is_all = b == len(num_tokens) - 1
        own = stds if is_all else stds[buckets == b]
        if len(own) == 0:
            continue
        prefix = f"{ALL}/" if is_all else f"bucket_{b + 1}/"
        rows = len(own) * group_size
        found = {
            "sample_count": rows,
            "sample_pct": 100 * len(own) / len(stds),
            "reward_std_mean": own.mean(),
            "reward_std_min": own.min(),
            "reward_std_max": own.max(),
            "snr": signal_to_noise(norms["task"][b], squares[b], len(own)),
            "loss/total": sum(loss[b] for loss in losses.values()),
        }
        for part, norm in norms.items():
            name = "policy" if part == "task" else part
            found |= {
                part: norm[b],
                f"per_sample/{part}": norm[b] / rows,
                f"per_token/{part}": norm[b] / max(num_tokens[b], 1),
                f"loss/{name}": losses[part][b],
            }
        metrics |= {
            prefix + name: float(value)
            for name, value in found.items()
            if value is not None
        }
    return metrics


# (standard deviations, number of buckets) -> bucket of each group.
BUCKET_MODES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "quantile": quantile_buckets,
    "fixed": fixed_buckets,
}
