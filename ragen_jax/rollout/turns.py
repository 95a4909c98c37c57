"""One turn of play: observation in, reply, actions, feedback out.

In: the state of an episode and the policy's reply. Out: the next state and a record of
the turn. Jittable and written for one row; the compiled rollout and the host loop both
call it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from envs.base import EnvParams, PlayBudget, TextEnvironment
from envs.hashing import hash_arrays
from ragen_jax.rollout.actions import Outcome, run_actions, valid_actions
from ragen_jax.rollout.context import Memory, note_prompt, note_reply, recall
from ragen_jax.rollout.transcript import (
    Transcript,
    Turn,
    append_message,
    append_reply,
    record_turn,
)
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.prompts import MAX_REWARD_HUNDREDTHS
from ragen_jax.text.token_templates import DeviceTemplate
from ragen_jax.types import EnvState, ParsedAnswer, Reply, TokenSpan, Turns

Carry = Any  # a responder's own memory, rows leading
# `(fact reader, states, reply, parsed) -> Float[B]`: see `rollout/bonuses.py`.
Bonus = Callable[..., Float[Array, " B"]]


class Responder(NamedTuple):
    """Whoever answers, as pure functions. Every array has `B` leading rows.

    Attributes:
      init: `(num_rows) -> carry`, before anything was read.
      observe: `(carry, span, starts, is_active, slots) -> carry`: read a span that
        begins at token `starts` of each row's memory; what the row held from there on
        is forgotten. After the first span the carry keeps its shapes; no row ever
        exceeds `slots - 1` tokens (a Python int).
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
      num_read: tokens in the responder's memory, its own replies included.
      last: the last turn as the next message tells it (fields of `following`).
      memory: what windows are made of; None where the responder reads every message and
        forgets none.
    """

    states: EnvState
    carry: Carry
    num_read: Int[Array, " B"]
    transcript: Transcript
    turns: Turns
    actions_left: Int[Array, " B"]
    is_active: Bool[Array, " B"]
    last: dict[str, Int[Array, " B"]]
    memory: Memory | None


@dataclasses.dataclass(frozen=True)
class PlayRules:
    """Rules of an episode.

    Attributes:
      budget: turns and actions allowed.
      max_reply_tokens: tokens of a reply (`R`), the stop token included.
      format_penalty: paid once per turn for an invalid answer (<= 0).
      bonus: reward of a turn for the form of its reply; None: no bonus.
    """

    budget: PlayBudget
    max_reply_tokens: int
    format_penalty: float = 0.0
    bonus: Bonus | None = None


class RolloutContext(NamedTuple):
    """Everything about a rollout that does not change from turn to turn."""

    env: TextEnvironment
    env_params: EnvParams
    dialogue: Dialogue
    responder: Responder
    rules: PlayRules


def tell_opening(context: RolloutContext, play: Play, slots: int) -> Play:
    """Say the first message, before the reply of turn 0. `slots`: see `Responder`."""
    message = _say(context.dialogue.opening, play, _fields(context, play, 0))
    return _read(context, play, message, message, 0, slots)


def tell_following(context: RolloutContext, play: Play, turn: Turn, slots: int) -> Play:
    """Say the message before the reply of a later turn to every active row.

    `slots`: see `Responder`.
    """
    fields = _fields(context, play, turn)
    message = _say(context.dialogue.following, play, fields | play.last)
    if play.memory is None:
        return _read(context, play, message, message, turn, slots)
    window = _to_active(recall(play.memory, context.dialogue.windows, fields), play)
    play = play.replace(num_read=jnp.zeros_like(play.num_read))
    return _read(context, play, message, window, turn, slots)


def _read(
    context: RolloutContext,
    play: Play,
    message: TokenSpan,
    prompt: TokenSpan,
    turn: Turn,
    slots,
) -> Play:
    """Record a message; let the responder read the prompt that stands for it."""
    carry = context.responder.observe(
        play.carry, prompt, play.num_read, play.is_active, slots
    )
    memory = play.memory
    if memory is not None:
        memory = note_prompt(memory, prompt, turn)
    return play.replace(
        carry=carry,
        num_read=play.num_read + prompt.length,
        transcript=append_message(play.transcript, message, turn),
        memory=memory,
    )


def answer(
    context: RolloutContext,
    play: Play,
    turn: Turn,
    *,
    sample_keys: Key[Array, " B"],
    noise_keys: Key[Array, " B"],
) -> Play:
    """Let every active row reply, and act on what it says. Keys are the turn's."""
    env, env_params = context.env, context.env_params
    carry, reply = context.responder.reply(
        play.carry, play.num_read, play.states, sample_keys, turn, play.is_active
    )
    parsed = jax.vmap(context.dialogue.parser.parse)(reply.tokens, reply.length)
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
        penalty=jnp.where(was_invalid | has_unknown, context.rules.format_penalty, 0.0),
        bonus=_bonus(context, play, reply, parsed),
        reply_start=play.transcript.lengths,
        reply_length=reply.length,
        reply_is_cut=reply.is_cut,
        has_format=parsed.has_format,
        num_listed=parsed.num_listed,
        num_valid=num_valid,
        num_executed=outcome.num_executed,
        num_effective=outcome.num_effective,
        actions=outcome.actions,
        actions_left=play.actions_left,
        state_hash=jax.vmap(hash_arrays)(_game_fields(context, play)),
    )
    actions_left = play.actions_left - outcome.num_executed
    is_over = outcome.terminated | outcome.truncated | (actions_left == 0)
    last = _turn_feedback(context, reply, outcome, was_invalid)
    memory = play.memory
    if memory is not None:
        fields = _fields(context, play, turn) | last
        memory = note_reply(memory, context.dialogue.windows, fields, reply, turn)
    return Play(
        states=states,
        carry=carry,
        num_read=play.num_read + reply.length,
        transcript=append_reply(play.transcript, reply, turn),
        turns=record_turn(play.turns, turn, record),
        actions_left=actions_left,
        is_active=play.is_active & ~is_over,
        last=last,
        memory=memory,
    )


