"""Advantages by hand, one episode at a time, from the formulas."""

import math

import numpy as np


def grpo(scores: list[float], group_size: int, loss_mask: np.ndarray) -> np.ndarray:
    """(score - group mean) / (group std + 1e-6) at each trained token."""
    advantages = np.zeros(loss_mask.shape)
    for row, score in enumerate(scores):
        first = row // group_size * group_size
        group = [scores[i] for i in range(first, first + group_size)]
        if group_size == 1:
            mean, std = 0.0, 1.0
        else:
            mean = sum(group) / group_size
            squares = sum((member - mean) ** 2 for member in group)
            std = math.sqrt(squares / (group_size - 1))
        for t in range(loss_mask.shape[1]):
            if loss_mask[row, t]:
                advantages[row, t] = (score - mean) / (std + 1e-6)
    return advantages
