"""An episode in text: prompt in, reply in, outcome out.

In: a game and a wording. Out: episodes of one row that `loop.play_turns` advances.
Replies are read as the compiled rollout reads them. Array games run on the device; each
episode of a host game has a worker process, which the next episode reuses.
"""

import asyncio
import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from envs.base import EnvParams, TextGame
from envs.pictures import draw_cells, lay_cells
from envs.templates import Grid, Template
from ragen_jax.host_games.agent.calls import TOOL_CALLS, CallRefused, ChatAnswer
from ragen_jax.host_games.agent.game import write_refusal
from ragen_jax.host_games.common.images import png_base64
from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.host_games.wrappers import CUT_MARK, cut_middle
from ragen_jax.rollout.collect import start_from
from ragen_jax.rollout.host.env import HostGameEnv, TokenOutput
from ragen_jax.rollout.host.rows import answer_in, check_failures, draw_problems
from ragen_jax.rollout.keys import RolloutKeys, fold_turn
from ragen_jax.rollout.transcript import Turn
from ragen_jax.rollout.turns import (
    EpisodeLimits,
    GameStep,
    ParsedReply,
    Play,
    RolloutContext,
    message_fields,
    run_turn,
    step_env,
    to_trajectory,
)
from ragen_jax.text.answers import ANSWER_END
from ragen_jax.text.messages import (
    DialogueTurn,
    Message,
    add_images,
    chat_messages,
    parse_text,
    strip_prefix,
)
from ragen_jax.text.prompts import Wording
from ragen_jax.types import EnvState, ParsedAnswer, Trajectory

# Pixels along a side of a board's cell: a token of Qwen2.5-VL.
_CELL = 28
# Characters of an observation for each of the tokens that it may have.
CHARS_PER_TOKEN = 4
# Finish reasons of the empty reply to a dialogue longer than the model's context, and
# to one that a filter of the API stops.
NO_ROOM = "context_length_exceeded"
FILTERED = "content_filter"


