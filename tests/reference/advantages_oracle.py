"""Advantages by hand, one episode and one sum at a time, from the formulas.

Arrays are NumPy; scores are lists, one per row. A row without a trained token is no
member of its group.
"""

import math

import numpy as np


def trained(mask: np.ndarray, row: int) -> list[int]:
    """Where the row's trained tokens are."""
    return [t for t in range(mask.shape[1]) if mask[row, t]]


def members(row: int, group_size: int, mask: np.ndarray) -> list[int]:
    first = row // group_size * group_size
    return [i for i in range(first, first + group_size) if mask[i].any()]


def mean_and_std(numbers: list[float]) -> tuple[float, float]:
    """Mean and standard deviation with n - 1; of one number 0."""
    mean = sum(numbers) / len(numbers)
    squares = sum((x - mean) ** 2 for x in numbers)
    return mean, math.sqrt(squares / max(1, len(numbers) - 1))


def everywhere(per_row: list[float], mask: np.ndarray) -> np.ndarray:
    return np.where(mask, np.asarray(per_row, float)[:, None], 0.0)


def whiten(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(x - mean) / sqrt(variance + 1e-8) over the trained tokens of the batch."""
    mean, std = mean_and_std([float(v) for v in x[mask]])
    return np.where(mask, (x - mean) / math.sqrt(std**2 + 1e-8), 0.0)


def grpo(scores: list[float], group_size: int, mask: np.ndarray) -> np.ndarray:
    """(score - group mean) / (group std + 1e-6) at each trained token."""
    advantages = []
    for row, score in enumerate(scores):
        group = [scores[i] for i in members(row, group_size, mask)]
        mean, std = (0.0, 1.0) if len(group) < 2 else mean_and_std(group)
        advantages.append((score - mean) / (std + 1e-6))
    return everywhere(advantages, mask)


def dr_grpo(scores: list[float], group_size: int, mask: np.ndarray) -> np.ndarray:
    """score - group mean; of a group of one the score."""
    advantages = []
    for row, score in enumerate(scores):
        group = [scores[i] for i in members(row, group_size, mask)]
        advantages.append(score - (sum(group) / len(group) if len(group) > 1 else 0.0))
    return everywhere(advantages, mask)


def rloo(scores: list[float], group_size: int, mask: np.ndarray) -> np.ndarray:
    """score - mean of the others' scores."""
    advantages = []
    for row, score in enumerate(scores):
        others = [scores[i] for i in members(row, group_size, mask) if i != row]
        advantages.append(score - (sum(others) / len(others) if others else 0.0))
    return everywhere(advantages, mask)


def reinforce(rewards: np.ndarray, mask: np.ndarray, gamma: float) -> np.ndarray:
    """Sum over the row's later trained tokens, discounted by how many lie between."""
    advantages = np.zeros(mask.shape)
    for row in range(len(mask)):
        tokens = trained(mask, row)
        for i, t in enumerate(tokens):
            advantages[row, t] = sum(
                gamma**j * rewards[row, u] for j, u in enumerate(tokens[i:])
            )
    return advantages


def reinforce_plus_plus(rewards, mask, gamma) -> np.ndarray:
    return whiten(reinforce(rewards, mask, gamma), mask)


def reinforce_plus_plus_baseline(scores, group_size, mask) -> np.ndarray:
    return whiten(dr_grpo(scores, group_size, mask), mask)


def gae(rewards, values, mask, gamma, lam) -> tuple[np.ndarray, np.ndarray]:
    """sum_l (gamma lam)^l delta_{t+l}; whitened, and with the value added."""
    advantages = np.zeros(mask.shape)
    for row in range(len(mask)):
        tokens = trained(mask, row)
        v = [values[row, t] for t in tokens] + [0.0]
        r = [rewards[row, t] for t in tokens]
        deltas = [r[i] + gamma * v[i + 1] - v[i] for i in range(len(tokens))]
        for i, t in enumerate(tokens):
            advantages[row, t] = sum(
                (gamma * lam) ** j * delta for j, delta in enumerate(deltas[i:])
            )
    returns = np.where(mask, advantages + np.where(mask, values, 0.0), 0.0)
    return whiten(advantages, mask), returns


def bi_level_gae(
    rewards, values, mask, turn_index, gamma, lam, high_level_gamma
) -> tuple[np.ndarray, np.ndarray]:
    """GAE over turns as if each were a step; its advantages end the turns' own GAE."""
    advantages = np.zeros(mask.shape)
    for row in range(len(mask)):
        turns = {}
        for t in trained(mask, row):
            turns.setdefault(int(turn_index[row, t]), []).append(t)
        turns = [turns[k] for k in sorted(turns)]
        v = [values[row, tokens[-1]] for tokens in turns] + [0.0]
        r = [sum(rewards[row, t] for t in tokens) for tokens in turns]
        deltas = [r[k] + high_level_gamma * v[k + 1] - v[k] for k in range(len(turns))]
        for k, tokens in enumerate(turns):
            of_turn = sum(
                (high_level_gamma * lam) ** j * d for j, d in enumerate(deltas[k:])
            )
            last = len(tokens) - 1
            for i, t in enumerate(tokens):
                total = (gamma * lam) ** (last - i) * of_turn
                for j in range(i, last):
                    delta = gamma * values[row, tokens[j + 1]] - values[row, tokens[j]]
                    total += (gamma * lam) ** (j - i) * delta
                advantages[row, t] = total
    returns = np.where(mask, advantages + np.where(mask, values, 0.0), 0.0)
    return whiten(advantages, mask), returns


def gigpo(
    scores, turn_rewards, states, mask, turn_index, *, group_size, gamma, step_weight
) -> np.ndarray:
    """grpo's plus, for each turn, what its return is among equal states' returns.

    `turn_rewards[row][k]` are 0 where not played; `states[row][k]` can be compared.
    """
    advantages = grpo(scores, group_size, mask)
    num_turns = len(turn_rewards[0])

    def step_return(row, k):
        return sum(gamma ** (j - k) * turn_rewards[row][j] for j in range(k, num_turns))

    def turns_of(row):
        return {int(turn_index[row, t]) for t in trained(mask, row)}

    for row in range(len(mask)):
        for t in trained(mask, row):
            k = int(turn_index[row, t])
            peers = [
                step_return(i, j)
                for i in members(row, group_size, mask)
                for j in turns_of(i)
                if states[i][j] == states[row][k]
            ]
            mean, std = mean_and_std(peers)
            step = (step_return(row, k) - mean) / (std + 1e-6)
            advantages[row, t] += step_weight * step
    return advantages
