"""One turn of play: message, reply, actions, feedback.

In: episodes in progress and a reply per row. Out: the episodes after the turn, with a
record of it. Jittable; the compiled rollout (`collect.py`) and the host loop
(`host/loop.py`) call the same functions. A turn takes the game's `Outcome` from a
`GameStep`: an array environment here, or the answers of worker processes.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from envs.base import EnvParams, PlayBudget, TextGame
from envs.hashing import hash_arrays
from ragen_jax.rollout.actions import Outcome, run_answer
from ragen_jax.rollout.context import (
    ContextWindow,
    record_prompt,
    record_reply,
    render_window,
)
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
from ragen_jax.types import (
    EnvState,
    ParsedAnswer,
    Reply,
    TokenSpan,
    Trajectory,
    Turns,
)

Carry = Any  # a responder's state, rows leading
# `(states, parsed, num_allowed) -> (states after, Outcome)`: runs what the replies
# listed, at most `num_allowed` actions of each; every array has `B` leading rows.
GameStep = Callable[..., tuple[EnvState, Outcome]]
# `(game's parameters, fact reader, states, reply, parsed) -> Float[B]`, with numbers
# that can be replaced: see `rollout/bonuses.py`.
Bonus = Callable[..., Float[Array, " B"]]


class Responder(NamedTuple):
    """A player, as pure functions. Every array has `B` leading rows.

    Attributes:
      init: `(num_rows) -> carry`, before the first message.
      observe: `(carry, span, starts, is_active, slots) -> carry`: read a span that
        begins at token `starts` of each row's carry, in place of any tokens from there
        on. No row ever exceeds `slots - 1` tokens (a Python int, never less than
        before); from the first span on the carry keeps its shapes where `slots` does.
      reply: `(carry, starts, states, keys, turn, is_active) -> (carry, Reply)`: reply
        from token `starts` on, in the game state `states`, with the turn's keys.
        Inactive rows get a reply of length 0. `turn` may be traced.
    """

    init: Callable[[int], Carry]
    observe: Callable[..., Carry]
    reply: Callable[..., tuple[Carry, Reply]]


@struct.dataclass
class Play:
    """Episodes in progress.

    Attributes:
      num_read: tokens in the responder's carry, its replies included.
      feedback: fields of the next message that describe the last turn.
      window: the recent turns that prompts show; None where the responder keeps the
        whole dialogue.
    """

    states: EnvState
    carry: Carry
    num_read: Int[Array, " B"]
    transcript: Transcript
    turns: Turns
    actions_left: Int[Array, " B"]
    is_active: Bool[Array, " B"]
    feedback: dict[str, Int[Array, " B"]]
    window: ContextWindow | None


@struct.dataclass
class ParsedReply:
    """Replies as the game sees them.

    Attributes:
      parsed: actions listed by the reply.
      length: tokens of the reply.
      is_cut: the length limit ended the reply.
      lacks_end: the reply has no end-of-turn token.
      reply: its tokens, for a bonus; None: it is text, and no bonus is paid.
    """

    parsed: ParsedAnswer
    length: Int[Array, " B"]
    is_cut: Bool[Array, " B"]
    lacks_end: Bool[Array, " B"]
    reply: Reply | None = None


@struct.dataclass
class Sending:
    """What every active row is about to read.

    Attributes:
      message: of the turn, for the transcript.
      prompt: that the responder reads, the message in it.
    """

    message: TokenSpan
    prompt: TokenSpan


@dataclasses.dataclass(frozen=True)
class EpisodeLimits:
    """Rules of an episode.

    Attributes:
      budget: turns and actions allowed.
      max_reply_tokens: tokens of a reply (`R`), the stop token included.
      format_penalty: paid once per turn for an invalid answer (<= 0).
      bonus: reward of a turn for the form of its reply; None: no bonus.
      stop_at_answer: `</answer>` ends a reply, like a stop token.
    """

    budget: PlayBudget
    max_reply_tokens: int
    format_penalty: float = 0.0
    bonus: Bonus | None = None
    stop_at_answer: bool = False


class RolloutContext(NamedTuple):
    """Everything about a rollout that does not change from turn to turn.

    `dialogue` and `responder` are None where replies are text (`host/text.ChatGame`).
    """

    env: TextGame
    env_params: EnvParams
    dialogue: Dialogue | None
    responder: Responder | None
    rules: EpisodeLimits


def open_episodes(context: RolloutContext, play: Play, slots: int) -> Play:
    """Send the first message, before the reply of turn 0. `slots`: see `Responder`."""
    return send(context, play, write_opening(context, play), 0, slots)


def continue_episodes(
    context: RolloutContext, play: Play, turn: Turn, slots: int
) -> Play:
    """Send the message before the reply of a later turn to every active row.

    `slots`: see `Responder`.
    """
    return send(context, play, write_following(context, play, turn), turn, slots)


def write_opening(context: RolloutContext, play: Play) -> Sending:
    """The first message, which is the first prompt, too."""
    fields = message_fields(context, play, 0)
    message = _message(context.dialogue.opening, play, fields)
    return Sending(message, message)


def write_following(context: RolloutContext, play: Play, turn: Turn) -> Sending:
    """The message and the prompt before the reply of a later turn."""
    fields = message_fields(context, play, turn)
    message = _message(context.dialogue.following, play, fields | play.feedback)
    # Without windows the responder holds the dialogue: only the message is new.
    if play.window is None:
        return Sending(message, message)
    prompt = render_window(play.window, context.dialogue.windows, fields)
    return Sending(message, _to_active(prompt, play))


def prompt_starts(play: Play) -> Int[Array, " B"]:
    """Tokens that the responder keeps before the next prompt: none before a window."""
    # A window is a prompt from its first token on, and overwrites the one before it.
    return play.num_read if play.window is None else jnp.zeros_like(play.num_read)


def send(
    context: RolloutContext, play: Play, sending: Sending, turn: Turn, slots: int
) -> Play:
    """Record a message, and have the responder read the prompt that contains it."""
    carry = context.responder.observe(
        play.carry, sending.prompt, prompt_starts(play), play.is_active, slots
    )
    return record_message(play.replace(carry=carry), sending, turn)


def record_message(play: Play, sending: Sending, turn: Turn) -> Play:
    """The episodes with a message that the responder has read."""
    prompt, window = sending.prompt, play.window
    if window is not None:
        window = record_prompt(window, prompt, turn)
    return play.replace(
        num_read=prompt_starts(play) + prompt.length,
        transcript=append_message(play.transcript, sending.message, turn),
        window=window,
    )


def get_reply(
    context: RolloutContext, play: Play, turn: Turn, keys: Key[Array, " B"]
) -> tuple[Play, Reply]:
    """The reply of every active row. `keys`: the turn's sampling keys."""
    # The states are for demonstrators, who answer from the game and not from its text.
    carry, reply = context.responder.reply(
        play.carry, play.num_read, play.states, keys, turn, play.is_active
    )
    return play.replace(carry=carry), reply


