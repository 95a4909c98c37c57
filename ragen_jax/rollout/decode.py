"""Reading and writing with the policy: tokens into the KV cache, tokens out of it.

In: parameters, what the model has read so far, one sampling key per row. Out: a reply
per row. Rows differ in length and finish independently; finished rows are masked, never
removed. The caller keeps the lengths, and leaves one free slot after the last token a
row may ever hold, where finished rows write.

`decode_step` is the only step that samples: the compiled rollout and the slow loop in
`tests/reference` both drive it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from ragen_jax.models.kv_cache import KVCache
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.sampling import Sampler
from ragen_jax.text.endings import TextEnd
from ragen_jax.types import Params, Reply, TokenSpan

# True if any row of the mask is set, on any of the devices that must leave a loop
# together.
AnyRow = Callable[[Bool[Array, " B"]], Bool[Array, ""]]


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How prompts are read and replies are written.

    Attributes:
      sampler: logits to tokens.
      stop_tokens: ids that end a reply; the sampled one is its last token.
      max_reply_tokens: longest reply, `R`.
      chunk_tokens: steps between two checks whether any row is still writing.
      compactions: how often, once no more than half of the rows are writing, decoding
        continues with a batch of those rows. Other batch sizes round differently.
      any_row: see `AnyRow`.
      read_chunk_tokens: tokens of a prompt that a pass reads; None: all of them.
      text_end: finds a text that ends a reply; None: stop tokens alone do.
      has_kernel: tokens attend to the cache by `models/kernels/decode.py`.
    """

    sampler: Sampler
    stop_tokens: Int[Array, " n"]
    max_reply_tokens: int
    chunk_tokens: int
    compactions: int | None = None
    any_row: AnyRow = jnp.any
    read_chunk_tokens: int | None = None
    has_kernel: bool = False
    text_end: TextEnd | None = None


@struct.dataclass
class Context:
    """State of the model after the tokens it has read.

    Attributes:
      cache: keys and values of every token so far.
      hidden: last hidden state of each row's last token: its logits choose the next.
    """

    cache: KVCache
    hidden: Float[Array, "B D"]


def read(
    policy: Policy,
    params: Params,
    context: Context,
    span: TokenSpan,
    starts: Int[Array, " B"],
    sight: Any = None,
) -> Context:
    """Append a ragged message to every row.

    Args:
      span: tokens [B, O] and lengths [B], at least one token per row that matters.
      starts: tokens each row holds already; `starts + O` slots must exist.
      sight: what `Policy.look` gave for the tokens; None: it was not asked.

    Returns:
      The context after each row's last token. What the padding writes to the cache lies
      beyond the row's length and is overwritten before anything reads it.
    """
    width = span.tokens.shape[1]
    positions = starts[:, None] + jnp.arange(width, dtype=jnp.int32)[None, :]
    with jax.named_scope("read"):
        hidden, cache = policy.forward(
            params, span.tokens, positions, context.cache, sight
        )
    # Rows that get no message have finished; their state is not read again.
    last = jnp.maximum(span.length - 1, 0)
    hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
    return Context(cache=cache, hidden=hidden)


def read_in_chunks(
    policy: Policy,
    params: Params,
    context: Context,
    span: TokenSpan,
    starts: Int[Array, " B"],
    decoding: Decoding,
    skipped: int | Int[Array, ""] = 0,
) -> Context:
    """`read` in as many passes as the longest message takes.

    The context may hold the first `skipped` tokens of the message, which every message
    is longer than; they are read again where the message is one pass.

    A pass computes scores of attention for its own tokens only, and padding costs no
    more than the rest of a chunk. Where a longer message needs the last chunk, shorter
    ones are read again in part, with the same numbers up to rounding.
    """
    chunk, width = decoding.read_chunk_tokens, span.tokens.shape[1]
    if chunk is None or chunk >= width:
        return read(policy, params, context, span, starts)
    # A pass may read a part of a picture, which is looked at as a whole.
    sight = policy.look(params, span.tokens)

    def read_chunk(carry):
        _, end, context = carry
        # The last chunk ends where the message does: it reads some tokens again.
        begin, end = jnp.minimum(end, width - chunk), end + chunk
        take = functools.partial(
            jax.lax.dynamic_slice_in_dim, start_index=begin, slice_size=chunk, axis=1
        )
        part = TokenSpan(take(span.tokens), jnp.clip(span.length - begin, 0, chunk))
        seen = jax.tree.map(take, sight)
        after = read(policy, params, context, part, starts + begin, seen)
        # Each row's last token is in one of the passes, which sets the row's state.
        is_last = (begin < span.length) & (span.length <= begin + chunk)
        hidden = jnp.where(is_last[:, None], after.hidden, context.hidden)
        return decoding.any_row(end < span.length), end, after.replace(hidden=hidden)

    first = decoding.any_row(span.length > 0), jnp.int32(skipped), context
    return jax.lax.while_loop(lambda carry: carry[0], read_chunk, first)[2]


