"""Group scores and choices by hand, one group at a time.

Choices are lists of indices of what is kept. Scores are numbers, never not-a-number,
unless a function says so.
"""

import itertools
import math

from tests.reference.advantages_oracle import mean_and_std


def groups_of(numbers: list, group_size: int) -> list[list]:
    """Of each group the numbers; None, of a row without a trained token, is none."""
    return [
        [x for x in numbers[first : first + group_size] if x is not None]
        for first in range(0, len(numbers), group_size)
    ]


def std(numbers: list[float]) -> float:
    """With n - 1; 0 of fewer than two numbers."""
    return mean_and_std(numbers)[1] if numbers else 0.0


def reward_std(rewards: list[float], group_size: int) -> list[float]:
    """Standard deviation (n - 1) of each group's rewards; 0 for a group of one."""
    return [std(group) for group in groups_of(rewards, group_size)]


def reward_variance(rewards: list[float], group_size: int) -> list[float]:
    return [std(group) ** 2 for group in groups_of(rewards, group_size)]


def reward_mean(rewards: list[float], group_size: int) -> list[float]:
    groups = groups_of(rewards, group_size)
    return [sum(group) / len(group) if group else 0.0 for group in groups]


def reward_sum(rewards: list[float], group_size: int) -> list[float]:
    return [sum(group) for group in groups_of(rewards, group_size)]


def length(mask, group_size: int) -> list[float]:
    return reward_mean([float(sum(row)) or None for row in mask], group_size)


def episode_entropies(mask, entropies, group_size: int) -> list[list[float]]:
    """Of each group, the mean entropies of the rows that have trained tokens."""
    means = []
    for row, chosen in zip(entropies, mask, strict=True):
        numbers = [float(h) for h, m in zip(row, chosen, strict=True) if m]
        means.append(sum(numbers) / len(numbers) if numbers else None)
    return groups_of(means, group_size)


def entropy(mask, entropies, group_size: int) -> list[float]:
    groups = episode_entropies(mask, entropies, group_size)
    return [sum(group) / len(group) if group else 0.0 for group in groups]


def entropy_std(mask, entropies, group_size: int) -> list[float]:
    return [std(group) for group in episode_entropies(mask, entropies, group_size)]


def queue(scores: list[float], direction: str, keep_zero: bool) -> list[int]:
    """Candidates, the most wanted first; of equals, the first."""
    sign = -1 if direction == "largest" else 1
    chosen = [g for g, s in enumerate(scores) if keep_zero or abs(s) > 1e-10]
    return sorted(chosen, key=lambda g: sign * scores[g])


def top_fraction(scores, direction, keep_zero, keep_fraction) -> list[int]:
    """The `max(1, floor(fraction of all groups))` most wanted."""
    count = max(1, int(keep_fraction * len(scores)))
    return queue(scores, direction, keep_zero)[:count]


def top_k(scores, direction, keep_zero, count) -> list[int]:
    return queue(scores, direction, keep_zero)[: max(1, count)]


def top_p(scores, direction, keep_zero, share, epsilon) -> list[int]:
    """Walk down the queue until the threshold is reached, or give up at a zero."""
    waiting = queue(scores, direction, keep_zero)
    if share >= 1:
        return waiting
    threshold = share * sum(scores[g] for g in waiting) - epsilon
    kept, total = [], 0.0
    while total < threshold and waiting and scores[waiting[0]] > 0:
        total += scores[waiting[0]]
        kept.append(waiting.pop(0))
    return kept if total >= threshold else []


def top_p_softmax(scores, direction, keep_zero, share) -> list[int]:
    """Walk down the queue until the probabilities add up to the share."""
    waiting = queue(scores, direction, keep_zero)
    if share >= 1:
        return waiting
    sign = 1 if direction == "largest" else -1
    masses = [math.exp(sign * scores[g]) for g in waiting]
    kept, total = [], 0.0
    for g, mass in zip(waiting, masses, strict=True):
        if total >= share:
            break
        kept.append(g)
        total += mass / sum(masses)
    return kept


def min_p(scores, direction, keep_zero, share) -> list[int]:
    candidates = queue(scores, direction, keep_zero)
    if not candidates:
        return []
    best = scores[candidates[0]]
    if direction == "largest":
        return [g for g in candidates if scores[g] >= share * best - 1e-10]
    return [g for g in candidates if scores[g] <= best / (share + 1e-10) + 1e-10]


def quantile_band(scores, keep_zero, low, high) -> list[int]:
    """A slice of the candidates in ascending order."""
    candidates = queue(scores, "smallest", keep_zero)
    n = len(candidates)
    return candidates[math.floor(low * n) : math.floor(high * n)]


def largest_variance(rewards: list[float], count: int) -> float:
    """The best that any `count` of these rewards can have, by trying all of them."""
    return max(
        sum((x - sum(chosen) / count) ** 2 for x in chosen) / count
        for chosen in itertools.combinations(rewards, count)
    )