def step_env(context: RolloutContext, keys: Key[Array, " B"]) -> GameStep:
    """Steps of the array environment. `keys`: the turn's noise keys."""
    run = functools.partial(run_answer, context.env, context.env_params)

    def step(states, parsed, num_allowed):
        return jax.vmap(run)(states, keys, parsed, num_allowed)

    return step


def act(
    context: RolloutContext, play: Play, turn: Turn, reply: Reply, step: GameStep
) -> Play:
    """Parse the replies, run their actions by `step` and record the turn."""
    # From the sampled ids: no reply is decoded to text and tokenized again.
    parsed = jax.vmap(context.dialogue.parser.parse)(reply.tokens, reply.length)
    last_tokens = jnp.take_along_axis(
        reply.tokens, jnp.maximum(reply.length - 1, 0)[:, None], axis=1
    )[:, 0]
    answer = ParsedReply(
        parsed=parsed,
        length=reply.length,
        is_cut=reply.is_cut,
        # Cut by the limit, or ended with another stop token or with `</answer>`.
        lacks_end=last_tokens != context.dialogue.stop_token,
        reply=reply,
    )
    # Before the reply is appended: the record reads off where the reply starts.
    after = run_turn(context, play, turn, answer, step)
    window = play.window
    if window is not None:
        fields = message_fields(context, play, turn) | after.feedback
        dialogue = context.dialogue
        stopped = (reply.length > 0) & jnp.isin(last_tokens, dialogue.stop_tokens)
        window = record_reply(window, dialogue.windows, fields, reply, turn, stopped)
    return after.replace(
        num_read=play.num_read + reply.length,
        transcript=append_reply(play.transcript, reply, turn),
        window=window,
    )


