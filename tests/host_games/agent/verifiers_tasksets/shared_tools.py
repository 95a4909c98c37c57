"""What the tasksets share: the task's data, and a tool that all episodes use."""

import verifiers.v1 as vf


class Adding(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """The sum of two numbers."""
        return str(a + b)


class SumData(vf.TaskData):
    answer: str


if __name__ == "__main__":
    Adding.run()
