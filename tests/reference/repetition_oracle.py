"""How much replies repeat themselves, counted with sets and dictionaries."""

import collections

import numpy as np


def replies(trajectory) -> list[tuple[int, ...]]:
    tokens, mask, turn_index, played = (
        np.asarray(x)
        for x in (
            trajectory.tokens,
            trajectory.loss_mask,
            trajectory.turn_index,
            trajectory.turns.played,
        )
    )
    return [
        tuple(tokens[row][mask[row] & (turn_index[row] == turn)])
        for row, turn in zip(*np.nonzero(played), strict=True)
    ]


def distinct_ngrams(found: list[tuple[int, ...]], size: int) -> float:
    grams = [
        reply[i : i + size] for reply in found for i in range(len(reply) - size + 1)
    ]
    return len(set(grams)) / len(grams) if grams else 0.0


def top_reply_share(found: list[tuple[int, ...]]) -> float:
    return max(collections.Counter(found).values()) / len(found) if found else 0.0