def run_turn(
    context: RolloutContext,
    play: Play,
    turn: Turn,
    answer: ParsedReply,
    step: GameStep,
) -> Play:
    """The game's part of a turn: run the actions of the answers and record the turn.

    Reads the game and the rules of `context`; tokens for a bonus only.
    """
    parsed = answer.parsed
    # A row that has ended runs nothing, and keeps its state.
    num_allowed = jnp.where(play.is_active, play.actions_left, 0)
    states, outcome = step(play.states, parsed, num_allowed)
    penalty = context.rules.format_penalty
    record = Turns(
        played=play.is_active,
        reward=outcome.reward,
        # Once per turn, for any number of unknown names.
        penalty=jnp.where(outcome.lacks_action | outcome.has_unknown, penalty, 0.0),
        bonus=_bonus(context, (play.states, states), answer),
        reply_start=play.transcript.lengths,
        reply_length=answer.length,
        reply_is_cut=answer.is_cut,
        has_format=parsed.has_format,
        num_listed=parsed.num_listed,
        num_valid=outcome.num_valid,
        num_executed=outcome.num_executed,
        num_effective=outcome.num_effective,
        actions=outcome.actions,
        actions_left=play.actions_left,
        # The fields before the actions ran: GiGPO finds equal states by them.
        state_hash=jax.vmap(hash_arrays)(_game_fields(context, play)),
    )
    actions_left = play.actions_left - outcome.num_executed
    # The number of turns is not checked: the callers' loops end with the last one.
    is_over = outcome.terminated | outcome.truncated | (actions_left == 0)
    return play.replace(
        states=states,
        turns=record_turn(play.turns, turn, record),
        actions_left=actions_left,
        is_active=play.is_active & ~is_over,
        feedback=_turn_feedback(outcome, answer.lacks_end),
    )


def to_trajectory(
    context: RolloutContext, play: Play, initial_state: EnvState, keys: Key[Array, " B"]
) -> Trajectory:
    """The trajectory of finished episodes. `keys`: noise keys of the episodes."""
    env, env_params, transcript = context.env, context.env_params, play.transcript
    terminated = jax.vmap(env.is_terminated, (0, None))(play.states, env_params)
    return Trajectory(
        tokens=transcript.tokens,
        lengths=transcript.lengths,
        loss_mask=transcript.loss_mask,
        turn_index=transcript.turn_index,
        sample_log_probs=transcript.log_probs,
        turns=play.turns,
        terminated=terminated,
        # What the game did not end was ended by a budget.
        truncated=~terminated,
        success=jax.vmap(env.is_success, (0, None))(play.states, env_params),
        initial_state=initial_state,
        windows=play.window and play.window.windows,
        noise_key=jax.random.key_data(keys),
    )


def _bonus(
    context: RolloutContext, states: tuple[EnvState, EnvState], answer: ParsedReply
) -> Float[Array, " B"]:
    """Rewards for how replies are written; `states` are those before and after."""
    if context.rules.bonus is None or answer.reply is None:
        return jnp.zeros(answer.length.shape)
    written = context.dialogue.facts, states, answer.reply, answer.parsed
    return context.rules.bonus(context.env_params, *written)


def _game_fields(context: RolloutContext, play: Play) -> dict[str, Array]:
    return jax.vmap(context.env.text_fields, (0, None))(play.states, context.env_params)


def message_fields(context: RolloutContext, play: Play, turn: Turn) -> dict[str, Array]:
    """Fields of the turn's message, feedback on the last turn excepted."""
    return _game_fields(context, play) | {
        "turn": jnp.full_like(play.actions_left, turn + 1),
        "actions_left": play.actions_left,
    }


def _turn_feedback(outcome: Outcome, lacks_end: Bool[Array, " B"]) -> dict[str, Array]:
    # Messages write rewards in exact hundredths, with a fixed number of digits.
    hundredths = jnp.round(outcome.reward * 100).astype(jnp.int32)
    return {
        "reward_hundredths": jnp.clip(
            hundredths, -MAX_REWARD_HUNDREDTHS, MAX_REWARD_HUNDREDTHS
        ),
        "was_invalid": outcome.lacks_action.astype(jnp.int32),
        "was_cut": lacks_end.astype(jnp.int32),
    }


def _message(
    template: DeviceTemplate, play: Play, fields: dict[str, Array]
) -> TokenSpan:
    return _to_active(jax.vmap(template.tokens)(fields), play)


def _to_active(span: TokenSpan, play: Play) -> TokenSpan:
    return span.replace(length=jnp.where(play.is_active, span.length, 0))
