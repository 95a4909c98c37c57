"""Base class of sinks, whose objects receive what a run records.

In: a run when it starts or resumes, then its records. Out: nothing; a sink shows them
elsewhere. The record of a run is `metrics.jsonl`, which no sink changes.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

# A line of `metrics.jsonl`: `iteration`, `time` (seconds since 1970; older runs may
# lack it), and by name numbers, lists of numbers, or None for what is not finite.
Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run that starts or resumes.

    Attributes:
      workdir: its folder, in which a sink may keep files.
      run_id: letters and digits, the same whenever the run resumes.
      settings: its configuration by dotted key.
      games: names of the environments in the metrics.
      records: of its iterations so far, oldest first; empty for a new run.
      episode_files: files of sample episodes so far, by iteration.
    """

    workdir: pathlib.Path
    run_id: str
    settings: Mapping[str, Any]
    games: Sequence[str]
    records: Sequence[Record]
    episode_files: Mapping[int, pathlib.Path]


class Sink:
    """Base class of sinks, the user's among them.

    What a method raises is printed once; the sink is closed, and the run goes on
    without it. After a kill, iterations since the last checkpoint are written a second
    time.

    Args:
      run: the run. A sink that has not seen `run.run_id` before may show `run.records`.
    """

    def __init__(self, run: OpenedRun):
        pass

    def write(self, record: Record) -> None:
        """Show the record of an iteration."""
        raise NotImplementedError

    def episodes(self, iteration: int, episodes: Sequence[Mapping]) -> None:
        """Show sample episodes, as in the files of `trajectories/`; by default none."""

    def flush(self) -> None:
        """Make durable what was shown; called before every checkpoint."""

    def close(self) -> None:
        """The run has ended, or was stopped and may resume."""


def numbers(record: Record) -> dict[str, float]:
    """The finite numbers of a record, without its iteration and its time."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, int | float) and name not in ("iteration", "time")
    }
