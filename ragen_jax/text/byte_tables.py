"""Byte strings as tables for the device, and long tokens made short for them.

In: the bytes of tokens and names. Out: padded `uint8` tables, and from them the bytes
of a reply. Which runs of bytes an answer's parse can never depend on is decided here;
the rules themselves are in `ragen_jax.text.answers`.
"""

import re
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, UInt8

# A token longer than this is shortened where that cannot change any parse.
LONG_TOKEN_BYTES = 16
# Longer than the inside of any literal (`im_start`).
MIN_KEPT_BYTES = 10


def tabulate(
    rows: Sequence[bytes],
) -> tuple[UInt8[Array, "X Y"], Int[Array, " X"]]:
    """Byte strings as a zero-padded uint8 table and their lengths."""
    lengths = np.array([len(row) for row in rows], np.int32)
    width = max(1, int(lengths.max()))
    table = np.frombuffer(b"".join(row.ljust(width, b"\0") for row in rows), np.uint8)
    return jnp.asarray(table.reshape(len(rows), width)), jnp.asarray(lengths)


def join(
    token_bytes: UInt8[Array, "V+1 M"],
    token_lengths: Int[Array, " V+1"],
    tokens: Int[Array, " R"],
    length: Int[Array, ""],
    *,
    tail: int,
) -> UInt8[Array, " N+tail"]:
    """The bytes of a reply, zeros behind: `N = R * M` and `tail` cells.

    Args:
      token_bytes, token_lengths: see `tabulate`; the last row is the empty token.
      tokens: ids; those outside the table count as empty.
      length: how many of them count.
      tail: cells behind the longest possible reply.
    """
    num_tokens, width = token_bytes.shape[0] - 1, token_bytes.shape[1]
    counts = jnp.arange(tokens.shape[0]) < length
    counts &= (tokens >= 0) & (tokens < num_tokens)
    tokens = jnp.where(counts, tokens, num_tokens)
    lengths = token_lengths[tokens]
    starts = jnp.cumsum(lengths) - lengths

    def write(i: Int[Array, ""], text: UInt8[Array, " X"]) -> UInt8[Array, " X"]:
        # Each token's padding is overwritten by the token after it.
        return lax.dynamic_update_slice(text, token_bytes[tokens[i]], (starts[i],))

    empty = jnp.zeros(tokens.shape[0] * width + tail, jnp.uint8)
    return lax.fori_loop(0, tokens.shape[0], write, empty)


def shorten_token(token: bytes, *, longest_name: int) -> bytes:
    """A token with the same effect on every parse, short where that can be had.

    Real vocabularies hold some tokens of up to 128 bytes (blanks, dashes), and every
    token of a reply gets as many bytes of buffer as the longest token needs. Only two
    kinds of runs inside long tokens lose their middle; neither can matter, whatever
    text is around the token. `k` bytes of a run are kept, more than any name has.

    * Runs of white space. White space is in no literal and in no separator. At the
      border of a piece it is stripped; inside a piece, `k` bytes already make the
      piece longer than any name. Between tags any amount is equal.
    * Runs without `<`, `>` and `|` that neither begin nor end with white space. No
      literal or separator can overlap such a run: it would have to span it, and `k`
      bytes are too many for that. So it is never removed nor split; between tags it
      breaks the form as before; and the piece around it is listed and longer than any
      name, as before.

    Other long tokens are returned whole: they cost memory, never exactness.
    """
    if len(token) <= LONG_TOKEN_BYTES:
        return token
    half = (max(MIN_KEPT_BYTES, longest_name + 1) + 1) // 2
    token = re.sub(rb"(\s{%d})\s+(\s{%d})" % (half, half), rb"\1\2", token)
    head = rb"([^<>|\s][^<>|]{%d})" % (half - 1)
    tail = rb"([^<>|]{%d}[^<>|\s])" % (half - 1)
    return re.sub(head + rb"[^<>|]+" + tail, rb"\1\2", token)
