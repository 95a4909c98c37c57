"""Wrappers: games around games, with the same interface.

In: a `HostGame`. Out: a `HostGame` that plays it with one thing changed. They can be
stacked: `wrap(game, (("split", 4), ("budget", 10)))` splits replies into actions and
ends the episode after ten replies; the other way round it would end after ten actions.

Source: RAGEN's environment manager splits answers at `||`, limits the actions of an
episode and penalizes answers that are not actions, for every game. Here each is chosen,
so that programs and formulas, which may contain `||`, are not cut.
"""

import abc
import dataclasses
import operator
import reprlib
from collections.abc import Mapping, Sequence
from typing import SupportsFloat

from ragen_jax.host_games.base import (
    FLAGS,
    MAX_REWARD,
    BrokenContract,
    HostGame,
    Observation,
    Step,
)
from ragen_jax.host_games.common.options import check_number, check_whole

SEPARATOR = "||"
# Stands where the middle of a text has been cut out.
CUT_MARK = " [...] "


class Wrapper(HostGame):
    """Plays another game as it is; subclasses change one thing.

    Attributes:
      game: the game inside.
    """

    instruction = property(operator.attrgetter("game.instruction"))
    name = property(operator.attrgetter("game.name"))
    num_tasks = property(operator.attrgetter("game.num_tasks"))
    metrics = property(operator.attrgetter("game.metrics"))
    is_solvable = property(operator.attrgetter("game.is_solvable"))
    longest_solution = property(operator.attrgetter("game.longest_solution"))
    max_step_seconds = property(operator.attrgetter("game.max_step_seconds"))
    max_rows = property(operator.attrgetter("game.max_rows"))
    waits = property(operator.attrgetter("game.waits"))
    makes_calls = property(operator.attrgetter("game.makes_calls"))
    is_parallel = property(operator.attrgetter("game.is_parallel"))

    def __init__(self, game: HostGame):
        self.game = game

    def reset(self, seed: int, task: int | None = None) -> Observation:
        return self.game.reset(seed, task)

    def step(self, reply: str) -> Step:
        return self.game.step(reply)

    def solution(self) -> Sequence[str]:
        return self.game.solution()

    def close(self) -> None:
        self.game.close()


class Checked(Wrapper):
    """Refuses anything but an `Observation` or `Step`; `wrap` puts it around all games.

    A step whose `info` leaves out "valid" or "success" gets True or False.

    Raises:
      BrokenContract: the game returned something else.
    """

    def reset(self, seed: int, task: int | None = None) -> Observation:
        observation = self.game.reset(seed, task)
        self._check_observation("reset must return", observation)
        return observation

    def step(self, reply: str) -> Step:
        step = self.game.step(reply)
        self._check("step must return", step, Step)
        self._check_observation("step must return a Step with", step.observation)
        self._check("step must return a Step whose info is", step.info, Mapping)
        for name, value in {"reward": step.reward, **step.info}.items():
            if not _is_number(value):
                raise self._broken(
                    f"step must return numbers only as reward and in info: {name}",
                    value,
                )
        # Not-a-number is not up to anything.
        if not abs(float(step.reward)) <= MAX_REWARD:
            raise self._broken(
                f"a reward must be finite and at most {MAX_REWARD:g} in magnitude, as "
                "its square would overflow",
                step.reward,
            )
        flags = {"terminated": step.terminated, "truncated": step.truncated}
        flags |= {name: step.info.get(name, False) for name in FLAGS}
        for name, value in flags.items():
            # Not-a-number and texts would be true.
            if not _is_number(value) or value not in (0, 1):
                raise self._broken(f"{name} must be True or False", value)
        info = {"success": False, "valid": True, **step.info}
        return dataclasses.replace(step, info=info)

    def _check_observation(self, sentence: str, value: object) -> None:
        self._check(sentence, value, Observation)
        self._check("an Observation's text must be", value.text, str)
        self._check("an Observation's images must be", value.images, tuple)
        if value.call is not None:
            self._check("an Observation's call must be", value.call, Mapping)
        for image in value.images:
            shape, dtype = getattr(image, "shape", ()), getattr(image, "dtype", None)
            if len(shape) != 3 or shape[2] != 3 or 0 in shape or dtype != "uint8":
                raise self._broken("an image must be uint8[H, W, 3]", image)

    def _check(self, sentence: str, value: object, kind: type) -> None:
        if not isinstance(value, kind):
            raise self._broken(f"{sentence} {_A.get(kind, kind.__name__)}", value)

    def _broken(self, sentence: str, value: object) -> BrokenContract:
        name, kind = type(self.game).__name__, type(value).__name__
        return BrokenContract(
            f"{name}: {sentence}, got {kind} {reprlib.repr(value)} "
            "(the contract: ragen_jax/host_games/base.py)"
        )