@dataclasses.dataclass(frozen=True)
class ChatReply:
    """A reply of a model behind an API. Counts that were not reported are None.

    Attributes:
      text: thought and content of the assistant's message.
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
        """A limit or a filter ended the reply, or the dialogue had no room for one."""
        return self.finish_reason in ("length", NO_ROOM, FILTERED)


@dataclasses.dataclass(frozen=True)
class Chat:
    """A dialogue in chat messages.

    Attributes:
      wording: of the messages.
      context: entry of `text.context.CONTEXTS`.
      num_past: earlier turns that a prompt shows, at most.
      thinking: a reply is a thought and an answer; False: an answer alone.
      shown: a state as its messages show it.
      drawn: the board that is sent as a picture with every message; None: none is.
    """

    wording: Wording
    context: str
    num_past: int
    thinking: bool
    shown: Template
    drawn: Grid | None = None

    def pictures(self, fields: Mapping[str, Any]) -> list[str]:
        """PNG files in base64 to send with the message of these fields."""
        if self.drawn is None:
            return []
        drawings = draw_cells(self.drawn.symbols, self.drawn.meanings, _CELL)
        pixels = np.asarray(lay_cells(jnp.asarray(fields[self.drawn.name]), drawings))
        return [png_base64(pixels)]


class TextOutcome(NamedTuple):
    """The outcome so far of an episode of one row.

    Attributes:
      fields: of the next message.
      feedback: on the last turn, fields of the next message, too.
      reward: of the last turn.
      is_active: the game is not over, and actions are left.
      terminated, success: of the game.
    """

    fields: Mapping[str, Any]
    feedback: Mapping[str, Any]
    reward: Any
    is_active: Any
    terminated: Any
    success: Any


class ChatGame:
    """An array game in text, one row at a time.

    Args:
      env, env_params, rules: the game and the rules of an episode; there is no bonus,
        since its terms are read from tokens.
      chat: the dialogue.
    """

    def __init__(
        self, env: TextGame, env_params: EnvParams, rules: EpisodeLimits, chat: Chat
    ):
        self.env, self.rules, self.chat = env, rules, chat
        context = RolloutContext(env, env_params, None, None, rules)

        @jax.jit
        def reset(keys: RolloutKeys) -> EnvState:
            draw = jax.vmap(env.draw_level, (0, None, 0))
            return draw(keys.level, env_params, keys.is_held_out)

        def look(play: Play, num_turns: Turn) -> TextOutcome:
            # Neither initial states nor keys matter for how an episode stands.
            end = to_trajectory(context, play, play.states, jax.random.key(0)[None])
            return TextOutcome(
                fields=message_fields(context, play, num_turns),
                feedback=play.feedback,
                reward=play.turns.reward[:, num_turns - 1],
                is_active=play.is_active,
                terminated=end.terminated,
                success=end.success,
            )

        @jax.jit
        def start(states: EnvState) -> tuple[Play, TextOutcome]:
            play = start_from(context, states)
            return play, look(play, jnp.int32(0))

        # One program a turn, since a server has many turns a second.
        @jax.jit
        def advance(play: Play, turn: Turn, parsed, length, is_cut, given):
            reply = ParsedReply(parsed, length, is_cut, is_cut)
            step = self._make_step(context, turn, given)
            play = run_turn(context, play, turn, reply, step)
            return play, look(play, turn + 1)

        self._reset, self.start, self.advance = reset, start, advance
        self.finish = jax.jit(
            lambda play, states, keys: to_trajectory(context, play, states, keys)
        )

    def levels(self, keys: RolloutKeys) -> Any:
        """The levels of a rollout, rows leading, on the host."""
        return jax.device_get(self._reset(keys))

    def episode(self, level: Any, noise_key: Key[Array, ""]) -> "ChatEpisode":
        """An episode of one of the `levels`, before its first turn."""
        return ChatEpisode(self, level, noise_key)

    def check(self, num_episodes: int) -> None:
        """Refuse episodes of which too many failed; those of array games cannot."""

    def _make_step(self, context: RolloutContext, turn: Turn, given: Any) -> GameStep:
        """`given`: the noise keys of the episode."""
        return step_env(context, fold_turn(given, turn))


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
      outcome: of the turns so far, on the host.
      options: of the request for the next reply, besides its messages.
      is_lost: the game has failed; any reply ends the episode.
      owns_dialogue: it may ask with a shorter one after a refusal.
    """

    options: Mapping[str, Any] = types.MappingProxyType({})
    is_lost = False
    owns_dialogue = False

    def __init__(self, game: ChatGame, level: EnvState, noise_key: Key[Array, ""]):
        self._game, self._keys = game, noise_key[None]
        self.max_turns = game.rules.budget.max_turns
        self._level = jax.tree.map(lambda x: x[None], level)
        self._play, outcome = game.start(self._level)
        self.outcome: TextOutcome = _only_row(outcome)
        self.turns: list[ChatTurn] = []
        self._next: tuple[list[Message], DialogueTurn]
        self._shown_images: list[Sequence[str]] = []

    async def begin(self) -> None:
        """Wait for the game to begin, before the first prompt."""

    def release(self) -> None:
        """Let another episode have what this one plays with; `trajectory` does so."""

    def prompt(self, turn: int) -> list[Message]:
        """The messages that ask for the turn's reply."""
        chat = self._game.chat
        asked = DialogueTurn(self._fields())
        turns = [*(turn.shown for turn in self.turns), asked]
        messages = chat_messages(
            chat.wording, turns, context=chat.context, num_past=chat.num_past
        )
        self._next = (messages, asked)
        self._shown_images.append(self._images())
        return add_images(messages, self._shown_images)

    def _images(self) -> Sequence[str]:
        return self._game.chat.pictures(self._fields())

    async def step(self, turn: int, reply: ChatReply) -> bool:
        text = self._text_of(reply)
        self.answer(
            turn,
            text,
            thinking=self._game.chat.thinking,
            is_cut=reply.is_cut,
            length=reply.reply_tokens or 0,
        )
        messages, asked = self._next
        played = dataclasses.replace(asked, reply=text, result=self.outcome.feedback)
        self.turns.append(ChatTurn(messages, played, reply))
        return bool(self.outcome.is_active)

    def answer(
        self,
        turn: int,
        text: str,
        *,
        thinking: bool,
        is_cut: bool = False,
        length: int = 0,
    ) -> None:
        """Run the actions of a reply, as in the compiled rollout; see `outcome`.

        Args:
          thinking: the reply is a thought and an answer; False: an answer alone.
          is_cut, length: see `ParsedReply`.
        """
        game, parsed = self._game, self._parsed(text, thinking)
        self._play, outcome = game.advance(
            self._play,
            np.int32(turn),
            jax.tree.map(lambda x: np.asarray(x)[None], parsed),
            np.array([length], np.int32),
            np.array([is_cut]),
            self._given(),
        )
        self.outcome = _only_row(outcome)

    def _parsed(self, text: str, thinking: bool) -> ParsedAnswer:
        game = self._game
        return parse_text(
            text,
            game.env.action_vocabulary,
            max_actions=game.rules.budget.max_actions_per_turn,
            thinking=thinking,
            answer_bytes=game.env.answer_bytes,
        )

    def trajectory(self) -> Trajectory:
        """Turns and outcome; there are no tokens (`T` is 0)."""
        return self._game.finish(self._play, self._level, self._keys)

    def _fields(self) -> Mapping[str, Any]:
        return self.outcome.fields

    def _text_of(self, reply: ChatReply) -> str:
        text = strip_prefix(reply.text, self._game.chat.wording.reply_prefix)
        if not self._game.rules.stop_at_answer:
            return text
        # What follows is neither read nor shown again, as where tokens are sampled.
        end = ANSWER_END.decode()
        before, found, _ = text.partition(end)
        return before + found

    def _given(self) -> Any:
        return self._keys


