"""One turn of every row: say the message, get the reply, act on it.

In: episodes in progress. Out: the same, one turn further. Who replies is a `Responder`;
what a turn does is the same for all of them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, Key

from envs.base import EnvParams, TextEnvironment
from ragen_jax.rollout.acting import run_actions, valid_actions
from ragen_jax.rollout.trajectory import (
    Transcript,
    append_message,
    append_reply,
    record_turn,
)
from ragen_jax.text.device_text import DeviceTemplate
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.prompts import MAX_REWARD_HUNDREDTHS
from ragen_jax.types import EnvState, Reply, Turns

Carry = Any  # a responder's own memory, rows leading


class Responder(NamedTuple):
    """Whoever answers, as pure functions. Every array has `B` leading rows.

    Attributes:
      init: `(num_rows) -> carry`, before anything was read.
      observe: `(carry, span, starts, is_active, slots) -> carry`: read a message that
        begins at token `starts` of each row. After the first message the carry keeps
        its shapes; no row ever exceeds `slots - 1` tokens (a Python int).
      reply: `(carry, starts, states, keys, turn, is_active) -> (carry, Reply)`: answer,
        beginning at token `starts`, in the game state `states`, with the turn's keys.
        Rows that are not active get a reply of length 0. `turn` may be traced.
    """

    init: Callable[[int], Carry]
    observe: Callable[..., Carry]
    reply: Callable[..., tuple[Carry, Reply]]


@struct.dataclass
class Play:
    """Episodes in progress.

    Attributes:
      last: the last turn as the next message tells it (fields of `following`).
    """

    states: EnvState
    carry: Carry
    transcript: Transcript
    turns: Turns
    actions_left: Int[Array, " B"]
    is_active: Bool[Array, " B"]
    last: dict[str, Int[Array, " B"]]


class Table(NamedTuple):
    """What stays the same all through the episodes."""

    env: TextEnvironment
    env_params: EnvParams
    dialogue: Dialogue
    responder: Responder
    format_penalty: float


def observe(table: Table, play: Play, turn: int, slots: int) -> Play:
    """Say the message of a turn known in advance: the opening, or a following one."""
    is_first = turn == 0
    template = table.dialogue.opening if is_first else table.dialogue.following
    return tell(table, template, play, turn, slots)


def tell(
    table: Table,
    template: DeviceTemplate,
    play: Play,
    turn: int | Int[Array, ""],
    slots: int,
) -> Play:
    """Say a message to every active row, before its reply of `turn` (from 0).

    `slots` is the responder's (see `Responder.observe`).
    """
    env = table.env
    fields = jax.vmap(env.text_fields, (0, None))(play.states, table.env_params)
    numbers = {
        "turn": jnp.full_like(play.actions_left, turn + 1),
        "actions_left": play.actions_left,
    }
    span = jax.vmap(template.tokens)(fields | numbers | play.last)
    span = span.replace(length=jnp.where(play.is_active, span.length, 0))
    starts = play.transcript.lengths
    carry = table.responder.observe(play.carry, span, starts, play.is_active, slots)
    transcript = append_message(play.transcript, span, turn)
    return play.replace(carry=carry, transcript=transcript)


def answer(
    table: Table,
    play: Play,
    turn: int | Int[Array, ""],
    *,
    sample_keys: Key[Array, " B"],
    noise_keys: Key[Array, " B"],
) -> Play:
    """Let every active row reply, and act on what it says. Keys are the turn's."""
    env, env_params = table.env, table.env_params
    starts = play.transcript.lengths
    carry, reply = table.responder.reply(
        play.carry, starts, play.states, sample_keys, turn, play.is_active
    )
    parsed = jax.vmap(table.dialogue.parser.parse)(reply.tokens, reply.length)
    names = jax.vmap(env.action_names, (0, None))(play.states, env_params)
    actions, num_valid, has_unknown = jax.vmap(valid_actions)(names, parsed)
    num_allowed = jnp.where(
        play.is_active, jnp.minimum(num_valid, play.actions_left), 0
    )
    run = functools.partial(run_actions, env, env_params)
    states, outcome = jax.vmap(run)(play.states, noise_keys, actions, num_allowed)
    was_invalid = num_valid == 0
    record = Turns(
        played=play.is_active,
        reward=outcome.reward,
        penalty=jnp.where(was_invalid | has_unknown, table.format_penalty, 0.0),
        reply_start=starts,
        reply_length=reply.length,
        reply_is_cut=reply.is_cut,
        has_format=parsed.has_format,
        num_listed=parsed.num_listed,
        num_valid=num_valid,
        num_executed=outcome.num_executed,
        num_effective=outcome.num_effective,
        actions=outcome.actions,
        actions_left=play.actions_left,
    )
    actions_left = play.actions_left - outcome.num_executed
    is_over = outcome.terminated | outcome.truncated | (actions_left == 0)
    # Replies that the limit cut, or that ended with another stop token.
    last_tokens = jnp.take_along_axis(
        reply.tokens, jnp.maximum(reply.length - 1, 0)[:, None], axis=1
    )[:, 0]
    hundredths = jnp.round(outcome.reward * 100).astype(jnp.int32)
    return Play(
        states=states,
        carry=carry,
        transcript=append_reply(play.transcript, reply, turn),
        turns=record_turn(play.turns, turn, record),
        actions_left=actions_left,
        is_active=play.is_active & ~is_over,
        last={
            "reward_hundredths": jnp.clip(
                hundredths, -MAX_REWARD_HUNDREDTHS, MAX_REWARD_HUNDREDTHS
            ),
            "was_invalid": was_invalid.astype(jnp.int32),
            "was_cut": (last_tokens != table.dialogue.stop_token).astype(jnp.int32),
        },
    )
