"""A game played in text, one row at a time, on the host.

In: a game, its wording, the level and noise keys of a row. Out: the record of an
episode, in the form of `ragen_jax.rollout.records`. Who replies is asked for replies
in text; levels, noise, what a reply does and what is paid are those of the rollouts on
the device, by the same functions.
"""

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from envs.base import EnvParams, PlayBudget, TextEnvironment
from ragen_jax.rollout.actions import run_actions, valid_actions
from ragen_jax.rollout.collect import RolloutKeys
from ragen_jax.rollout.records import board_of, legend_of
from ragen_jax.text import chat
from ragen_jax.text.context import count_past
from ragen_jax.text.messages import (
    Message,
    ToldTurn,
    chat_messages,
    in_markup,
    parse_text,
    strip_prefix,
)
from ragen_jax.text.prompts import MAX_REWARD_HUNDREDTHS, Wording, cut_messages
from ragen_jax.types import EnvState, ParsedAnswer


@dataclasses.dataclass(frozen=True)
class ChatReply:
    """An answer. Counts are None where the endpoint reports none.

    Attributes:
      text: what the assistant said.
      finish_reason: as the endpoint gives it: "stop", "length", ...
      prompt_tokens, cached_tokens, reply_tokens: what was read, how much of it from a
        cache, and what was written.
      model: who answered, by the endpoint's own account.
    """

    text: str
    finish_reason: str
    prompt_tokens: int | None
    cached_tokens: int | None
    reply_tokens: int | None
    model: str


# What ends a reply that was not cut.
_LENGTH = "length"
# `(turn, messages) -> reply`, turns from 0.
Ask = Callable[[int, Sequence[Message]], Awaitable[ChatReply]]