class Problems(NamedTuple):
    """Problems of a host game, rows leading.

    Attributes:
      seeds, tasks: see `draw_problems`; -1 where tasks have no numbers.
    """

    seeds: Int[np.ndarray, "*B"]
    tasks: Int[np.ndarray, "*B"]


class HostChatGame(ChatGame):
    """A host game in text, one row at a time.

    Args:
      env, env_params, rules, chat: see `ChatGame`.

    Attributes:
      failures: why games failed, one entry each; their episodes are lost.
    """

    env: HostGameEnv

    def __init__(
        self, env: HostGameEnv, env_params: EnvParams, rules: EpisodeLimits, chat: Chat
    ):
        super().__init__(env, env_params, rules, chat)
        self.failures: list[str] = []
        self._split = ""
        self._free: list[Pool] = []

    def levels(self, keys: RolloutKeys) -> Problems:
        self._split, self.failures = keys.split, []
        seeds, tasks = draw_problems(keys, self.env.num_tasks[keys.split])
        tasks = [-1 if task is None else task for task in tasks]
        return Problems(np.array(seeds), np.array(tasks))

    def episode(self, level: Problems, noise_key: Key[Array, ""]) -> "HostChatEpisode":
        return HostChatEpisode(self, level, noise_key)

    def check(self, num_episodes: int) -> None:
        """Say on standard error why games failed.

        Raises:
          GamesFailed: more did than may.
        """
        check_failures(self.failures, num_episodes, self.env.max_failed_fraction)

    def acquire_workers(self) -> Pool:
        """A process for one game, which `release_workers` takes."""
        if self._free:
            return self._free.pop()
        return Pool(self.env.spec, self._split, reads_images=True)

    def release_workers(self, rows: Pool) -> None:
        self._free.append(rows)

    def _make_step(self, context: RolloutContext, turn: Turn, given: Any) -> GameStep:
        """`given`: what the worker answered."""
        return self.env.take(context.env_params, given)


