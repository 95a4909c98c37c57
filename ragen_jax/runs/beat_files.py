"""The files with the signs of life of the processes of a run.

In: where a process stands. Out: `processes/<number>.json` in the run folder.
"""

import dataclasses
import json
import os
import pathlib

FOLDER = "processes"
# Exit status after another process is gone or hangs: the same command resumes.
EXIT_STATUS = 3
RUNNING, FINISHED, FAILED, CUT_OFF = "running", "finished", "failed", "cut off"


@dataclasses.dataclass(frozen=True)
class Beat:
    """The last sign of life of a process.

    Attributes:
      attempt: the same for all processes of one start of the run.
      number: of the process, from 0.
      host, pid: where it runs.
      place: what it does, in words.
      since: seconds it has been there.
      state: RUNNING; FINISHED; FAILED of its own; CUT_OFF by another's end.
      reason: sentence of a failure.
      status: exit status of a failure.
      count: beats so far.
      address: where the processes of this start meet; "" for one alone.
    """

    attempt: str
    number: int
    host: str
    pid: int
    place: str
    since: float = 0.0
    state: str = RUNNING
    reason: str = ""
    status: int = EXIT_STATUS
    count: int = 0
    address: str = ""

    def describe(self) -> str:
        """Who it is and where it stands."""
        who = f"process {self.number} ({self.host}, pid {self.pid})"
        return f"{who}: {self.place}, for {self.since:.0f} s"


def write_beat(workdir: pathlib.Path, beat: Beat) -> None:
    """Write a beat in place of the last one."""
    folder = workdir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{beat.number}.tmp"
    temporary.write_text(json.dumps(dataclasses.asdict(beat)), encoding="utf-8")
    os.replace(temporary, folder / f"{beat.number}.json")


def read_beat(workdir: pathlib.Path, number: int) -> Beat | None:
    """The last beat of a process; None without a file of one.

    A file system of many hosts may fail for a moment while a file is replaced.
    """
    path = workdir / FOLDER / f"{number}.json"
    try:
        return Beat(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
