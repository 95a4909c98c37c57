"""Games that know what wins, or should: worker processes import them without JAX."""

import dataclasses

import numpy as np

from ragen_jax.host_games.base import HostGame, Observation, Step
from ragen_jax.host_games.echo import Echo


class Lock(HostGame):
    """Opens for the word it shows, or, without hope, for none."""

    instruction = "Say the word."
    is_solvable = True
    longest_solution = 2
    hopeless = False

    def __init__(self, split):
        self._left = 2

    def reset(self, seed, task=None):
        self._left = 2 - (seed % 2)
        return Observation("word")

    def step(self, reply):
        self._left -= reply == "word"
        info = {"success": self._left == 0, "valid": True}
        return Step(Observation(""), 0.0, self._left == 0, False, info)

    def solution(self):
        return () if self.hopeless else ("word",) * self._left


class Hopeless(Lock):
    hopeless = True
    is_solvable = False


class Pictured(Lock):
    """Nobody reads what it shows: a picture is no reason to fail."""

    def reset(self, seed, task=None):
        picture = np.zeros((2, 3, 3), np.uint8)
        return dataclasses.replace(super().reset(seed, task), images=(picture,))


class NoSolution(Echo):
    """Echo without solutions."""

    def solution(self):
        return []


class Fails(Echo):
    """Echo that breaks at some problems."""

    def step(self, reply):
        if self._words[0] == "Up":
            raise RuntimeError("broken on purpose")
        return super().step(reply)
