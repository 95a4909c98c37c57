"""Games that break the contract of host games, each in one way."""

import dataclasses
import random

from ragen_jax.host_games.base import VALIDATION, HostGame, Observation, Step


class Sound(HostGame):
    """Say the number that is shown; odd ones are for validation."""

    instruction = "Say the number."
    metrics = ("length",)
    is_solvable = True
    longest_solution = 1

    def __init__(self, split: str):
        self.is_validation = split == VALIDATION

    def reset(self, seed: int, task: int | None = None) -> Observation:
        self.number = 2 * seed + self.is_validation
        return Observation(f"number {self.number}")

    def step(self, reply: str) -> Step:
        is_right = reply == str(self.number)
        info = {"success": is_right, "valid": reply.isdecimal(), "length": len(reply)}
        return Step(Observation("done"), float(is_right), True, False, info)

    def solution(self) -> list[str]:
        return [str(self.number)]


_ROOMS: list[HostGame] = []


class Long(Sound):
    """Sound, with room for two, and a solution that takes 45 replies."""

    max_rows, longest_solution = 2, 45

    def reset(self, seed: int, task: int | None = None) -> Observation:
        if self not in _ROOMS:
            _ROOMS.append(self)
        assert len(_ROOMS) <= self.max_rows
        self.count = 0
        return super().reset(seed)

    def step(self, reply: str) -> Step:
        self.count += 1
        step = super().step(reply)
        return step if self.count == 45 else dataclasses.replace(step, terminated=False)

    def solution(self) -> list[str]:
        return super().solution() * 45


class FailsAtSeed(Sound):
    def reset(self, seed, task=None):
        return {}["no such table"] if seed == 50 else super().reset(seed)


class Unmakeable(Sound):
    def __init__(self, split: str):
        {}["no such table"]


class ShowsText(Sound):
    def reset(self, seed, task=None):
        return super().reset(seed).text


class ReturnsTuple(Sound):
    def step(self, reply):
        return dataclasses.astuple(super().step(reply))


class ShowsTextLater(Sound):
    def step(self, reply):
        return dataclasses.replace(super().step(reply), observation="done")


class ShowsBytes(Sound):
    def reset(self, seed, task=None):
        return Observation(super().reset(seed).text.encode())


class SaysWhy(Sound):
    def step(self, reply):
        step = super().step(reply)
        return dataclasses.replace(step, info={**step.info, "why": "wrong"})


class InfoIsList(Sound):
    def step(self, reply):
        return dataclasses.replace(super().step(reply), info=["success"])


class Raises(Sound):
    def step(self, reply):
        int(reply)
        return super().step(reply)


class IgnoresSeed(Sound):
    def reset(self, seed, task=None):
        return super().reset(random.randrange(10**9))


class CountsEpisodes(Sound):
    """What it pays depends on what its process has played before."""

    num_solved = 0

    def step(self, reply):
        step = super().step(reply)
        CountsEpisodes.num_solved += step.info["success"]
        return dataclasses.replace(step, reward=float(CountsEpisodes.num_solved))


class IgnoresSplit(Sound):
    def __init__(self, split):
        super().__init__("training")


class LosingSolution(Sound):
    def solution(self):
        return [str(self.number + 1)]


class NoSolution(Sound):
    def solution(self):
        return []


class LongSolution(Sound):
    """Takes two replies."""

    def reset(self, seed, task=None):
        self.said = 0
        return super().reset(seed)

    def step(self, reply):
        self.said += 1
        step = super().step(reply)
        return dataclasses.replace(step, terminated=self.said == 2)

    def solution(self):
        return super().solution() * (2 - self.said)


class LacksNumber(Sound):
    metrics = ("length", "words")
