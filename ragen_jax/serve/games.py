"""Games that sessions play: text in, text out, whatever is behind them.

In: a `World` (a game in Python) or, in `arrays.py`, an environment of arrays. Out:
episodes of a single row. Knows no messages and no sockets.
"""

import abc
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from envs.base import SPLITS
from ragen_jax import rngs
from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.rollout.host.env import World
from ragen_jax.rollout.host.text import ChatGame
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.rollout.turns import ParsedReply, Play
from ragen_jax.text.answers import ANSWER_BEGIN, ANSWER_END
from ragen_jax.text.messages import find_answer, parse_text
from ragen_jax.types import ParsedAnswer

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


def _only(answer: WorkerResponse) -> WorkerResponse:
    answer = answer.in_text()
    if answer.failure is not None:
        raise GameError(f"the game failed: {answer.failure}")
    return answer


class ArrayGame(Game):
    """An environment of arrays.

    Args:
      name: as clients read it.
      game: the environment, its rules and its wording.
    """

    def __init__(self, name: str, game: ChatGame):
        self.name, self.game = name, game
        self.instruction = game.chat.wording.system.render({})

        @jax.jit
        def keys(seed: Int[Array, ""]) -> tuple[Key[Array, " 1"], Key[Array, " 1"]]:
            root = rngs.root_key(seed)
            return tuple(
                rngs.rows(rngs.stream(root, name), 1) for name in ("level", "noise")
            )

        @jax.jit
        def advance(
            play: Play, turn: Int[Array, ""], parsed: ParsedAnswer, noise: Array
        ) -> tuple[Play, dict]:
            no = jnp.zeros(1, bool)
            answer = ParsedReply(parsed, jnp.zeros(1, jnp.int32), no, no, jnp.zeros(1))
            play = game.step(play, turn, answer, noise)
            episode = game.finish(play, play.states, noise)
            seen = {
                "fields": game.fields(play, turn + 1),
                "feedback": play.feedback,
                "reward": play.turns.reward[0, turn],
                "is_active": play.is_active[0],
                "terminated": episode.terminated[0],
                "success": episode.success[0],
            }
            return play, seen

        self.keys, self.advance = keys, advance
        player = self.player()
        for split in SPLITS:
            player.reset(0, None, split)
        player.step("")

    def player(self) -> "ArrayPlayer":
        return ArrayPlayer(self)


class ArrayPlayer(Player):
    """Episodes of an `ArrayGame`."""

    def __init__(self, game: ArrayGame):
        self._game = game

    def reset(self, seed: int, task: int | None, split: str) -> Shown:
        if task is not None:
            raise GameError(
                f"there is no task {task}: levels of {self._game.name} are made from "
                "seeds; leave task out"
            )
        game = self._game.game
        level, self._noise = self._game.keys(np.uint32(seed))
        self._play = game.start(
            game.levels(RolloutKeys(level, self._noise, self._noise, split=split))
        )
        self._turn = 0
        fields = _only_row(jax.device_get(game.fields(self._play, np.int32(0))))
        wording = game.chat.wording
        text = f"{self._game.instruction}\n\n{wording.turn.render(fields)}"
        return Shown(text, game.env.template.render(fields).rstrip("\n"))

    def step(self, answer: str) -> Shown:
        game, wording = self._game.game, self._game.game.chat.wording
        parsed = parse_text(
            # A text with the tag in it would end there, as in training.
            read_answer(answer) + ANSWER_END.decode(),
            game.env.action_vocabulary,
            max_actions=game.rules.budget.max_actions_per_turn,
            thinking=False,
            answer_bytes=game.env.answer_bytes,
        )
        row = jax.tree.map(lambda x: np.asarray(x)[None], parsed)
        self._play, seen = self._game.advance(
            self._play, np.int32(self._turn), row, self._noise
        )
        self._turn += 1
        seen = jax.device_get(seen)
        fields, feedback = _only_row(seen["fields"]), _only_row(seen["feedback"])
        goes_on = bool(seen["is_active"]) and self._turn < game.rules.budget.max_turns
        shown = game.env.template.render(fields)
        rest = wording.turn.render(fields) if goes_on else shown
        terminated = bool(seen["terminated"])
        return Shown(
            wording.result.render(feedback) + rest,
            shown.rstrip("\n"),
            float(seen["reward"]),
            terminated=terminated,
            truncated=not goes_on and not terminated,
            success=bool(seen["success"]),
            valid=not feedback["was_invalid"],
        )


def _only_row(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value[0] for name, value in arrays.items()}
