"""How much the thoughts say of the prompts: within and across inputs.

In: the log-probability of every thought under every prompt. Out: estimates of
H(Z) = I(X;Z) + H(Z|X) and of how well a thought tells its prompt. Host code in float64:
a matrix of 64 x 64 is small.

For a thought `i` of `n_i` tokens, its log-probability `s_ij` under prompt `j`, and the
share `w_j` of the thoughts that were written under prompt `j` (equal prompts are one):

    matched_i  = s_i,own(i)              marginal_i = log sum_j w_j exp(s_ij)

The forms, by the suffix of their names:

- `_seq`: as above, in nats per thought. The one that estimates the information.
- none: `s_ij / n_i` in place of `s_ij`, so lengths are divided out before the mixture
  (RAGEN's repository).
- `_paper`: `matched_i / n_i` and `marginal_i / n_i`, lengths are divided out after it
  (arXiv 2604.06268, equation 1).

`docs/information.md` says what each is good for.
"""

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

# Form, a suffix of names -> names of its information and its H(Z).
FORMS = {
    "": ("mi_estimate", "reasoning_entropy_est"),
    "_seq": ("mi_seq_estimate", "reasoning_entropy_seq_est"),
    "_paper": ("mi_estimate_paper", "reasoning_entropy_est_paper"),
}
# Added to a standard deviation before it divides (RAGEN).
STD_EPSILON = 1e-3
# What a moving average keeps of itself (RAGEN).
EMA_DECAY = 0.9
# Ranks among which a thought's own prompt is looked for.
RANKS = (1, 2, 4, 8)


def estimates(
    scores: Float[np.ndarray, "M P"],
    lengths: Int[np.ndarray, " M"],
    prompt_of: Int[np.ndarray, " M"],
) -> dict[str, float]:
    """All that one set of pairs tells, by RAGEN's names.

    Args:
      scores: log-probability of each thought under each prompt, nats.
      lengths: tokens of each thought, at least 1.
      prompt_of: index of the prompt each thought was written under; every prompt has
        one.

    Returns:
      Besides the counts, nothing without a pair. Under a single prompt there is nothing
      to compare with: the conditional entropy alone.
    """
    num_pairs, num_prompts = scores.shape
    found = {"num_samples": num_pairs, "num_prompts": num_prompts}
    if num_pairs > 0:
        scores, sizes = scores.astype(np.float64), lengths.astype(np.float64)
        own = scores[np.arange(num_pairs), prompt_of]
        found |= {
            "matched_log_prob_mean": np.mean(own / sizes),
            "conditional_entropy_est": -np.mean(own / sizes),
            "conditional_entropy_seq_est": -np.mean(own),
        }
        if num_prompts > 1:
            shares = np.bincount(prompt_of, minlength=num_prompts) / num_pairs
            found["mi_upper_bound"] = -np.sum(shares * np.log(shares))
            found |= _across(scores, own, sizes, shares)
            found |= _retrieval(scores, own)
    return {name: float(value) for name, value in found.items()}


def averaged(
    metrics: Mapping[str, float], before: Mapping[str, float | None]
) -> dict[str, float]:
    """Moving averages of the marginal's spread, and the z-scores that they give.

    Args:
      metrics: of `estimates`.
      before: metrics of the last time, with its averages; none where there was none.
    """
    found = {}
    for form, (information, _) in FORMS.items():
        if f"marginal_std{form}" not in metrics:
            continue
        spread = float(metrics[f"marginal_std{form}"])
        last = before.get(f"marginal_std_ema{form}")
        if last is not None and math.isfinite(last):
            spread = EMA_DECAY * last + (1 - EMA_DECAY) * spread
        found[f"marginal_std_ema{form}"] = spread
        zscore = float(metrics[information]) / (spread + STD_EPSILON)
        found[f"mi_zscore_ema{form}"] = zscore
    return found


def _across(
    scores: Float[np.ndarray, "M P"],
    own: Float[np.ndarray, " M"],
    sizes: Float[np.ndarray, " M"],
    shares: Float[np.ndarray, " P"],
) -> dict[str, float]:
    """What needs several prompts, in every form."""
    marginals = {
        "": _mixture(scores / sizes[:, None], shares),
        "_seq": _mixture(scores, shares),
        "_paper": _mixture(scores, shares) / sizes,
    }
    found = {"marginal_log_prob_mean": np.mean(marginals[""])}
    for form, (information, entropy) in FORMS.items():
        marginal = marginals[form]
        matched = own if form == "_seq" else own / sizes
        gain, spread = np.mean(matched - marginal), np.std(marginal)
        found[information], found[entropy] = gain, -np.mean(marginal)
        found[f"marginal_std{form}"] = spread
        found[f"mi_zscore{form}"] = gain / (spread + STD_EPSILON)
    return found


def _mixture(
    log_probs: Float[np.ndarray, "M P"], shares: Float[np.ndarray, " P"]
) -> Float[np.ndarray, " M"]:
    """`log sum_j shares_j exp(log_probs_ij)`."""
    return np.logaddexp.reduce(log_probs + np.log(shares), axis=1)


def _retrieval(
    scores: Float[np.ndarray, "M P"], own: Float[np.ndarray, " M"]
) -> dict[str, float]:
    """How often the own prompt is among the likeliest, of equals by chance."""
    num_prompts, found = scores.shape[1], {}
    num_better = np.sum(scores > own[:, None], axis=1)
    num_equal = np.sum(scores == own[:, None], axis=1)
    for rank in RANKS:
        hits = np.clip((rank - num_better) / num_equal, 0.0, 1.0)
        accuracy, chance = np.mean(hits), min(1.0, rank / num_prompts)
        suffix = "" if rank == 1 else f"@{rank}"
        found[f"retrieval_accuracy{suffix}"] = accuracy
        found[f"retrieval_chance_level{suffix}"] = chance
        found[f"retrieval_above_chance{suffix}"] = accuracy - chance
    return found
