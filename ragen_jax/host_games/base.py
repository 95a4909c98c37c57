"""The contract of host games: plain Python, in worker processes on the host.

A game is one episode at a time, synchronous, and text for text: it shows an observation
and gets a reply, the text between the tags of an answer. It runs in a worker process,
which imports neither JAX nor the model, so that it may be slow, fail or be killed.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# The two disjoint parts of a game's problems.
TRAINING, VALIDATION = "training", "validation"
SPLITS = (TRAINING, VALIDATION)
# Entries of `Step.info` that are true or false.
FLAGS = ("success", "valid")
# Largest magnitude of a reward: the squares of a batch's add up in float32.
MAX_REWARD = 1e15


class BrokenContract(ValueError):
    """A game returned something that the contract forbids."""


class SpentProcess(RuntimeError):
    """A game cannot begin an episode in this process, but could in a new one."""


class MissingRequirement(ValueError):
    """A game that works elsewhere needs what this machine does not have."""


@dataclasses.dataclass(frozen=True)
class Observation:
    """What the player sees.

    Attributes:
      text: without the words around it that every game's messages have.
      images: uint8[H, W, 3] each; empty for text games.
      call: in place of a turn's message, a whole call of a model's API, as JSON
        (`agent.calls.ChatCall`); `text` says what is new, for people. None: a message.
    """

    text: str
    images: tuple[np.ndarray, ...] = ()
    call: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Step:
    """What a reply led to.

    Attributes:
      observation: shown next, also after the last reply.
      reward: of this reply alone; its magnitude is at most `MAX_REWARD`.
      terminated: the game has ended.
      truncated: a limit set by the game has ended it.
      info: `success` (the goal has been reached) and `valid` (the game could read the
        reply), both bool; and the numbers that `HostGame.metrics` names.
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, float | bool]


class HostGame(abc.ABC):
    """A game in Python, one episode at a time.

    Contract: the same `seed`, `task` and replies give the same episode, in any process;
    a reply is any text, and one that cannot be read is answered by a step with
    `info["valid"]` False, not by an exception; no problem is in both splits. A
    constructor takes `split` and its own options as keyword arguments and refuses bad
    ones with a `ValueError`.

    Attributes:
      instruction: what the game is and how replies are written; ends without a newline.
      num_tasks: problems of the split; None: as many as there are seeds.
      metrics: names of further numbers in `Step.info`: small letters, digits and "_".
        Their last values are recorded, as `train/<Env>/game_<name>`.
      is_solvable: `solution` always has an answer, so that best play is known to win.
      longest_solution: replies that it takes at most; None: not known.
      max_step_seconds: that a step takes by the game's own time limit, after which it
        is judged; None: it has none.
      max_rows: episodes that can be played at the same time; None: any number.
      waits: a step mostly waits for another machine, so that more processes than
        processors help.
      makes_calls: its observations are calls of a model's API; each of its episodes
        has a process.
      is_parallel: it may make a call before the last one is answered.
    """

    instruction: str
    num_tasks: int | None = None
    metrics: tuple[str, ...] = ()
    is_solvable: bool = False
    longest_solution: int | None = None
    max_step_seconds: float | None = None
    max_rows: int | None = None
    waits: bool = False
    makes_calls: bool = False
    is_parallel: bool = False

    @property
    def name(self) -> str:
        """Its name in messages and metrics: letters, digits, "_" and "-"."""
        return type(self).__name__

    @abc.abstractmethod
    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Begin an episode.

        Args:
          seed: of everything that is drawn, from 0 to 2**31 - 1.
          task: problem from 0 to `num_tasks - 1`; None: the seed chooses it.
        """

    @abc.abstractmethod
    def step(self, reply: str) -> Step:
        """Answer a reply; not called after an episode has ended."""

    def solution(self) -> Sequence[str]:
        """Replies that win from here on; empty where none are known."""
        return ()

    def close(self) -> None:  # noqa: B027  (most games hold nothing)
        """Release what the game holds; it is not used afterwards."""
