"""A host game that takes half a second for every reply and never ends."""

import time

from ragen_jax.host_games.base import HostGame, Observation, Step


class Sleeper(HostGame):
    instruction = "Wait."

    def __init__(self, split: str):
        del split

    def reset(self, seed: int, task: int | None = None) -> Observation:
        return Observation("Up")

    def step(self, reply: str) -> Step:
        time.sleep(0.5)
        return Step(Observation("Up"), 0.0, False, False, {"valid": True})
