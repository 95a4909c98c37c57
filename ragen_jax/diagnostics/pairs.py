"""Samples of pairs (X, Z) of a prompt and a thought, with equal prompts merged.

In: episodes, the length of each turn's thought, random numbers. Out: `Pairs`, chosen by
NumPy on the host: as an array program it would take seconds to compile. X is everything
that the model read before the thought, up to and including the opening tag; Z is the
thought without either tag. Prompts are equal if all their tokens are.

RAGEN draws two samples: of first turns, whose prompt is that of the whole group; and of
any turns, an episode first and then one of its turns.

Axis letters besides those of `ragen_jax/types.py`: `M` pairs, `P` prompts, `C` tokens
of a prompt.
"""

from typing import NamedTuple

import jax
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from ragen_jax.types import Trajectory


class Draws(NamedTuple):
    """Random numbers from 0 to 1 that decide both samples.

    Attributes:
      rank, tie: of first turns: the order within a group, and that of equal ranks.
      row, turn: of any turns: which episode, and which of its turns.
    """

    rank: Float[Array, " B"]
    tie: Float[Array, " B"]
    row: Float[Array, "M B"]
    turn: Float[Array, "M K"]


class Turn(NamedTuple):
    """A sample of turns: row and turn of each; the chosen ones come first."""

    row: Int[np.ndarray, " M"]
    turn: Int[np.ndarray, " M"]
    is_chosen: Bool[np.ndarray, " M"]


@struct.dataclass
class Pairs:
    """Thoughts and the prompts they were written under, one entry per pair.

    Attributes:
      prompts: the different prompts, then padding up to `P = M`.
      prompt_lengths: tokens of each prompt.
      num_prompts: number of different prompts.
      thoughts: one per pair, then padding.
      thought_lengths: tokens of each thought.
      prompt_of: index of the prompt that each thought was written under.
      num_pairs: number of pairs.
    """

    prompts: Int[np.ndarray, "P C"]
    prompt_lengths: Int[np.ndarray, " P"]
    num_prompts: Int[np.ndarray, ""]
    thoughts: Int[np.ndarray, "M R"]
    thought_lengths: Int[np.ndarray, " M"]
    prompt_of: Int[np.ndarray, " M"]
    num_pairs: Int[np.ndarray, ""]


def draw(
    key: Key[Array, ""], num_rows: int, num_turns: int, *, num_samples: int
) -> Draws:
    """Random numbers of samples of at most `num_samples` turns; runs inside `jit`."""
    first_key, any_key = jax.random.split(key)
    rank_key, tie_key = jax.random.split(first_key)
    row_key, turn_key = jax.random.split(any_key)
    num_samples = min(num_samples, num_rows * num_turns)
    return Draws(
        rank=jax.random.uniform(rank_key, (num_rows,)),
        tie=jax.random.uniform(tie_key, (num_rows,)),
        row=jax.random.uniform(row_key, (num_samples, num_rows)),
        turn=jax.random.uniform(turn_key, (num_samples, num_turns)),
    )


def first_turns(
    draws: Draws,
    is_valid: Bool[np.ndarray, "B K"],
    *,
    num_samples: int,
    group_size: int,
) -> Turn:
    """Sample of first turns without replacement, even over the groups.

    Args:
      draws: of the sample.
      is_valid: turns that have a thought.
      num_samples: size of the sample, at most.
      group_size: `N`; rows of a group are adjacent.
    """
    is_valid = is_valid[:, 0]
    ranks = np.where(is_valid, draws.rank, np.inf).reshape(-1, group_size)
    order_in_group = np.argsort(ranks, axis=1, kind="stable")
    rank_in_group = np.argsort(order_in_group, axis=1).reshape(-1)
    order = np.lexsort((draws.tie, rank_in_group, ~is_valid))[:num_samples]
    return Turn(order, np.zeros_like(order), is_valid[order])


def any_turns(draws: Draws, is_valid: Bool[np.ndarray, "B K"]) -> Turn:
    """Sample of turns with a thought: of episodes with replacement, then of turns.

    Its size is the number of turns with a thought, at most that of the draws.
    """
    row = _choose(draws.row, np.any(is_valid, axis=1)[None])
    turn = _choose(draws.turn, is_valid[row])
    is_chosen = np.arange(len(row)) < np.sum(is_valid)
    return Turn(row, turn, is_chosen)


def gather_pairs(
    trajectory: Trajectory,
    chosen: Turn,
    num_thought_tokens: Int[np.ndarray, "B K"],
    *,
    max_reply_tokens: int,
) -> Pairs:
    """Prompts and thoughts of the chosen turns, equal prompts merged.

    Args:
      trajectory: the episodes, on the host.
      chosen: sample of their turns.
      num_thought_tokens: length of each turn's thought, with which its reply begins.
      max_reply_tokens: `R`.
    """
    row, turn, is_chosen = chosen
    start = trajectory.turns.reply_start[row, turn]
    order = np.arange(max_reply_tokens)[None]
    # A short reply may end with the row.
    source = np.minimum(start[:, None] + order, trajectory.tokens.shape[1] - 1)
    thoughts = trajectory.tokens[row[:, None], source]
    lengths = np.where(is_chosen, num_thought_tokens[row, turn], 0)
    seen, prompt_lengths = trajectory.tokens[row], start
    if trajectory.windows is not None:
        windows = trajectory.windows
        seen = windows.tokens[row, windows.of_turn[row, turn]]
        prompt_lengths = windows.reply_start[row, turn]
    prompt_lengths = np.where(is_chosen, prompt_lengths, 0)
    is_prompt = np.arange(seen.shape[1])[None] < prompt_lengths[:, None]
    seen = np.where(is_prompt, seen, -1)
    first, prompt_of = _merge(seen, is_chosen)
    return Pairs(
        prompts=seen[first],
        prompt_lengths=prompt_lengths[first],
        num_prompts=np.max(np.where(is_chosen, prompt_of + 1, 0)),
        thoughts=np.where(order < lengths[:, None], thoughts, 0),
        thought_lengths=lengths,
        prompt_of=prompt_of,
        num_pairs=np.sum(is_chosen, dtype=np.int32),
    )


def _choose(
    draws: Float[np.ndarray, "M n"], allowed: Bool[np.ndarray, "M n"]
) -> Int[np.ndarray, " M"]:
    """Index of an allowed entry of each row, uniformly; 0 if the row has none."""
    return np.argmax(np.where(allowed, draws, -1.0), axis=1)


def _merge(
    texts: Int[np.ndarray, "M C"], counts: Bool[np.ndarray, " M"]
) -> tuple[Int[np.ndarray, " M"], Int[np.ndarray, " M"]]:
    """Index of the first occurrence of each different text, and each text's number.

    Padding of `texts` is a token that no text has; `counts` is true for texts, which
    come before padding.
    """
    numbers: dict[bytes, int] = {}
    firsts, number_of = [], np.zeros(len(texts), np.int32)
    for i in np.flatnonzero(counts):
        text = texts[i].tobytes()
        if text not in numbers:
            numbers[text] = len(numbers)
            firsts.append(i)
        number_of[i] = numbers[text]
    others = np.setdiff1d(np.arange(len(texts)), firsts)
    return np.concatenate([np.array(firsts, int), others]), number_of
