"""Loss terms of one token, in plain Python, case by case."""

import math


def ratio(log_prob: float, old_log_prob: float) -> float:
    """pi / pi_old, the exponent held within 20."""
    return math.exp(min(max(log_prob - old_log_prob, -20.0), 20.0))


def clipped_policy_loss(
    r: float,
    advantage: float,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[float, bool]:
    """A better-than-expected token stops paying above 1 + clip_high, a worse one below
    1 - clip_low and, with a dual clip, above that."""
    if advantage > 0 and r > 1 + clip_high:
        return -advantage * (1 + clip_high), True
    if advantage < 0 and r < 1 - clip_low:
        return -advantage * (1 - clip_low), True
    if advantage < 0 and dual_clip is not None and r > dual_clip:
        return -advantage * dual_clip, True
    return -advantage * r, False


def sequence_ratio(log_probs: list[float], old_log_probs: list[float]) -> float:
    """Geometric mean of the trained tokens' ratios."""
    product = 1.0
    for new, old in zip(log_probs, old_log_probs, strict=True):
        product *= math.exp(new - old)
    return product ** (1 / len(log_probs))


def cispo(
    log_prob: float, old: float, advantage: float, clip_low: float, clip_high: float
) -> tuple[float, bool, float]:
    """Loss, whether the weight was clipped, and the gradient."""
    r = ratio(log_prob, old)
    weight = min(max(r, 1 - clip_low), 1 + clip_high)
    return -weight * advantage * log_prob, weight != r, -weight * advantage


def kl(name: str, log_prob: float, ref_log_prob: float) -> float:
    """Schulman's estimators of log(p / q), for a token drawn from p."""
    name = name.removesuffix("+")
    difference = log_prob - ref_log_prob
    if name == "k1":
        return difference
    if name == "abs":
        return abs(difference)
    if name == "k2":
        return difference**2 / 2
    d = min(max(-difference, -20.0), 20.0)
    return min(math.exp(d) - d - 1, 10.0)


def kl_gradient(name: str, log_prob: float, ref_log_prob: float) -> float:
    """By the token's own log-probability."""
    difference = log_prob - ref_log_prob
    if name == "k1":
        return 1.0
    if name == "abs":
        return math.copysign(1.0, difference)
    if name == "k3":
        is_held = abs(difference) > 20 or kl(name, log_prob, ref_log_prob) >= 10
        return 0.0 if is_held else 1 - math.exp(-difference)
    return difference


def clipped_value_loss(
    value: float, old: float, target: float, clip_value: float
) -> tuple[float, bool]:
    """A step beyond `clip_value` does not count as having come nearer."""
    held = min(max(value, old - clip_value), old + clip_value)
    free, bounded = (value - target) ** 2, (held - target) ** 2
    return max(free, bounded) / 2, bounded > free


def importance_weight(old: float, sampled: float, cap: float) -> float:
    return min(ratio(old, sampled), cap)


def aggregate(name: str, terms: list[list[float]], width: int) -> float:
    """The loss of a minibatch from the trained tokens' terms of each row."""
    rows = [row for row in terms if row]
    if name == "token_mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if name == "seq_mean_token_mean":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    total = sum(map(sum, rows)) / len(rows)
    return total if name == "seq_mean_token_sum" else total / width


def mismatch(
    log_probs: list[float], sampled: list[float], cap: float
) -> dict[str, float]:
    """Sampler against learner, over the trained tokens."""
    pairs = list(zip(log_probs, sampled, strict=True))
    weights = [ratio(new, old) for new, old in pairs]
    differences = [abs(new - old) for new, old in pairs]
    return {
        "mean_difference": sum(differences) / len(pairs),
        "max_difference": max(differences),
        "kl": sum(kl("k3", old, new) for new, old in pairs) / len(pairs),
        "effective_sample_size": sum(weights) ** 2
        / sum(w**2 for w in weights)
        / len(pairs),
        "mean_weight": sum(weights) / len(pairs),
        "max_weight": max(weights),
        "truncated": sum(w > cap for w in weights) / len(pairs),
    }


def log_softmax(logits: list[float], temperature: float) -> list[float]:
    """Log-probabilities of one token's alternatives."""
    scaled = [logit / temperature for logit in logits]
    largest = max(scaled)
    total = sum(math.exp(x - largest) for x in scaled)
    return [x - largest - math.log(total) for x in scaled]


def entropy(log_probs: list[float]) -> float:
    """-sum p log p, in nats."""
    return -sum(math.exp(x) * x for x in log_probs)