def _is_number(value: object) -> bool:
    """A number or truth value of Python, or an array that holds one; not a text."""
    if not isinstance(value, SupportsFloat):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


_A = {
    Observation: "an Observation",
    Step: "a Step",
    Mapping: "a dict",
    str: "a str",
    tuple: "a tuple",
}


class SplitActions(Wrapper):
    """Splits a reply at `||` into actions, which are steps of the game inside.

    Actions are stripped, empty ones and those beyond the limit are dropped, as in
    compiled rollouts. They are played until the game ends. Rewards are summed; the
    observation and `info` are those of the last action; `info["valid"]` says that all
    were valid. A reply without any action is an empty reply to the game inside.
    """

    def __init__(self, game: HostGame, max_actions: int):
        """Args: max_actions: of one reply, at least 1."""
        check_whole(_argument("split"), max_actions)
        super().__init__(game)
        self._max_actions = max_actions

    @property
    def instruction(self) -> str:
        """That of the game inside, and how several actions are written."""
        if self._max_actions == 1:
            return self.game.instruction
        return (
            f"{self.game.instruction}\nUp to {self._max_actions} replies at once, "
            f"separated by {SEPARATOR}."
        )

    @property
    def max_step_seconds(self) -> float | None:
        """Of all actions of a reply together."""
        one = self.game.max_step_seconds
        return None if one is None else self._max_actions * one

    def step(self, reply: str) -> Step:
        pieces = (piece.strip() for piece in reply.split(SEPARATOR))
        actions = [piece for piece in pieces if piece][: self._max_actions] or [""]
        reward, is_valid = 0.0, True
        for action in actions:
            step = self.game.step(action)
            reward += step.reward
            is_valid = is_valid and bool(step.info["valid"])
            if step.terminated or step.truncated:
                break
        info = {**step.info, "valid": is_valid}
        return dataclasses.replace(step, reward=reward, info=info)

    def solution(self) -> Sequence[str]:
        """Actions of the solution, as many in a reply as may be.

        Raises:
          ValueError: an action contains the separator: the game must not be split.
        """
        actions = self.game.solution()
        for action in actions:
            if SEPARATOR in action or not action.strip():
                raise ValueError(
                    f"the solution has the reply {action!r}, which the wrapper 'split' "
                    f"cuts at {SEPARATOR} or drops; leave it out for this game"
                )
        starts = range(0, len(actions), self._max_actions)
        groups = (actions[start : start + self._max_actions] for start in starts)
        return [f" {SEPARATOR} ".join(group) for group in groups]


class Budget(Wrapper):
    """Truncates an episode after a number of steps; observations stay.

    Attributes:
      is_solvable: False, for nothing says that the budget is enough.
    """

    is_solvable = False

    def __init__(self, game: HostGame, max_steps: int):
        """Args: max_steps: of an episode, at least 1."""
        check_whole(_argument("budget"), max_steps)
        super().__init__(game)
        self._max_steps = max_steps

    def reset(self, seed: int, task: int | None = None) -> Observation:
        self._steps_left = self._max_steps
        return self.game.reset(seed, task)

    def step(self, reply: str) -> Step:
        step = self.game.step(reply)
        self._steps_left -= 1
        if step.terminated or self._steps_left > 0:
            return step
        return dataclasses.replace(step, truncated=True)

    def solution(self) -> Sequence[str]:
        """The solution of the game inside if the steps that are left are enough."""
        replies = self.game.solution()
        return replies if len(replies) <= self._steps_left else ()