def decode_step(
    policy: Policy,
    params: Params,
    context: Context,
    positions: Int[Array, " B"],
    keys: Key[Array, " B"],
    *,
    sampler: Sampler,
) -> tuple[Context, Int[Array, " B"], Float[Array, " B"]]:
    """Sample one token per row and read it.

    Args:
      positions: slot of the new token, that is the row's length before it.
      keys: this step's key of each row.

    Returns:
      The context with the new token in it, the token, its log-probability.
    """
    with jax.named_scope("decode"):
        # From the state of the token before; reading the new one makes the next state.
        tokens, log_probs = sampler(keys, policy.logits(params, context.hidden))
        hidden, cache = policy.forward(
            params, tokens[:, None], positions[:, None], context.cache
        )
    return Context(cache=cache, hidden=hidden[:, 0]), tokens, log_probs


@struct.dataclass
class _Writing:
    """Rows while they are written; those that `is_writing` want another token.

    Attributes:
      starts, keys: see `decode_reply`.
      context: what each row has read.
      tokens, log_probs, lengths: the replies so far.
      is_stopped: the reply has ended with a stop token, or with the text that ends it.
      end_states: of `Decoding.text_end`; None without one.
    """

    starts: Int[Array, " B"]
    keys: Key[Array, " B"]
    context: Context
    tokens: Int[Array, "B R"]
    log_probs: Float[Array, "B R"]
    lengths: Int[Array, " B"]
    is_writing: Bool[Array, " B"]
    is_stopped: Bool[Array, " B"]
    end_states: UInt8[Array, " B"] | None


