"""The turn loop of the host: for models behind an API, people, and checks of rollouts.

In: episodes that advance turn by turn (`HostEpisodes`), and a function that replies.
Out: a `Trajectory`, like that of the compiled rollout. The loop knows neither
environments nor tokens. Episodes of an `ArrayGame` run the functions of the compiled
rollout one turn at a time, on tokens; those of a `ChatGame` show an array environment
in chat messages and read replies in text.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from envs.base import EnvParams, TextEnvironment
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.collect import (
    RolloutKeys,
    check_dialogue,
    fold_turn,
    make_responder,
    spread_levels,
    start_episodes,
    start_from,
)
from ragen_jax.rollout.layout import RowLayout
from ragen_jax.rollout.turns import (
    Answer,
    Play,
    PlayRules,
    Responder,
    RolloutContext,
    act,
    continue_episodes,
    get_reply,
    message_fields,
    open_episodes,
    run_turn,
    to_trajectory,
)
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.messages import (
    DialogueTurn,
    Message,
    chat_messages,
    parse_text,
    strip_prefix,
)
from ragen_jax.text.prompts import Wording
from ragen_jax.types import EnvState, Params, Reply, Trajectory


class HostEpisodes(Protocol):
    """Episodes of one or more rows, one turn at a time.

    Attributes:
      max_turns: of an episode.
    """

    max_turns: int

    def prompt(self, turn: int) -> Any:
        """The input of a turn's reply: arrays, or chat messages."""

    def step(self, turn: int, reply: Any) -> bool:
        """Apply the replies of a turn; False once every row has ended."""

    def trajectory(self) -> Trajectory:
        """The episodes, after the last turn."""


async def play_turns(
    game: HostEpisodes, reply: Callable[[int, Any], Awaitable[Any]]
) -> Trajectory:
    """Play a game to its end.

    Args:
      game: before its first turn.
      reply: `(turn, prompt) -> reply`, turns from 0, in the form that `game` takes.
    """
    for turn in range(game.max_turns):
        answer = await reply(turn, game.prompt(turn))
        if not game.step(turn, answer):
            break
    return game.trajectory()


class ArrayGame:
    """An array environment on tokens, compiled one turn at a time.

    Args:
      env, env_params, rules: the environment and the rules of an episode.
      make_responder: `(params, dialogue) -> Responder`.
      compile: compiles a function of `(params, dialogue, turn, *rows)`; the default is
        for a single device.
    """

    def __init__(
        self,
        env: TextEnvironment,
        env_params: EnvParams,
        rules: PlayRules,
        make_responder: Callable[[Params, Dialogue], Responder],
        compile: Callable[[Callable], Callable] = jax.jit,
    ):
        def context(params: Params, dialogue: Dialogue) -> RolloutContext:
            responder = make_responder(params, dialogue)
            return RolloutContext(env, env_params, dialogue, responder, rules)

        def start(params, dialogue, turn, keys) -> Play:
            return start_episodes(context(params, dialogue), keys)

        def open_(params, dialogue, turn, play) -> Play:
            slots = dialogue.max_window_tokens + 1
            return open_episodes(context(params, dialogue), play, slots)

        def follow(params, dialogue, turn, play) -> Play:
            slots = dialogue.max_window_tokens + 1
            return continue_episodes(context(params, dialogue), play, turn, slots)

        def reply(params, dialogue, turn, play, keys) -> tuple[Play, Reply]:
            sample_keys = fold_turn(keys.sample, turn)
            return get_reply(context(params, dialogue), play, turn, sample_keys)

        def act_(params, dialogue, turn, play, reply, keys) -> Play:
            noise_keys = fold_turn(keys.noise, turn)
            return act(context(params, dialogue), play, turn, reply, noise_keys)

        def finish(params, dialogue, turn, play, initial_state, keys) -> Trajectory:
            return to_trajectory(
                context(params, dialogue), play, initial_state, keys.noise
            )

        self.max_turns = rules.budget.max_turns
        self.start, self.open, self.follow = map(compile, (start, open_, follow))
        self.reply, self.act, self.finish = map(compile, (reply, act_, finish))

    def episodes(
        self, params: Params, dialogue: Dialogue, keys: RolloutKeys
    ) -> "ArrayEpisodes":
        """Episodes before their first turn; `keys`: one level key per row."""
        return ArrayEpisodes(self, params, dialogue, keys)


