"""Games that sessions play: text in, text out, array games and host games alike.

In: a `HostGameEnv`, or the `ChatGame` of an array environment. Out: episodes of a
single row. Knows no messages and no sockets.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from envs.base import SPLITS, VALIDATION
from ragen_jax import rngs
from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.rollout.host.env import HostGameEnv
from ragen_jax.rollout.host.text import ChatEpisode, ChatGame
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.text.answers import ANSWER_BEGIN, ANSWER_END
from ragen_jax.text.messages import find_answer, strip_prefix


class GameError(RuntimeError):
    """An episode cannot begin or go on; the message says why."""


@dataclasses.dataclass(frozen=True)
class SessionOutput:
    """What an episode shows after a reset or an answer, and what that earned.

    Attributes:
      text: all that a player without other knowledge needs: after a reset the rules,
        too.
      shown: what the game shows, without other words; the trainer puts it into its
        messages.
      reward: of the last answer alone, without a penalty for its form; None after a
        reset.
      terminated, truncated: the game has ended; a limit has ended it.
      success: the goal has been reached.
      valid: the game could read the last answer.
      images: of the board, PNG files in base64.
    """

    text: str
    shown: str
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    valid: bool = True
    images: Sequence[str] = ()

    @property
    def done(self) -> bool:
        """Nothing more is answered before the next reset."""
        return self.terminated or self.truncated


def read_answer(text: str) -> str:
    """The answer in a text: what stands between its tags, or all of a text without.

    The tags are read as in training; without a thought, or where words stand between
    it and the answer, those of the first answer.
    """
    raw = text.encode("utf-8", "replace")
    answer = find_answer(raw, thinking=True)
    if answer is None:
        text = raw.decode()
        begun = strip_prefix(text, ANSWER_BEGIN.decode())
        inside, end, _ = begun.partition(ANSWER_END.decode())
        is_tagged = bool(end) and len(begun) < len(text)
        return (inside if is_tagged else text).strip()
    return answer.decode("utf-8", "replace").strip()


class ServedHostGame:
    """A host game; each client's runs in its own worker process.

    Attributes:
      name, instruction: of the game: its rules, and how answers are written.
      step_seconds: a step that takes longer is ended.
      shows_pictures: observations have images.
    """

    shows_pictures = False

    def __init__(self, env: HostGameEnv):
        self.env, self.name, self.instruction = env, env.name, env.instruction
        self.step_seconds = env.spec.step_seconds

    def player(self) -> "HostPlayer":
        return HostPlayer(self)

    def check_task(self, task: int, split: str) -> None:
        """Refuse a problem that the game does not have.

        Raises:
          GameError: says which there are.
        """
        if split not in self.env.num_tasks:
            known = ", ".join(self.env.num_tasks)
            raise GameError(f"{self.name} has no split {split!r}; use one of {known}")
        num_tasks = self.env.num_tasks[split]
        if num_tasks is None or task >= num_tasks:
            has = "no numbered tasks" if num_tasks is None else "tasks 0 to {}"
            raise GameError(
                f"there is no task {task}: {self.name} has "
                f"{has.format((num_tasks or 0) - 1)} in {split}; use one of them, "
                "or leave task out"
            )


class HostPlayer:
    """One client's episodes, one after the other; used by one thread at a time.

    They run in a worker process, which starts with the first.
    """

    def __init__(self, game: ServedHostGame):
        self._game = game
        self._rows: Pool | None = None
        self._split = ""

    def reset(self, seed: int, task: int | None, split: str) -> SessionOutput:
        """Begin an episode.

        Raises:
          GameError: there is no such task, or the game failed.
        """
        game = self._game
        if task is not None:
            game.check_task(task, split)
        if self._rows is None or split != self._split:
            self.close()
            self._rows, self._split = Pool(game.env.spec, split), split
        observation = _checked(self._rows.reset([seed], [task])[0]).text
        return SessionOutput(f"{game.instruction}\n\n{observation}", observation)

    def step(self, answer: str) -> SessionOutput:
        """Answer in an episode that has begun and is not over.

        Raises:
          GameError: the game failed.
        """
        output = _checked(self._rows.step({0: read_answer(answer)})[0])
        return SessionOutput(
            output.text,
            output.text,
            output.reward,
            terminated=output.terminated,
            truncated=output.truncated,
            success=output.success,
            valid=output.valid,
        )

    def close(self) -> None:
        """End the worker process."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None


