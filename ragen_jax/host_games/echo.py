"""Echo: say a word again. The smallest host game, for a first look and for tests.

In: options. Out: a `HostGame`.
"""

import random
import zlib

from ragen_jax.host_games.base import VALIDATION, HostGame, Observation, Step

_WORDS = ("Up", "Down", "Left", "Right")


class Echo(HostGame):
    """Shows words; pays 1 if the reply is the last of them."""

    instruction = "Reply with the last word that you are shown."
    is_solvable = True
    longest_solution = 1

    def __init__(self, split: str, num_words: int = 3):
        if not 2 <= num_words <= 20:
            raise ValueError(f"num_words={num_words} must be from 2 to 20")
        self.num_words = num_words
        self._is_validation = split == VALIDATION

    def reset(self, seed: int, task: int | None = None) -> Observation:
        draw = random.Random(seed)
        while True:
            self._words = draw.choices(_WORDS, k=self.num_words)
            text = " ".join(self._words)
            # A quarter of the texts, always the same ones, are for validation.
            if (zlib.crc32(text.encode()) % 4 == 0) == self._is_validation:
                return Observation(text)

    def step(self, reply: str) -> Step:
        is_right = reply.strip() == self._words[-1]
        info = {"success": is_right, "valid": bool(reply.strip())}
        observation = Observation("Right." if is_right else "Wrong.")
        return Step(observation, float(is_right), True, False, info)

    def solution(self) -> list[str]:
        return [self._words[-1]]
