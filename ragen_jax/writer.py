"""What a run leaves on disk, next to its checkpoints.

`metrics.jsonl` (one line per iteration) and `trajectories/*.jsonl` (one file per logged
iteration, one line per episode) are the record; the TensorBoard event file is a view of
them. Resuming cuts the record back to the checkpoint's iteration and draws the view
anew, so that an interrupted run leaves the files of an uninterrupted one.
"""

import collections
import fcntl
import json
import math
import os
import pathlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from tensorboardX import SummaryWriter

# Metrics under these names tell how long things took; they differ between equal runs.
TIMING_PREFIXES = ("timing_s/", "perf/", "time")

# Sample episodes shown as text in TensorBoard per iteration.
_TENSORBOARD_EPISODES = 2

# Our files in `trajectories/`, and what a killed process leaves of one.
_EPISODES_FILE = re.compile(r"iteration_(\d{6,})\.jsonl")
_TORN_EPISODES_FILE = re.compile(r"\.iteration_\d{6,}\.jsonl\.tmp")


def open_workdir(workdir: pathlib.Path) -> int:
    """Create the run folder if need be and lock it against a second process.

    Returns:
      A file descriptor; the lock lasts until it is closed or the process ends.

    Raises:
      ValueError: the folder cannot be written, or another process works in it.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(workdir / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise ValueError(
            f"cannot write to the run folder {workdir}: {error.strerror}; choose "
            "another --workdir"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ValueError(
            f"another process is working in {workdir}; wait for it or choose another "
            "--workdir"
        ) from error
    return descriptor


def write_text_atomically(path: pathlib.Path, text: str) -> None:
    """Write a whole file or nothing: a temporary neighbour, then a rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_metrics(workdir: pathlib.Path) -> list[dict]:
    """Complete lines of `metrics.jsonl`, oldest first; a torn last line is left out."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


class RunWriter:
    """Appends to the record of one run.

    Args:
      workdir: the run folder, locked by the caller.
      after: last iteration to keep of what is already there; -1 keeps nothing.
      tensorboard: also write an event file.
    """

    def __init__(self, workdir: pathlib.Path, *, after: int, tensorboard: bool):
        self._workdir = workdir
        self._folder = workdir / "trajectories"
        kept = [r for r in read_metrics(workdir) if r["iteration"] <= after]
        text = "".join(_line(record) for record in kept)
        write_text_atomically(workdir / "metrics.jsonl", text)
        for path in self._folder.glob(".iteration_*"):
            if _TORN_EPISODES_FILE.fullmatch(path.name):
                path.unlink()
        for iteration, path in self._episode_files().items():
            if iteration > after:
                path.unlink()
        for path in workdir.glob("events.out.tfevents.*"):
            path.unlink()
        self._metrics = (workdir / "metrics.jsonl").open("a", encoding="utf-8")
        self._events = self._draw_events(kept) if tensorboard else None

    def scalars(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Append one line of metrics. Non-finite numbers are written as null."""
        record = {"iteration": iteration, "time": time.time()}
        record |= {
            k: (float(v) if math.isfinite(v) else None) for k, v in metrics.items()
        }
        self._metrics.write(_line(record))
        self._metrics.flush()
        if self._events:
            self._add_scalars(self._events, record)

    def episodes(self, iteration: int, episodes: Sequence[Mapping]) -> None:
        """Write the iteration's sample episodes, one JSON line each."""
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"iteration_{iteration:06d}.jsonl"
        write_text_atomically(path, "".join(_line(episode) for episode in episodes))
        if self._events:
            self._add_episodes(self._events, iteration, episodes)

    def sync(self) -> None:
        """Make the record durable; called before a checkpoint that relies on it."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        if self._events:
            self._events.flush()

    def close(self) -> None:
        self._metrics.close()
        if self._events:
            self._events.close()

    def _draw_events(self, records: Iterable[Mapping]) -> SummaryWriter:
        events = SummaryWriter(str(self._workdir), flush_secs=10)
        for record in records:
            self._add_scalars(events, record)
        for iteration, path in self._episode_files().items():
            text = path.read_text(encoding="utf-8")
            # Not splitlines: a reply may hold other line separators than "\n".
            episodes = [json.loads(line) for line in text.split("\n")[:-1]]
            self._add_episodes(events, iteration, episodes)
        return events

    def _episode_files(self) -> dict[int, pathlib.Path]:
        """Our files in `trajectories/` by iteration, oldest first."""
        found = (
            (_EPISODES_FILE.fullmatch(path.name), path)
            for path in self._folder.glob("iteration_*")
        )
        return dict(sorted((int(m.group(1)), path) for m, path in found if m))

    @staticmethod
    def _add_scalars(events: SummaryWriter, record: Mapping) -> None:
        for name, value in record.items():
            if name not in ("iteration", "time") and value is not None:
                events.add_scalar(name, value, record["iteration"], record["time"])

    @staticmethod
    def _add_episodes(events: SummaryWriter, iteration: int, episodes) -> None:
        counts = collections.Counter()
        for episode in episodes:
            # Only runs of several environments name them.
            place = f"{episode['environment']}/" if "environment" in episode else ""
            index = counts[place]
            counts[place] += 1
            if index < _TENSORBOARD_EPISODES:
                text = "\n".join(f"    {line}" for line in _transcript(episode))
                events.add_text(f"episodes/{place}{index}", text, iteration)


def _transcript(episode: Mapping) -> list[str]:
    """An episode as lines of text, for reading."""
    lines = []
    for turn in episode["turns"]:
        lines += turn["observation"].splitlines()
        lines += turn["reply"].splitlines()
        paid = ("reward", "penalty", "bonus")
        lines.append("  ".join(f"{name} {turn[name]:g}" for name in paid))
    lines.append(f"return {episode['return']:g}  success {episode['success']}")
    return lines


def _line(record: Mapping) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
