"""A hook answers in place of a tool, another one ends the episode."""

import shared_tools
import verifiers.v1 as vf


class SumTask(vf.Task[shared_tools.SumData]):
    @vf.intercept
    async def deny(self, request: vf.Request):
        for message in request.messages:
            if message.role == "tool":
                message.content = "No."
        return request

    @vf.stop
    async def after_two(self, response: vf.Response, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward
    async def half(self, trace) -> float:
        return 0.5


class Sums(vf.Taskset[SumTask]):
    @classmethod
    def toolsets(cls, config):
        return [shared_tools.Adding(vf.SharedToolsetConfig())]

    def load(self):
        for i in range(20):
            data = shared_tools.SumData(prompt=f"{i} + {24 - i}", answer="24")
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
