"""Loss terms of one token, in plain Python, case by case."""

import math


def ratio(log_prob: float, old_log_prob: float) -> float:
    """pi / pi_old, the exponent held within 20."""
    return math.exp(min(max(log_prob - old_log_prob, -20.0), 20.0))


def clipped_policy_loss(
    log_prob: float,
    old_log_prob: float,
    advantage: float,
    clip_low: float,
    clip_high: float,
) -> tuple[float, bool]:
    """A better-than-expected token stops paying above 1 + clip_high, a worse one below
    1 - clip_low."""
    r = ratio(log_prob, old_log_prob)
    if advantage > 0 and r > 1 + clip_high:
        return -advantage * (1 + clip_high), True
    if advantage < 0 and r < 1 - clip_low:
        return -advantage * (1 - clip_low), True
    return -advantage * r, False


def importance_weight(old: float, sampled: float, cap: float) -> float:
    """pi_old / pi_sampled, at most `cap`."""
    return min(ratio(old, sampled), cap)


def log_softmax(logits: list[float], temperature: float) -> list[float]:
    """Log-probabilities of one token's alternatives."""
    scaled = [logit / temperature for logit in logits]
    largest = max(scaled)
    total = sum(math.exp(x - largest) for x in scaled)
    return [x - largest - math.log(total) for x in scaled]


def entropy(log_probs: list[float]) -> float:
    """-sum p log p, in nats."""
    return -sum(math.exp(x) * x for x in log_probs)