class TextGame:
    """A game and the dialogue it is played in.

    Args:
      name: what metrics and records call it.
      env, params, budget: the game and how much of it is played.
      wording: what is said.
      context, context_turns: how much of the dialogue is shown before a reply.
      thinking: a reply is a thought and an answer; False: an answer alone.
      format_penalty: paid once per turn for an invalid answer.
    """

    def __init__(
        self,
        name: str,
        env: TextEnvironment,
        params: EnvParams,
        budget: PlayBudget,
        wording: Wording,
        *,
        context: str,
        context_turns: int | None,
        thinking: bool,
        format_penalty: float,
    ):
        self.name, self.env, self.params, self.budget = name, env, params, budget
        self._wording, self._prompts = wording, cut_messages(wording)
        self._context, self._thinking = context, thinking
        self._num_past = count_past(context, context_turns, budget.max_turns)
        self._format_penalty = format_penalty
        self._reset = jax.jit(
            lambda keys: jax.vmap(lambda k: env.reset_split(k, params, keys.split))(
                keys.level
            )
        )
        self._show = jax.jit(lambda state: env.text_fields(state, params))
        self._act = jax.jit(functools.partial(_act, env, params))

    def levels(self, keys: RolloutKeys) -> EnvState:
        """First states of the levels of a rollout, rows leading, on the host."""
        return jax.device_get(self._reset(keys))

    async def play(
        self, state: EnvState, noise_key: Key[Array, ""], ask: Ask
    ) -> dict[str, Any]:
        """One episode, from a level to its last turn; its record."""
        told: list[ToldTurn] = []
        turns: list[dict[str, Any]] = []
        actions_left, is_over = self.budget.max_actions_per_episode, False
        while not is_over and len(turns) < self.budget.max_turns:
            turn = len(turns)
            fields = jax.device_get(self._show(state))
            fields |= {"turn": turn + 1, "actions_left": actions_left}
            told.append(ToldTurn(fields))
            messages = chat_messages(
                self._wording, told, context=self._context, num_past=self._num_past
            )
            answered = await ask(turn, messages)
            reply = strip_prefix(answered.text, self._wording.reply_prefix)
            key = jax.random.fold_in(noise_key, turn)
            state, record = self._take(state, key, actions_left, reply, answered)
            is_cut, observation = record["is_cut"], self._observation(told)
            record = {
                "turn": turn + 1,
                "observation": observation,
                **self._window(messages),
                **board_of(self._prompts, turn, observation),
                "reply": reply if is_cut else reply + chat.END,
                **record,
                "actions_left": actions_left,
            }
            actions_left -= len(record["actions"])
            is_over = record.pop("is_over") or actions_left == 0
            turns.append(record)
            told[-1] = ToldTurn(fields, reply, _result(record))
        return self._episode(state, turns)

    def _take(
        self,
        state: EnvState,
        key: Key[Array, ""],
        actions_left: int,
        reply: str,
        answered: ChatReply,
    ) -> tuple[EnvState, dict[str, Any]]:
        """What a reply does."""
        parsed = parse_text(
            reply,
            self.env.action_vocabulary,
            max_actions=self.budget.max_actions_per_turn,
            thinking=self._thinking,
        )
        # Done one row at a time: the budget is the rollout's `actions_left`.
        done = jax.device_get(self._act(state, key, parsed, np.int32(actions_left)))
        state, outcome, num_valid, has_unknown = done
        is_punished = num_valid == 0 or has_unknown
        return state, {
            "actions": outcome.actions[: outcome.num_executed].tolist(),
            "reward": float(outcome.reward),
            "penalty": float(np.float32(self._format_penalty if is_punished else 0.0)),
            "bonus": 0.0,
            "listed": int(parsed.num_listed),
            "valid": int(num_valid),
            "effective": int(outcome.num_effective),
            "has_format": bool(parsed.has_format),
            "is_cut": answered.finish_reason == _LENGTH,
            "reply_tokens": answered.reply_tokens,
            "log_prob": None,
            "finish_reason": answered.finish_reason,
            "prompt_tokens": answered.prompt_tokens,
            "cached_tokens": answered.cached_tokens,
            "is_over": bool(outcome.terminated | outcome.truncated),
        }

    def _observation(self, told: Sequence[ToldTurn]) -> str:
        """What was said since the last reply, in markup."""
        fields = told[-1].fields
        if len(told) == 1:
            return self._prompts.opening.render(fields)
        return self._prompts.following.render(fields | told[-2].result)

    def _window(self, messages: Sequence[Message]) -> dict[str, str]:
        if self._context == "full":
            return {}
        return {"window": in_markup(messages, self._wording.reply_prefix)}

    def _episode(self, state: EnvState, turns: list[dict[str, Any]]) -> dict[str, Any]:
        terminated = bool(self.env.is_terminated(state, self.params))
        read, written = turns[-1]["prompt_tokens"], turns[-1]["reply_tokens"]
        legend = legend_of(self._prompts)
        return {
            "success": bool(self.env.is_success(state, self.params)),
            "terminated": terminated,
            "truncated": not terminated,
            "return": _sum(turns, "reward"),
            "penalty": _sum(turns, "penalty"),
            "bonus": 0.0,
            "tokens": None if None in (read, written) else read + written,
            "sampled_tokens": total_of(turns, "reply_tokens"),
            "prompt_tokens": total_of(turns, "prompt_tokens"),
            "cached_tokens": total_of(turns, "cached_tokens"),
            "turns": turns,
            **({"legend": legend} if legend else {}),
        }


def _act(
    env: TextEnvironment, params: EnvParams, state, key, parsed: ParsedAnswer, left
):
    """A turn's actions, as in `ragen_jax.rollout.turns.answer`."""
    names = env.action_names(state, params)
    actions, num_valid, has_unknown = valid_actions(names, parsed)
    num_allowed = jnp.minimum(num_valid, left)
    state, outcome = run_actions(env, params, state, key, actions, num_allowed)
    return state, outcome, num_valid, has_unknown


def _result(record: Mapping[str, Any]) -> dict[str, int]:
    """What is told of a turn afterwards, as in `ragen_jax.rollout.turns`."""
    hundredths = int(np.round(np.float32(record["reward"]) * np.float32(100)))
    bound = MAX_REWARD_HUNDREDTHS
    return {
        "reward_hundredths": min(max(hundredths, -bound), bound),
        "was_invalid": int(record["valid"] == 0),
        "was_cut": int(record["is_cut"]),
    }


def _sum(turns: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(np.sum([turn[name] for turn in turns], dtype=np.float32))


def total_of(records: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """A count in all; None where one is not known."""
    counts = [record[name] for record in records]
    return None if None in counts else sum(counts)
