"""Rewards on tokens, normalised totals and weights by hand, one row at a time."""

import numpy as np

from tests.reference.advantages_oracle import mean_and_std


def total(
    rewards: list[float],
    penalties: list[float],
    bonuses: list[float],
    played: list[bool],
) -> float:
    """What the turns played paid, penalties and bonuses included."""
    turns = zip(rewards, penalties, bonuses, played, strict=True)
    return sum(r + p + b for r, p, b, is_played in turns if is_played)


def at_episode_end(totals: list[float], mask: np.ndarray) -> np.ndarray:
    """Each row's number at its last trained token."""
    placed = np.zeros(mask.shape)
    for row, number in enumerate(totals):
        where = np.flatnonzero(mask[row])
        if len(where):
            placed[row, where[-1]] = number
    return placed


def at_turn_ends(turn_totals, mask: np.ndarray, turn_index: np.ndarray) -> np.ndarray:
    """`turn_totals[row][k]` at the last trained token of turn k."""
    placed = np.zeros(mask.shape)
    for row, numbers in enumerate(turn_totals):
        for k, number in enumerate(numbers):
            where = np.flatnonzero(mask[row] & (turn_index[row] == k))
            if len(where):
                placed[row, where[-1]] = number
    return placed


def normalize(
    totals: list[float], labels: list, takes_part: list[bool], method: str
) -> list[float]:
    """Each row against the rows of its label that take part (itself included)."""
    members = {
        label: [
            x
            for x, other, is_in in zip(totals, labels, takes_part, strict=True)
            if is_in and other == label
        ]
        for label in labels
    }
    if method == "identity" or all(len(m) <= 1 for m in members.values()):
        return totals
    normalized = []
    for x, label in zip(totals, labels, strict=True):
        peers = members[label] or [x]
        mean, std = mean_and_std(peers)
        number = x - mean
        if method != "mean":
            number = 0.0 if std <= 1e-6 else number / (std + 1e-6)
        if method == "asymmetric_clip":
            number = min(max(number, -1.0), 3.0)
        normalized.append(number)
    return normalized


def group_std_weights(
    scores: list[float], takes_part: list[bool], group_size: int
) -> list[float]:
    """Each row's group's standard deviation against the largest."""
    stds = []
    for first in range(0, len(scores), group_size):
        rows = range(first, first + group_size)
        group = [scores[i] for i in rows if takes_part[i]]
        stds.append(mean_and_std(group)[1] if len(group) > 1 else float(len(group)))
    return [stds[row // group_size] / (max(stds) + 1e-6) for row in range(len(scores))]


def length_weights(lengths: list[int]) -> list[float]:
    """Mean length against the row's, of rows that have one."""
    present = [n for n in lengths if n > 0]
    mean = sum(present) / len(present)
    return [mean / (n + 1e-6) if n > 0 else 0.0 for n in lengths]