def _bonus(
    context: RolloutContext, play: Play, reply: Reply, parsed: ParsedAnswer
) -> Float[Array, " B"]:
    """What the replies earn by how they are written."""
    if context.rules.bonus is None:
        return jnp.zeros(reply.length.shape)
    return context.rules.bonus(context.dialogue.facts, play.states, reply, parsed)


def _game_fields(context: RolloutContext, play: Play) -> dict[str, Array]:
    """What the game shows now."""
    return jax.vmap(context.env.text_fields, (0, None))(play.states, context.env_params)


def _fields(context: RolloutContext, play: Play, turn: Turn) -> dict[str, Array]:
    """What a message tells of its own turn."""
    return _game_fields(context, play) | {
        "turn": jnp.full_like(play.actions_left, turn + 1),
        "actions_left": play.actions_left,
    }


def _turn_feedback(
    context: RolloutContext,
    reply: Reply,
    outcome: Outcome,
    was_invalid: Bool[Array, " B"],
) -> dict[str, Array]:
    """What is told of a turn that was played."""
    # Replies that the limit cut, or that ended with another stop token.
    last_tokens = jnp.take_along_axis(
        reply.tokens, jnp.maximum(reply.length - 1, 0)[:, None], axis=1
    )[:, 0]
    hundredths = jnp.round(outcome.reward * 100).astype(jnp.int32)
    return {
        "reward_hundredths": jnp.clip(
            hundredths, -MAX_REWARD_HUNDREDTHS, MAX_REWARD_HUNDREDTHS
        ),
        "was_invalid": was_invalid.astype(jnp.int32),
        "was_cut": (last_tokens != context.dialogue.stop_token).astype(jnp.int32),
    }


def _say(template: DeviceTemplate, play: Play, fields: dict[str, Array]) -> TokenSpan:
    """A message to every active row."""
    return _to_active(jax.vmap(template.tokens)(fields), play)


def _to_active(span: TokenSpan, play: Play) -> TokenSpan:
    """Nothing to the rows that have finished."""
    return span.replace(length=jnp.where(play.is_active, span.length, 0))
