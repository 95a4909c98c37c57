"""Samples of pairs (X, Z) of a prompt and a thought, with equal prompts merged.

In: episodes, and the length of each turn's thought. Out: `Pairs`. X is everything that
the model read before the thought, up to and including the opening tag; Z is the thought
without either tag. Prompts are equal if all their tokens are.

RAGEN draws two samples: of first turns, whose prompt is that of the whole group; and of
any turns, an episode first and then one of its turns.

Axis letters besides those of `ragen_jax/types.py`: `M` pairs, `P` prompts, `C` tokens
of a prompt.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, Key

from ragen_jax.types import Trajectory


class Turn(NamedTuple):
    """A sample of turns: row and turn of each; the chosen ones come first."""

    row: Int[Array, " M"]
    turn: Int[Array, " M"]
    is_chosen: Bool[Array, " M"]


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

    prompts: Int[Array, "P C"]
    prompt_lengths: Int[Array, " P"]
    num_prompts: Int[Array, ""]
    thoughts: Int[Array, "M R"]
    thought_lengths: Int[Array, " M"]
    prompt_of: Int[Array, " M"]
    num_pairs: Int[Array, ""]


def first_turns(
    key: Key[Array, ""],
    is_valid: Bool[Array, "B K"],
    *,
    num_samples: int,
    group_size: int,
) -> Turn:
    """Sample of first turns without replacement, even over the groups.

    Args:
      key: of the sample.
      is_valid: turns that have a thought.
      num_samples: size of the sample, at most.
      group_size: `N`; rows of a group are adjacent.
    """
    num_rows = is_valid.shape[0]
    rank_key, tie_key = jax.random.split(key)
    is_valid = is_valid[:, 0]
    draws = jnp.where(is_valid, jax.random.uniform(rank_key, (num_rows,)), jnp.inf)
    by_group = draws.reshape(-1, group_size)
    rank_in_group = jnp.argsort(jnp.argsort(by_group, axis=1), axis=1).reshape(-1)
    ties = jax.random.uniform(tie_key, (num_rows,))
    order = jnp.lexsort((ties, rank_in_group, ~is_valid))[:num_samples]
    return Turn(order, jnp.zeros_like(order), is_valid[order])


def any_turns(
    key: Key[Array, ""], is_valid: Bool[Array, "B K"], *, num_samples: int
) -> Turn:
    """Sample of turns with a thought: of episodes with replacement, then of turns.

    Its size is the number of turns with a thought, at most `num_samples`.
    """
    row_key, turn_key = jax.random.split(key)
    num_samples = min(num_samples, is_valid.size)
    row = _draw(row_key, jnp.any(is_valid, axis=1)[None].repeat(num_samples, 0))
    turn = _draw(turn_key, is_valid[row])
    is_chosen = jnp.arange(num_samples) < jnp.sum(is_valid)
    return Turn(row, turn, is_chosen)


def gather_pairs(
    trajectory: Trajectory,
    chosen: Turn,
    num_thought_tokens: Int[Array, "B K"],
    *,
    max_reply_tokens: int,
) -> Pairs:
    """Prompts and thoughts of the chosen turns, equal prompts merged.

    Args:
      trajectory: the episodes.
      chosen: sample of their turns.
      num_thought_tokens: length of each turn's thought, with which its reply begins.
      max_reply_tokens: `R`.
    """
    row, turn, is_chosen = chosen
    start = trajectory.turns.reply_start[row, turn]
    order = jnp.arange(max_reply_tokens)[None]
    source = start[:, None] + order
    thoughts = trajectory.tokens.at[row[:, None], source].get(mode="clip")
    lengths = jnp.where(is_chosen, num_thought_tokens[row, turn], 0)
    seen, prompt_lengths = trajectory.tokens[row], start
    if trajectory.windows is not None:
        seen = trajectory.windows.tokens[row, turn]
        prompt_lengths = trajectory.windows.reply_start[row, turn]
    prompt_lengths = jnp.where(is_chosen, prompt_lengths, 0)
    is_prompt = jnp.arange(seen.shape[1])[None] < prompt_lengths[:, None]
    seen = jnp.where(is_prompt, seen, -1)
    first, prompt_of = _merge(seen, is_chosen)
    return Pairs(
        prompts=seen[first],
        prompt_lengths=prompt_lengths[first],
        num_prompts=jnp.max(jnp.where(is_chosen, prompt_of + 1, 0)),
        thoughts=jnp.where(order < lengths[:, None], thoughts, 0),
        thought_lengths=lengths,
        prompt_of=prompt_of,
        num_pairs=jnp.sum(is_chosen),
    )


def _draw(key: Key[Array, ""], allowed: Bool[Array, "M n"]) -> Int[Array, " M"]:
    """Index of an allowed entry of each row, uniformly; 0 if the row has none."""
    draws = jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1.0)
    return jnp.argmax(draws, axis=1)


def _merge(
    texts: Int[Array, "M C"], counts: Bool[Array, " M"]
) -> tuple[Int[Array, " M"], Int[Array, " M"]]:
    """Index of the first occurrence of each different text, and each text's number.

    Padding of `texts` is a token that no text has; `counts` is true for texts, which
    come before padding.
    """
    # Row by row: all at once would compare M * M * C numbers.
    is_equal = jax.lax.map(lambda text: jnp.all(texts == text[None], axis=1), texts)
    first_like = jnp.argmax(is_equal & counts[None], axis=1)
    is_first = counts & (first_like == jnp.arange(counts.shape[0]))
    number = jnp.cumsum(is_first) - 1
    return jnp.argsort(~is_first, stable=True), jnp.where(counts, number[first_like], 0)