class PenalizeInvalid(Wrapper):
    """Adds a penalty to the reward of replies that the game could not read."""

    def __init__(self, game: HostGame, penalty: float):
        """Args: penalty: added to the reward; finite and negative. RAGEN's is -0.1."""
        check_number(_argument("penalize"), penalty, below=0)
        super().__init__(game)
        self._penalty = float(penalty)

    def step(self, reply: str) -> Step:
        step = self.game.step(reply)
        if step.info["valid"]:
            return step
        return dataclasses.replace(step, reward=step.reward + self._penalty)


class ObservationWrapper(Wrapper):
    """Changes every observation; subclasses say how."""

    @abc.abstractmethod
    def change(self, shown: Observation) -> Observation:
        """The observation that replaces one of the game inside."""

    def reset(self, seed: int, task: int | None = None) -> Observation:
        return self.change(self.game.reset(seed, task))

    def step(self, reply: str) -> Step:
        step = self.game.step(reply)
        return dataclasses.replace(step, observation=self.change(step.observation))


class CapObservation(ObservationWrapper):
    """Cuts observations in the middle to a number of characters, images stay."""

    def __init__(self, game: HostGame, max_chars: int):
        """Args: max_chars: longest text, with the mark; at least 20."""
        check_whole(_argument("cap"), max_chars, least=20)
        super().__init__(game)
        self._max_chars = max_chars

    def change(self, shown: Observation) -> Observation:
        text = cut_middle(shown.text, self._max_chars)
        return dataclasses.replace(shown, text=text)


class LimitImages(ObservationWrapper):
    """Shows the first images of an observation, for models that read few, or none."""

    def __init__(self, game: HostGame, max_images: int):
        """Args: max_images: of an observation; 0: its text alone."""
        check_whole(_argument("images"), max_images, least=0)
        super().__init__(game)
        self._max_images = max_images

    def change(self, shown: Observation) -> Observation:
        return dataclasses.replace(shown, images=shown.images[: self._max_images])


def cut_middle(text: str, max_chars: int) -> str:
    """The text, its middle replaced by `CUT_MARK` if it has more characters."""
    if len(text) <= max_chars:
        return text
    length = max_chars - len(CUT_MARK)
    tail = length // 2
    return text[: length - tail] + CUT_MARK + text[len(text) - tail :]


# Name of a wrapper -> its class, which takes a game and one argument.
WRAPPERS = {
    "split": SplitActions,
    "budget": Budget,
    "penalize": PenalizeInvalid,
    "cap": CapObservation,
    "images": LimitImages,
}


def wrap(game: HostGame, wrappers: Sequence[Sequence]) -> HostGame:
    """A game in wrappers, and in `Checked`.

    Args:
      game: goes innermost.
      wrappers: pairs of a name in `WRAPPERS` and its argument, from the inside out;
        tuples or lists, as JSON has them.

    Raises:
      ValueError: an entry is not such a pair, or the wrapper refuses its argument.
    """
    if isinstance(wrappers, str) or not isinstance(wrappers, Sequence):
        raise ValueError(f"wrappers is {wrappers!r}; use a list of {_PAIRS}")
    game = Checked(game)
    for pair in wrappers:
        if (
            isinstance(pair, str)
            or not isinstance(pair, Sequence)
            or len(pair) != 2
            or pair[0] not in tuple(WRAPPERS)
        ):
            raise ValueError(f"wrappers has {pair!r}; use {_PAIRS}")
        name, argument = pair
        game = WRAPPERS[name](game, argument)
    return game


_PAIRS = f"pairs such as ('split', 4), each with one of {', '.join(WRAPPERS)}"


def _argument(wrapper: str) -> str:
    return f"the argument of the wrapper {wrapper!r}"
