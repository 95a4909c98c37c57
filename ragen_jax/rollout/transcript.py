"""A trajectory in the making: tokens are appended where each row ends.

In: spans of tokens, of messages or of replies. Out: the token arrays of a `Trajectory`,
with the loss mask recorded at the moment of appending. Knows no environments and no
models.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from ragen_jax.types import Reply, TokenSpan, Turns

Turn = int | Int[Array, ""]


@struct.dataclass
class Transcript:
    """The token arrays of `Trajectory`, filled up to `lengths`."""

    tokens: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    loss_mask: Bool[Array, "B T"]
    turn_index: Int[Array, "B T"]
    log_probs: Float[Array, "B T"]


def empty_transcript(num_rows: int, max_tokens: int) -> Transcript:
    """Rows without tokens and room for `max_tokens` (`T`) each."""
    shape = (num_rows, max_tokens)
    return Transcript(
        tokens=jnp.zeros(shape, jnp.int32),
        lengths=jnp.zeros(num_rows, jnp.int32),
        loss_mask=jnp.zeros(shape, bool),
        turn_index=jnp.full(shape, -1, jnp.int32),
        log_probs=jnp.zeros(shape, jnp.float32),
    )


def append_message(transcript: Transcript, span: TokenSpan, turn: Turn) -> Transcript:
    """Append a message (outside the loss); rows of length 0 stay as they are.

    Every row that gets tokens must have room for the whole width of the span.
    """
    return _append(
        transcript, span, jnp.zeros(span.tokens.shape, jnp.float32), False, turn
    )


def append_reply(transcript: Transcript, reply: Reply, turn: Turn) -> Transcript:
    """Append a sampled reply (inside the loss); rows of length 0 stay as they are.

    Every row that gets tokens must have room for the whole width of the reply.
    """
    span = TokenSpan(tokens=reply.tokens, length=reply.length)
    return _append(transcript, span, reply.log_probs, True, turn)


def empty_turns(num_rows: int, num_turns: int, num_actions: int) -> Turns:
    """Records of turns that were not played: 0, False and -1."""
    shape = (num_rows, num_turns)

    def zeros(dtype):
        return jnp.zeros(shape, dtype)

    return Turns(
        played=zeros(bool),
        reward=zeros(jnp.float32),
        penalty=zeros(jnp.float32),
        bonus=zeros(jnp.float32),
        reply_start=zeros(jnp.int32),
        reply_length=zeros(jnp.int32),
        reply_is_cut=zeros(bool),
        has_format=zeros(bool),
        num_listed=zeros(jnp.int32),
        num_valid=zeros(jnp.int32),
        num_executed=zeros(jnp.int32),
        num_effective=zeros(jnp.int32),
        actions=jnp.full((*shape, num_actions), -1, jnp.int32),
        actions_left=zeros(jnp.int32),
        state_hash=jnp.zeros((*shape, 2), jnp.uint32),
    )


def record_turn(turns: Turns, turn: Turn, record: Turns) -> Turns:
    """Enter one turn (`record` without the turn axis) for the rows that played it."""

    def enter(column, new):
        played = jnp.expand_dims(record.played, tuple(range(1, new.ndim)))
        return column.at[:, turn].set(jnp.where(played, new, column[:, turn]))

    return jax.tree.map(enter, turns, record)


def _append(
    transcript: Transcript,
    span: TokenSpan,
    log_probs: Float[Array, "B O"],
    is_sampled: bool,
    turn: Turn,
) -> Transcript:
    # Rows of length 0 may be too full for the span: they rewrite their beginning.
    starts = jnp.where(span.length > 0, transcript.lengths, 0)

    def write(column, new):
        new = jnp.broadcast_to(jnp.asarray(new, column.dtype), span.tokens.shape)
        return write_rows(column, new, span.length, starts)

    return Transcript(
        tokens=write(transcript.tokens, span.tokens),
        lengths=transcript.lengths + span.length,
        loss_mask=write(transcript.loss_mask, is_sampled),
        turn_index=write(transcript.turn_index, turn),
        log_probs=write(transcript.log_probs, log_probs),
    )


def write_rows(
    column: Shaped[Array, "B T"],
    new: Shaped[Array, "B O"],
    lengths: Int[Array, " B"],
    starts: Int[Array, " B"],
) -> Shaped[Array, "B T"]:
    """Put the first `lengths` entries of each row of `new` at `starts` of its column.

    `starts` leave room for the whole width of `new`; the rest stays as it is.
    """
    width = new.shape[1]
    is_new = jnp.arange(width)[None, :] < lengths[:, None]

    def write_row(column, new, is_new, start):
        # Static shapes: the whole width is written, with old values after the span.
        old = jax.lax.dynamic_slice(column, (start,), (width,))
        return jax.lax.dynamic_update_slice(
            column, jnp.where(is_new, new, old), (start,)
        )

    return jax.vmap(write_row)(column, new, is_new, starts)
