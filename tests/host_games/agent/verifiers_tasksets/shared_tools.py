"""Sums, with a tool that all episodes share; a right answer earns 2."""

import verifiers.v1 as vf


class Adding(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """The sum of two numbers."""
        return str(a + b)


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def is_right(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Sums(vf.Taskset[SumTask]):
    @classmethod
    def toolsets(cls, config):
        return [Adding(vf.SharedToolsetConfig())]

    def load(self):
        # All have one answer: a split may hold any of them.
        for i in range(20):
            data = SumData(prompt=f"{i} + {24 - i}", answer="24")
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
if __name__ == "__main__":
    Adding.run()
