"""Thoughts: which tokens of a reply are its reasoning.

In: the ids of one reply, which follows a forced `<think>`. Out: how many of its leading
tokens are the thought. The thought ends where the first `</think>` begins, however the
tokenizer splits that; a token that holds a part of the tag is no part of the thought.
Without a closing tag there is no thought, nor where it is white space alone.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from ragen_jax.text import bits, byte_search, byte_tables
from ragen_jax.text.answers import THINK_END, AnswerParser


def count_thought(
    parser: AnswerParser, tokens: Int[Array, " R"], length: Int[Array, ""]
) -> Int[Array, ""]:
    """Tokens of the thought of one reply, 0 where there is none; `vmap` it over rows.

    Args:
      parser: the game's; of its tables of bytes.
      tokens: ids, as sampled.
      length: how many of them count.
    """
    table, lengths = parser.token_bytes, parser.token_lengths
    text = byte_tables.join(table, lengths, tokens, length, tail=len(THINK_END))
    num_bytes = text.shape[0] - len(THINK_END)
    tags = bits.pack(byte_search.find(text, THINK_END, num_bytes))
    has_end, tag = jnp.any(tags != 0), bits.first(tags)
    is_known = (tokens >= 0) & (tokens < lengths.shape[0] - 1)
    sizes = jnp.where(is_known, lengths.at[tokens].get(mode="clip"), 0)
    ends = jnp.cumsum(sizes)
    is_thought = (ends <= tag) & (jnp.arange(tokens.shape[0]) < length)
    num_tokens = jnp.sum(is_thought)
    end = jnp.sum(jnp.where(is_thought, sizes, 0))
    is_said = ~byte_search.is_white(text) & (jnp.arange(text.shape[0]) < end)
    return jnp.where(has_end & jnp.any(is_said), num_tokens, 0)
