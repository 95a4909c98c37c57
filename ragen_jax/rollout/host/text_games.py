"""A game in Python in chat messages: for models behind an API.

In: a `World` and a wording. Out: episodes that `host.play_turns` advances; each has a
worker process, which the next one takes over, while it is played.
"""

import asyncio
import dataclasses
import weakref
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, Key

from envs.base import EnvParams
from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.host_games.wrappers import CUT_MARK, cut_middle
from ragen_jax.rollout.host.env import World, WorldState
from ragen_jax.rollout.host.games import answer_in, check_failures, draw_problems
from ragen_jax.rollout.host.text import Chat, ChatEpisode, ChatGame, ChatReply
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.text.messages import Message, add_images, strip_prefix

# Characters of an observation for each of the tokens that it may have.
CHARS_PER_TOKEN = 4


@struct.dataclass
class WorldLevels:
    """Problems to play, rows leading.

    Attributes:
      states: empty ones, see `World.reset_env`.
      seeds, tasks: see `draw_problems`; a task of -1 is none.
    """

    states: WorldState
    seeds: Int[Array, " B"]
    tasks: Int[Array, " B"]


class WorldChatGame(ChatGame):
    """A game in Python in chat messages, one row at a time.

    Args:
      world, params, rules, chat: see `ChatGame`.

    Attributes:
      failures: why games failed, one entry each; their episodes are lost.
    """

    def __init__(
        self, world: World, params: EnvParams, rules: EpisodeLimits, chat: Chat
    ):
        super().__init__(world, params, rules, chat)
        self.failures: list[str] = []
        self._split = ""
        self._free: list[Pool] = []

    def levels(self, keys: RolloutKeys) -> WorldLevels:
        """Problems of a rollout, rows leading, on the host."""
        self._split, self.failures = keys.split, []
        seeds, tasks = draw_problems(keys, self.env.num_tasks[keys.split])
        tasks = [-1 if task is None else task for task in tasks]
        states = super().levels(keys)
        return WorldLevels(states, np.array(seeds), np.array(tasks))

    def states(self, levels: WorldLevels) -> WorldState:
        return levels.states

    def episode(
        self, level: WorldLevels, noise_key: Key[Array, ""]
    ) -> "WorldChatEpisode":
        return WorldChatEpisode(self, level, noise_key)

    def acquire_workers(self) -> Pool:
        """A process for one game, which `release_workers` takes."""
        if self._free:
            return self._free.pop()
        pool = Pool(dataclasses.replace(self.env.spec, num_workers=1), self._split, 1)
        weakref.finalize(self, pool.close)
        return pool

    def release_workers(self, pool: Pool) -> None:
        self._free.append(pool)


class WorldChatEpisode(ChatEpisode):
    """An episode of a `WorldChatGame`."""

    def __init__(
        self, game: WorldChatGame, level: WorldLevels, noise_key: Key[Array, ""]
    ):
        super().__init__(game, level.states, noise_key)
        self._pool = game.acquire_workers()
        task = int(level.tasks)
        self._problem = [int(level.seeds)], [None if task < 0 else task]
        self._text, self._has_failed = "", False
        self._images: tuple[str, ...] = ()
        self._shown_images: list[Sequence[str]] = []

    async def begin(self) -> None:
        (answer,) = await asyncio.to_thread(self._pool.reset, *self._problem)
        self._show(answer)
        states = self._play.states
        self._play = self._play.replace(states=states.replace(now=states.following))
        self._level = self._play.states

    async def take(self, reply: ChatReply) -> ChatReply:
        game = self._game
        text = strip_prefix(reply.text, game.chat.wording.reply_prefix)
        said = answer_in(text.encode("utf-8", "replace"), game.chat.thinking)
        if said is not None and not self._has_failed:
            answers = await asyncio.to_thread(self._pool.step, {0: said})
            self._show(answers[0])
        return reply

    def prompt(self, turn: int) -> list[Message]:
        self._shown_images.append(self._images)
        return add_images(super().prompt(turn), self._shown_images)

    def trajectory(self):
        self._game.release_workers(self._pool)
        return super().trajectory()

    def _fields(self, turn: int) -> Mapping[str, object]:
        return {**super()._fields(turn), "text": self._text}

    def _show(self, answer: WorkerResponse) -> None:
        """Put an answer where the turn takes it from, and its text into messages."""
        self._has_failed = answer.failure is not None
        if self._has_failed:
            self._game.failures.append(answer.failure)
        max_tokens = self._game.env.max_observation_tokens
        max_chars = max(CHARS_PER_TOKEN * max_tokens, len(CUT_MARK))
        self._text = cut_middle(answer.text, max_chars)
        self._images = answer.images
        states = self._play.states
        values = {
            "reward": answer.reward,
            "valid": bool(answer.info.get("valid", True)),
            "success": bool(answer.info.get("success", False)),
            "terminated": answer.terminated,
            "truncated": answer.truncated or self._has_failed,
        }
        following = states.following.replace(
            **{
                name: jnp.full_like(getattr(states.following, name), value)
                for name, value in values.items()
            }
        )
        states = states.replace(following=following)
        self._play = self._play.replace(states=states)


def check_chats(game: ChatGame, num_rows: int) -> None:
    """Say on standard error why games in Python failed.

    Raises:
      GamesFailed: more did than may.
    """
    if isinstance(game, WorldChatGame):
        check_failures(game.failures, num_rows, game.env.max_failed_fraction)