def _checked(output: WorkerResponse) -> WorkerResponse:
    if output.failure is not None:
        raise GameError(f"the game failed: {output.failure}")
    return output


class ServedArrayGame:
    """An array environment; attributes as of `ServedHostGame`.

    Args:
      name: as clients read it.
      chat: the environment, its rules and its wording.
    """

    step_seconds = None  # steps take no time

    def __init__(self, name: str, chat: ChatGame):
        self.name, self.chat = name, chat
        self.shows_pictures = chat.chat.drawn is not None
        self.instruction = chat.chat.wording.system.render({})

        @jax.jit
        def keys(seed: Int[Array, ""]) -> tuple[Key[Array, " 1"], Key[Array, " 1"]]:
            root = rngs.root_key(seed)
            return tuple(
                rngs.rows(rngs.stream(root, name), 1) for name in ("level", "noise")
            )

        self.keys = keys
        # Compiles what a session calls.
        player = self.player()
        for split in SPLITS:
            player.reset(0, None, split)
        player.step("")

    def player(self) -> "ArrayPlayer":
        return ArrayPlayer(self)


class ArrayPlayer:
    """Episodes of a `ServedArrayGame`; methods as of `HostPlayer`."""

    _episode: ChatEpisode

    def __init__(self, game: ServedArrayGame):
        self._game, self._shown = game, game.chat.chat.shown

    def reset(self, seed: int, task: int | None, split: str) -> SessionOutput:
        if task is not None:
            raise GameError(
                f"there is no task {task}: levels of {self._game.name} are made from "
                "seeds; leave task out"
            )
        chat = self._game.chat
        level, noise = self._game.keys(np.uint32(seed))
        levels = chat.levels(
            RolloutKeys(level, noise, noise, jnp.full(1, split == VALIDATION))
        )
        (noise_key,) = noise
        self._episode = chat.episode(jax.tree.map(lambda x: x[0], levels), noise_key)
        self._turn = 0
        fields = self._episode.outcome.fields
        text = f"{self._game.instruction}\n\n{chat.chat.wording.turn.render(fields)}"
        shown = self._shown.render(fields).rstrip("\n")
        return SessionOutput(text, shown, images=chat.chat.pictures(fields))

    def step(self, answer: str) -> SessionOutput:
        chat, wording = self._game.chat, self._game.chat.chat.wording
        # A text with the tag in it would end there, as in training.
        text = read_answer(answer) + ANSWER_END.decode()
        self._episode.answer(self._turn, text, thinking=False)
        self._turn += 1
        outcome = self._episode.outcome
        goes_on = bool(outcome.is_active) and self._turn < self._episode.max_turns
        observation = self._shown.render(outcome.fields)
        rest = wording.turn.render(outcome.fields) if goes_on else observation
        terminated = bool(outcome.terminated)
        return SessionOutput(
            wording.result.render(outcome.feedback) + rest,
            observation.rstrip("\n"),
            float(outcome.reward),
            terminated=terminated,
            truncated=not goes_on and not terminated,
            success=bool(outcome.success),
            valid=not outcome.feedback["was_invalid"],
            images=chat.chat.pictures(outcome.fields),
        )

    def close(self) -> None:
        """Nothing to release."""


Game = ServedHostGame | ServedArrayGame
Player = HostPlayer | ArrayPlayer