def make_array_game(
    env: TextEnvironment,
    env_params: EnvParams,
    policy: Policy,
    layout: RowLayout,
    rules: PlayRules,
    **decoding: float | None,
) -> ArrayGame:
    """A game whose rows are laid out over devices; arguments as of `make_collect`."""
    return ArrayGame(
        env,
        env_params,
        rules,
        make_responder(policy, rules, layout, **decoding),
        compile=lambda function: jax.jit(layout.over_rows(function, num_whole=3)),
    )


class ArrayEpisodes:
    """Episodes of an `ArrayGame`; `HostEpisodes` whose replies are `(Play, Reply)`."""

    def __init__(
        self, game: ArrayGame, params: Params, dialogue: Dialogue, keys: RolloutKeys
    ):
        self._game, self._fixed, self._keys = game, (params, dialogue), keys
        self.max_turns = game.max_turns
        self.play: Play = game.start(*self._fixed, jnp.int32(0), keys)
        self._initial_state = self.play.states

    def prompt(self, turn: int) -> Play:
        """The episodes after the turn's message, which the responder has read."""
        send = self._game.follow if turn else self._game.open
        self.play = send(*self._fixed, jnp.int32(turn), self.play)
        return self.play

    async def reply(self, turn: int, play: Play) -> tuple[Play, Reply]:
        """The responder's reply to a prompt."""
        return self._game.reply(*self._fixed, jnp.int32(turn), play, self._keys)

    def step(self, turn: int, reply: tuple[Play, Reply]) -> bool:
        rows = (*reply, self._keys)
        self.play = self._game.act(*self._fixed, jnp.int32(turn), *rows)
        return bool(jnp.any(self.play.is_active))

    def trajectory(self) -> Trajectory:
        rows = (self.play, self._initial_state, self._keys)
        return self._game.finish(*self._fixed, jnp.int32(0), *rows)


def make_host_collect(
    env: TextEnvironment,
    env_params: EnvParams,
    policy: Policy,
    *,
    mesh: Mesh,
    num_groups: int,
    group_size: int,
    rules: PlayRules,
    **decoding: float | None,
) -> Callable[[Params, Dialogue, RolloutKeys], Trajectory]:
    """The rollouts of `make_collect` by the turn loop of the host, with equal results.

    Every part of a turn is compiled once. Between the parts the host holds the
    episodes, which games in Python need.
    """
    layout = RowLayout(mesh, num_groups, group_size)
    game = make_array_game(env, env_params, policy, layout, rules, **decoding)

    def collect(params: Params, dialogue: Dialogue, keys: RolloutKeys) -> Trajectory:
        check_dialogue(dialogue, rules)
        episodes = game.episodes(params, dialogue, spread_levels(keys, group_size))
        return asyncio.run(play_turns(episodes, episodes.reply))

    return collect


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
        self, env: TextEnvironment, env_params: EnvParams, rules: PlayRules, chat: Chat
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
        def step(play: Play, turn: Array, answer: Answer, keys: Key[Array, " 1"]):
            return run_turn(context, play, turn, answer, fold_turn(keys, turn))

        self.step = step

    def levels(self, keys: RolloutKeys) -> EnvState:
        """First states of the levels of a rollout, rows leading, on the host."""
        return jax.device_get(self._reset(keys))

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

    def prompt(self, turn: int) -> list[Message]:
        """The messages that ask for the turn's reply."""
        chat = self._game.chat
        fields = _only_row(self._game.fields(self._play, jnp.int32(turn)))
        asked = DialogueTurn(fields)
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
        answer = Answer(
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
