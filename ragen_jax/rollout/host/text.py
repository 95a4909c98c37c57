"""An array environment in chat messages: for models behind an API, and for servers.

In: an environment and a wording. Out: episodes that `host.play_turns` advances, and
replies in text are read as the compiled rollout reads them.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from envs.base import EnvParams, TextEnvironment
from ragen_jax.rollout.collect import start_from
from ragen_jax.rollout.keys import RolloutKeys, fold_turn
from ragen_jax.rollout.turns import (
    EpisodeLimits,
    ParsedReply,
    Play,
    RolloutContext,
    message_fields,
    run_turn,
    to_trajectory,
)
from ragen_jax.text.messages import (
    DialogueTurn,
    Message,
    chat_messages,
    parse_text,
    strip_prefix,
)
from ragen_jax.text.prompts import Wording
from ragen_jax.types import EnvState, Trajectory


@dataclasses.dataclass(frozen=True)
class ChatReply:
    """A reply of a model behind an API. Counts are None where none is reported.

    Attributes:
      text: content of the assistant's message.
      finish_reason: as reported: "stop", "length", ...
      prompt_tokens, cached_tokens, reply_tokens: tokens read, those of them read from a
        cache, and tokens written.
      model: name of the model, as reported.
    """

    text: str
    finish_reason: str
    prompt_tokens: int | None
    cached_tokens: int | None
    reply_tokens: int | None
    model: str

    @property
    def is_cut(self) -> bool:
        """The length limit ended the reply."""
        return self.finish_reason == "length"


@dataclasses.dataclass(frozen=True)
class Chat:
    """A dialogue in chat messages.

    Attributes:
      wording: of the messages.
      context: entry of `text.context.CONTEXTS`.
      num_past: earlier turns that a prompt shows, at most.
      thinking: a reply is a thought and an answer; False: an answer alone.
    """

    wording: Wording
    context: str
    num_past: int
    thinking: bool


class ChatGame:
    """An array environment in chat messages, one row at a time.

    Args:
      env, env_params, rules: the environment and the rules of an episode; there is no
        bonus, since its terms are read from tokens.
      chat: the dialogue.
    """

    def __init__(
        self,
        env: TextEnvironment,
        env_params: EnvParams,
        rules: EpisodeLimits,
        chat: Chat,
    ):
        self.env, self.rules, self.chat = env, rules, chat
        context = RolloutContext(env, env_params, None, None, rules)

        def reset(keys: RolloutKeys) -> EnvState:
            draw = functools.partial(env.reset_split, split=keys.split)
            return jax.vmap(draw, (0, None))(keys.level, env_params)

        self._reset = jax.jit(reset)
        self.start = jax.jit(lambda states: start_from(context, states))
        self.fields = jax.jit(lambda play, turn: message_fields(context, play, turn))
        self.finish = jax.jit(
            lambda play, states, keys: to_trajectory(context, play, states, keys)
        )

        @jax.jit
        def step(play: Play, turn: Array, answer: ParsedReply, keys: Key[Array, " 1"]):
            return run_turn(context, play, turn, answer, fold_turn(keys, turn))

        self.step = step

    def levels(self, keys: RolloutKeys) -> EnvState:
        """First states of the levels of a rollout, rows leading, on the host."""
        return jax.device_get(self._reset(keys))

    def states(self, levels: EnvState) -> EnvState:
        """First states of levels."""
        return levels

    def episode(self, level: EnvState, noise_key: Key[Array, ""]) -> "ChatEpisode":
        """An episode before its first turn."""
        return ChatEpisode(self, level, noise_key)


@dataclasses.dataclass(frozen=True)
class ChatTurn:
    """The texts of a turn.

    Attributes:
      messages: sent for the reply.
      shown: the turn as later prompts show it.
      reply: as it came.
    """

    messages: Sequence[Message]
    shown: DialogueTurn
    reply: ChatReply


class ChatEpisode:
    """An episode of a `ChatGame`; `HostEpisodes` of one row, whose replies are text.

    Attributes:
      turns: the texts of the turns so far.
    """

    def __init__(self, game: ChatGame, level: EnvState, noise_key: Key[Array, ""]):
        self._game, self._keys = game, noise_key[None]
        self.max_turns = game.rules.budget.max_turns
        self._level = jax.tree.map(lambda x: x[None], level)
        self._play = game.start(self._level)
        self.turns: list[ChatTurn] = []
        self._next: tuple[list[Message], DialogueTurn]

    async def begin(self) -> None:
        """Wait for the game to begin, before the first prompt."""

    async def take(self, reply: ChatReply) -> ChatReply:
        """Wait for the game's answer to a reply, before `step`."""
        return reply

    def _fields(self, turn: int) -> Mapping[str, Any]:
        """Fields of the turn's message."""
        return _only_row(self._game.fields(self._play, jnp.int32(turn)))

    def prompt(self, turn: int) -> list[Message]:
        """The messages that ask for the turn's reply."""
        chat = self._game.chat
        asked = DialogueTurn(self._fields(turn))
        shown = [turn.shown for turn in self.turns]
        messages = chat_messages(
            chat.wording, [*shown, asked], context=chat.context, num_past=chat.num_past
        )
        self._next = (messages, asked)
        return messages

    def step(self, turn: int, reply: ChatReply) -> bool:
        game, (messages, asked) = self._game, self._next
        text = strip_prefix(reply.text, game.chat.wording.reply_prefix)
        parsed = parse_text(
            text,
            game.env.action_vocabulary,
            max_actions=game.rules.budget.max_actions_per_turn,
            thinking=game.chat.thinking,
            answer_bytes=game.env.answer_bytes,
        )
        is_cut = jnp.array([reply.is_cut])
        answer = ParsedReply(
            parsed=jax.tree.map(lambda x: jnp.asarray(x)[None], parsed),
            length=jnp.array([reply.reply_tokens or 0], jnp.int32),
            is_cut=is_cut,
            lacks_end=is_cut,
            bonus=jnp.zeros(1),
        )
        self._play = game.step(self._play, jnp.int32(turn), answer, self._keys)
        shown = dataclasses.replace(
            asked, reply=text, result=_only_row(self._play.feedback)
        )
        self.turns.append(ChatTurn(messages, shown, reply))
        return bool(self._play.is_active[0])

    def trajectory(self) -> Trajectory:
        """Turns and outcome; there are no tokens (`T` is 0)."""
        return self._game.finish(self._play, self._level, self._keys)


def _only_row(arrays: dict[str, Array]) -> dict[str, np.ndarray]:
    """The arrays of a single row, on the host."""
    return jax.tree.map(lambda x: x[0], jax.device_get(arrays))
