"""Guess the number that the task ends with; the environment talks with the model."""

import itertools
import random

import verifiers.v1 as vf


class GuessTask(vf.Task[vf.TaskData]):
    """What it earns the environment says."""


class Guesses(vf.Taskset[GuessTask]):
    INFINITE = True

    def load(self):
        for i in itertools.count():
            yield GuessTask(vf.TaskData(prompt=f"Game {i}: guess {i % 7 + 1}"))


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(max_turns=4)


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and not self.is_right(task, segment):
                segment = await interaction.turn(f"No. Noise: {random.random()}")
        is_right = self.is_right(task, segment)
        interaction.trace.record_reward("is_right", float(is_right))

    def is_right(self, task, segment):
        return not segment.terminated and segment.last_reply == task.data.prompt[-1]


__all__ = ["GuessEnv", "Guesses"]