class HostChatEpisode(ChatEpisode):
    """An episode of a `HostChatGame`."""

    _game: HostChatGame

    def __init__(self, game: HostChatGame, level: Problems, noise_key: Key[Array, ""]):
        empty = game.env.draw_level(None, game.env.default_params, None)
        super().__init__(game, empty, noise_key)
        self._rows = game.acquire_workers()
        task = int(level.tasks)
        self._problem = [int(level.seeds)], [None if task < 0 else task]
        self._output = WorkerResponse()

    async def begin(self) -> None:
        (output,) = await asyncio.to_thread(self._rows.reset, *self._problem)
        self._show(output)
        states = self._play.states.replace(output=self._given())
        self._play = self._play.replace(states=states)
        self._level = states

    @property
    def is_lost(self) -> bool:
        return self._output.failure is not None

    def _images(self) -> Sequence[str]:
        return self._output.images

    async def step(self, turn: int, reply: ChatReply) -> bool:
        text = self._text_of(reply).encode("utf-8", "replace")
        answer = answer_in(text, self._game.chat.thinking)
        if answer is not None and not self.is_lost:
            outputs = await asyncio.to_thread(self._rows.step, {0: answer})
            self._show(outputs[0])
        return await super().step(turn, reply)

    def release(self) -> None:
        self._game.release_workers(self._rows)

    def trajectory(self) -> Trajectory:
        self.release()
        return super().trajectory()

    def _given(self) -> TokenOutput:
        """The last output; its text is not in tokens, but in the fields."""
        output, width = self._output, self._game.env.max_passage_tokens + 1
        return TokenOutput(
            text=jnp.zeros((1, width), jnp.int32),
            reward=jnp.array([output.reward], jnp.float32),
            valid=jnp.array([output.valid]),
            success=jnp.array([output.success]),
            terminated=jnp.array([output.terminated]),
            truncated=jnp.array([output.was_cut]),
        )

    def _show(self, output: WorkerResponse) -> None:
        if output.failure is not None:
            self._game.failures.append(output.failure)
        self._output = output

    def _fields(self) -> Mapping[str, Any]:
        max_tokens = self._game.env.max_observation_tokens
        max_chars = max(CHARS_PER_TOKEN * max_tokens, len(CUT_MARK))
        text = cut_middle(self._output.text, max_chars)
        return {**super()._fields(), "text": text}


class AgentChatGame(HostChatGame):
    """An agent's program in text: its calls are the requests."""

    def episode(self, level: Problems, noise_key: Key[Array, ""]) -> "AgentChatEpisode":
        return AgentChatEpisode(self, level, noise_key)


class AgentChatEpisode(HostChatEpisode):
    """An episode of an `AgentChatGame`."""

    owns_dialogue = True

    def prompt(self, turn: int) -> list[Message]:
        super().prompt(turn)
        asked = {} if self._output.call is None else self._output.call
        wanted = {name: asked.get(name) for name in ("tools", "max_tokens", "stop")}
        self.options = {name: value for name, value in wanted.items() if value}
        return list(asked.get("messages", ()))

    async def step(self, turn: int, reply: ChatReply) -> bool:
        if not self.is_lost:
            text = reply.text or _REFUSALS.get(reply.finish_reason, "")
            outputs = await asyncio.to_thread(self._rows.step, {0: text})
            self._show(outputs[0])
        return await ChatEpisode.step(self, turn, reply)

    def _text_of(self, reply: ChatReply) -> str:
        return reply.text

    def _parsed(self, text: str, thinking: bool) -> ParsedAnswer:
        # Whatever the reply is, the program reads it.
        return parse_text(
            "call</answer>", (), max_actions=1, thinking=False, answer_bytes=1
        )


def write_tool_calls(content: str, tool_calls: Sequence[Mapping[str, Any]]) -> str:
    """The text of a `ChatReply` that calls tools, as an agent's game reads it."""
    answer = ChatAnswer(content, tuple(tool_calls), TOOL_CALLS)
    return json.dumps(answer.to_json())


_REFUSALS = {
    code: write_refusal(CallRefused(message, code=code))
    for code, message in (
        (NO_ROOM, "the dialogue is longer than the model's context"),
        (FILTERED, "a filter refuses the dialogue"),
    )
}


def _only_row(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], jax.device_get(tree))
