"""Repetition in a batch of replies.

In: arrays of tokens. Out: two shares between 0 and 1, over all replies of the batch. A
collapsing policy gives the same reply to every prompt: the share of distinct n-grams
(arXiv 1510.03055) falls, and one whole reply becomes common. Both are counted by
sorting, exactly, but for collisions of a 64-bit hash in the second.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

# Two odd multipliers, for two independent hashes of a reply.
_BASES = (0x9E3779B1, 0x85EBCA77)


def distinct_ngrams(
    tokens: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    turn_index: Int[Array, "B T"],
    size: int,
) -> Float[Array, ""]:
    """Number of different n-grams over number of n-grams; 0 where there are none.

    An n-gram is `size` sampled tokens in a row of the same reply, the stop token
    included. More replies, or longer ones, have a smaller share: compare batches of one
    size.

    Args:
      tokens: of the dialogues.
      mask: sampled tokens.
      turn_index: turn of each token.
      size: tokens of an n-gram.
    """
    count = tokens.shape[1] - size + 1

    def shifted(x: Array, by: int) -> Array:
        return x[:, by : by + count].reshape(-1)

    turn = shifted(turn_index, 0)
    is_ngram = jnp.ones(turn.shape, bool)
    for i in range(size):
        is_ngram &= shifted(mask, i)
        is_ngram &= shifted(turn_index, i) == turn
    words = [shifted(tokens, i) for i in range(size)]
    is_first = _is_first(words, is_ngram)[0]
    num_first, num_ngrams = jnp.sum(is_first), jnp.maximum(jnp.sum(is_ngram), 1)
    return num_first.astype(jnp.float32) / num_ngrams.astype(jnp.float32)


def top_reply_share(
    tokens: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    turn_index: Int[Array, "B T"],
    played: Bool[Array, "B K"],
    reply_start: Int[Array, "B K"],
) -> Float[Array, ""]:
    """Share of the replies that are equal, token by token, to the most frequent one.

    Turns that were not played have no reply; 0 where no turn was played.

    Args:
      tokens, mask, turn_index: see `distinct_ngrams`.
      played: turns that have a reply.
      reply_start: index of each reply's first token.
    """
    hashes = _reply_hashes(tokens, mask, turn_index, reply_start)
    played = played.reshape(-1)
    is_first, is_reply = _is_first(hashes, played)
    which = jnp.cumsum(is_first) - 1
    sizes = jax.ops.segment_sum(
        is_reply.astype(jnp.int32), which, num_segments=played.shape[0]
    )
    most = jnp.max(sizes).astype(jnp.float32)
    return most / jnp.maximum(jnp.sum(played), 1).astype(jnp.float32)


def _is_first(
    words: list[Int[Array, " n"]], is_item: Bool[Array, " n"]
) -> tuple[Bool[Array, " n"], Bool[Array, " n"]]:
    """Sort items of several words; True at the first of equal items, and at items.

    Entries that are not items come last.
    """
    is_none, *words = jax.lax.sort((~is_item, *words), num_keys=1 + len(words))
    differs = jnp.zeros(is_none.shape, bool).at[0].set(True)
    for word in words:
        differs |= jnp.concatenate([differs[:1], word[1:] != word[:-1]])
    return differs & ~is_none, ~is_none


def _reply_hashes(
    tokens: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    turn_index: Int[Array, "B T"],
    reply_start: Int[Array, "B K"],
) -> list[UInt32[Array, " B*K"]]:
    """Two words per row and turn, of the reply's tokens in their order.

    Polynomials in `_BASES`, modulo 2**32; lengths count, as no token adds 0.
    """
    num_rows, num_turns = reply_start.shape
    turn = jnp.clip(turn_index, 0, num_turns - 1)
    start = jnp.take_along_axis(reply_start, turn, axis=1)
    length = tokens.shape[1]
    place = jnp.clip(jnp.arange(length)[None] - start, 0, length - 1)
    reply = jnp.arange(num_rows)[:, None] * num_turns + turn
    hashes = []
    for base in _BASES:
        powers = jnp.cumprod(jnp.full(length, base, jnp.uint32), dtype=jnp.uint32)
        # Plus 1, or a reply that begins with token 0 would equal the rest of it.
        terms = (tokens.astype(jnp.uint32) + 1) * powers[place]
        terms = jnp.where(mask, terms, jnp.uint32(0))
        hashes.append(
            jax.ops.segment_sum(
                terms.reshape(-1), reply.reshape(-1), num_segments=num_rows * num_turns
            )
        )
    return hashes
