"""Sums, with a tool of each episode's own, which counts its uses, and a shared one."""

import shared_tools
import verifiers.v1 as vf


class Uses(vf.State):
    number: int = 0


class Tools(vf.Toolset[vf.ToolsetConfig, Uses]):
    @vf.tool
    def add(self, a: int, b: int) -> str:
        """The sum of two numbers."""
        self.state.number += 1
        return str(a + b)


class SumTask(vf.Task[shared_tools.SumData, Uses]):
    @classmethod
    def toolsets(cls, config):
        return [Tools(vf.ToolsetConfig())]

    @vf.reward(weight=2.0)
    async def is_right(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def num_uses(self, trace) -> float:
        return trace.state.number


class Sums(vf.Taskset[SumTask]):
    @classmethod
    def toolsets(cls, config):
        return [shared_tools.Adding(vf.SharedToolsetConfig())]

    def load(self):
        for i in range(20):
            data = shared_tools.SumData(prompt=f"{i} + {24 - i}", answer="24")
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
if __name__ == "__main__":
    Tools.run()
