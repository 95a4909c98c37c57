"""Group scores and choices by hand, one group at a time."""

import math


def reward_std(rewards: list[float], group_size: int) -> list[float]:
    """Standard deviation (n - 1) of each group's rewards; 0 for a group of one."""
    scores = []
    for first in range(0, len(rewards), group_size):
        group = rewards[first : first + group_size]
        mean = sum(group) / group_size
        squares = sum((reward - mean) ** 2 for reward in group)
        scores.append(math.sqrt(squares / max(1, group_size - 1)))
    return scores


def top_fraction(scores: list[float], keep_fraction: float) -> list[bool]:
    """The `max(1, floor(fraction * G))` best; of equals, the first."""
    num_kept = max(1, int(keep_fraction * len(scores)))
    kept = [False] * len(scores)
    for _ in range(num_kept):
        best = None
        for g, score in enumerate(scores):
            if not kept[g] and (best is None or score > scores[best]):
                best = g
        kept[best] = True
    return kept
