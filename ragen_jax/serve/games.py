"""Games that sessions play: text in, text out, whatever is behind them.

In: a `World` (a game in Python) or, in `arrays.py`, an environment of arrays. Out:
episodes of a single row. Knows no messages and no sockets.
"""

import abc
import dataclasses
import re

from ragen_jax.rollout.world_env import World
from ragen_jax.text.answers import ANSWER_BEGIN, ANSWER_END
from ragen_jax.text.messages import find_answer
from ragen_jax.worlds.pool import Answer, Pool

_TAGGED = re.compile(
    rb"\s*" + re.escape(ANSWER_BEGIN) + rb"(.*?)" + re.escape(ANSWER_END), re.DOTALL
)


class GameError(RuntimeError):
    """An episode cannot begin or go on; the message says why."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """What an episode shows after a reset or an answer.

    Attributes:
      text: all that a player without other knowledge needs: after a reset the rules,
        too.
      shown: what the game shows, alone; what our trainer's messages are built around.
      reward: of the last answer alone, without a penalty for its form; None after a
        reset.
      terminated, truncated: the game has ended; a limit has ended it.
      success: the goal has been reached.
      valid: the game could read the last answer.
    """

    text: str
    shown: str
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    valid: bool = True

    @property
    def done(self) -> bool:
        """Nothing more is answered before the next reset."""
        return self.terminated or self.truncated


class Player(abc.ABC):
    """One client's episodes, one after the other; used by one thread at a time."""

    @abc.abstractmethod
    def reset(self, seed: int, task: int | None, split: str) -> Shown:
        """Begin an episode.

        Raises:
          GameError: there is no such task, or the game failed.
        """

    @abc.abstractmethod
    def step(self, answer: str) -> Shown:
        """Answer in an episode that has begun and is not over.

        Raises:
          GameError: the game failed.
        """

    def close(self) -> None:  # noqa: B027  (players of arrays hold nothing)
        """Release what the player holds."""


class Game(abc.ABC):
    """A game to be served.

    Attributes:
      name: of the game.
      instruction: its rules and how answers are written.
      step_seconds: a step that takes longer is ended; None: steps take no time.
    """

    name: str
    instruction: str
    step_seconds: float | None = None

    @abc.abstractmethod
    def player(self) -> Player:
        """A new client's."""


def read_answer(text: str) -> str:
    """The answer in a text: what stands between its tags, or all of a text without.

    The tags are read as in training: those after a thought, or those that the text
    begins with.
    """
    raw = text.encode("utf-8", "replace")
    found = find_answer(raw, thinking=True)
    if found is None and (match := _TAGGED.match(raw)):
        found = match.group(1)
    return (raw if found is None else found).decode("utf-8", "replace").strip()


class WorldGame(Game):
    """A game in Python; each client's runs in a worker process of its own."""

    def __init__(self, world: World):
        self.world, self.name = world, world.name
        self.instruction = world.instruction
        self.step_seconds = world.spec.step_seconds

    def player(self) -> "WorldPlayer":
        return WorldPlayer(self)

    def num_tasks(self, split: str) -> int | None:
        """Problems of a split; None: as many as there are seeds.

        Raises:
          GameError: the game has no such split.
        """
        if split not in self.world.num_tasks:
            known = ", ".join(self.world.num_tasks)
            raise GameError(f"{self.name} has no split {split!r}; use one of {known}")
        return self.world.num_tasks[split]


class WorldPlayer(Player):
    """Episodes in a worker process, which starts with the first."""

    def __init__(self, game: WorldGame):
        self._game = game
        self._pool: Pool | None = None
        self._split = ""

    def reset(self, seed: int, task: int | None, split: str) -> Shown:
        game = self._game
        if task is not None:
            num_tasks = game.num_tasks(split)
            if num_tasks is None or task >= num_tasks:
                has = "no numbered tasks" if num_tasks is None else "tasks 0 to {}"
                raise GameError(
                    f"there is no task {task}: {game.name} has "
                    f"{has.format((num_tasks or 0) - 1)} in {split}; use one of them, "
                    "or leave task out"
                )
        if self._pool is None or split != self._split:
            self.close()
            self._pool, self._split = Pool(game.world.spec, split, 1), split
        shown = _only(self._pool.reset([seed], [task])[0]).text
        return Shown(f"{game.instruction}\n\n{shown}", shown)

    def step(self, answer: str) -> Shown:
        found = _only(self._pool.step({0: read_answer(answer)})[0])
        return Shown(
            found.text,
            found.text,
            found.reward,
            found.terminated,
            found.truncated,
            success=bool(found.info.get("success", False)),
            valid=bool(found.info.get("valid", True)),
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _only(answer: Answer) -> Answer:
    answer = answer.in_text()
    if answer.failure is not None:
        raise GameError(f"the game failed: {answer.failure}")
    return answer