def decode_reply(
    policy: Policy,
    params: Params,
    context: Context,
    starts: Int[Array, " B"],
    is_active: Bool[Array, " B"],
    keys: Key[Array, " B"],
    decoding: Decoding,
) -> tuple[Context, Reply]:
    """Write a reply per active row: until a stop token, an end text or the limit.

    Decodes in chunks of a fixed number of steps and leaves between chunks once no row
    is writing: accelerators wait for the host at every check of a loop whose length is
    not fixed.

    Args:
      starts: tokens each row holds already.
      is_active: rows that write; the others get a reply of length 0.
      keys: the turn's key of each row; token `i` is drawn with `fold_in(key, i)`.
    """
    num_rows, max_reply_tokens = starts.shape[0], decoding.max_reply_tokens
    chunk_tokens = decoding.chunk_tokens
    # Whole chunks are decoded: columns after the limit are cut off below.
    padded = -(-max_reply_tokens // chunk_tokens) * chunk_tokens
    writing = _Writing(
        starts=starts,
        keys=keys,
        context=context,
        tokens=jnp.zeros((num_rows, padded), jnp.int32),
        log_probs=jnp.zeros((num_rows, padded), jnp.float32),
        lengths=jnp.zeros(num_rows, jnp.int32),
        is_writing=is_active,
        is_stopped=jnp.zeros(num_rows, bool),
        end_states=None
        if decoding.text_end is None
        else jnp.zeros(num_rows, jnp.uint8),
    )
    step = functools.partial(decode_step, policy, params, sampler=decoding.sampler)
    writer = _Writer(step, decoding)
    writing = writer.write(jnp.int32(0), writing, decoding.compactions or 0)
    reply = Reply(
        tokens=writing.tokens[:, :max_reply_tokens],
        log_probs=writing.log_probs[:, :max_reply_tokens],
        length=writing.lengths,
        is_cut=is_active & ~writing.is_stopped,
    )
    return writing.context, reply


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Loops that continue replies.

    Every step costs what the whole batch costs, until the longest reply has ended. With
    compactions, the rows that are still writing move into a batch of half the size,
    which may halve itself again, and are put back at the end: a recursion of fixed
    depth, each level a loop compiled for its batch size.

    Attributes:
      decode: a policy's `decode_step`.
      decoding: how replies are written.
    """

    decode: Callable[..., tuple[Context, Int[Array, " B"], Float[Array, " B"]]]
    decoding: Decoding

    def write(
        self, step: Int[Array, ""], writing: _Writing, compactions: int
    ) -> _Writing:
        """Write until no row is writing."""
        fewest = writing.lengths.shape[0] // 2 if compactions else 0
        step, writing = self._write_until(fewest, step, writing)
        if not fewest:
            return writing
        # Writing rows come first; finished rows fill up the batch, masked as before.
        rows = jnp.argsort(~writing.is_writing, stable=True)[:fewest]
        some = jax.tree.map(lambda x: x[rows], writing)
        return _put_back(writing, rows, self.write(step, some, compactions - 1))

    def _write_until(
        self, fewest: int, step: Int[Array, ""], writing: _Writing
    ) -> tuple[Int[Array, ""], _Writing]:
        """Write chunks until no more than `fewest` rows are writing."""
        chunk_tokens = self.decoding.chunk_tokens

        def goes_on(writing):
            count = jnp.sum(writing.is_writing, dtype=jnp.int32)
            # All devices that exchange activations have to agree on another chunk.
            return self.decoding.any_row(count[None] > fewest)

        def write_chunk(carry):
            _, step, writing = carry
            # From 0 to a constant: the compiler knows the length, no check per step.
            writing = jax.lax.fori_loop(
                0, chunk_tokens, lambda i, w: self._token(step + i, w), writing
            )
            return goes_on(writing), step + chunk_tokens, writing

        carry = (goes_on(writing), step, writing)
        return jax.lax.while_loop(lambda carry: carry[0], write_chunk, carry)[1:]

    def _token(self, step: Int[Array, ""], writing: _Writing) -> _Writing:
        context, tokens, log_probs = self.decode(
            writing.context,
            writing.starts + writing.lengths,
            # By position: chunks and compactions do not change a row's draws.
            jax.vmap(jax.random.fold_in, (0, None))(writing.keys, step),
        )
        is_stop = jnp.any(tokens[:, None] == self.decoding.stop_tokens[None, :], axis=1)
        writing = writing.replace(context=context)
        if self.decoding.text_end is not None:
            states, is_end = self.decoding.text_end.advance(writing.end_states, tokens)
            writing, is_stop = writing.replace(end_states=states), is_stop | is_end
        limit = self.decoding.max_reply_tokens
        return _record(writing, step, tokens, log_probs, is_stop, limit)


def _put_back(writing: _Writing, rows: Int[Array, " n"], some: _Writing) -> _Writing:
    """The batch, updated with rows that were continued in a smaller one."""
    # Written back as they were: nothing changes them.
    fixed = {"starts": writing.starts, "keys": writing.keys}
    blank = dict.fromkeys(fixed)
    written = jax.tree.map(
        lambda x, y: x.at[rows].set(y), writing.replace(**blank), some.replace(**blank)
    )
    return written.replace(**fixed)


def _record(
    writing: _Writing,
    column: Int[Array, ""],
    tokens: Int[Array, " B"],
    log_probs: Float[Array, " B"],
    is_stop: Bool[Array, " B"],
    max_reply_tokens: int,
) -> _Writing:
    is_writing = writing.is_writing
    # Finished rows are decoded too; their samples are discarded.
    is_stop = is_stop & is_writing
    lengths = writing.lengths + is_writing.astype(jnp.int32)
    return writing.replace(
        tokens=writing.tokens.at[:, column].set(jnp.where(is_writing, tokens, 0)),
        log_probs=writing.log_probs.at[:, column].set(
            jnp.where(is_writing, log_probs, 0.0)
        ),
        lengths=lengths,
        is_writing=is_writing & ~is_stop & (lengths < max_reply_tokens),
        is_stopped=writing.is_stopped | is_stop,
    )
