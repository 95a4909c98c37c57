"""A host game that takes its time, for `benchmarks.worlds`.

It has a file of its own because its workers import it, which are to start without JAX.
"""

import time

from ragen_jax.host_games.base import HostGame, Observation, Step


class Sleeper(HostGame):
    """Sleeps at every reply and never ends."""

    instruction = "Wait."

    def __init__(self, split: str, seconds: float):
        self.seconds = seconds

    def reset(self, seed: int, task: int | None = None) -> Observation:
        return Observation("Up Down")

    def step(self, reply: str) -> Step:
        time.sleep(self.seconds)
        info = {"success": False, "valid": True}
        return Step(Observation("Up Down"), 0.0, False, False, info)
