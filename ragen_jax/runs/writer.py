"""Files of a run beside its checkpoints: metrics and sample episodes.

`metrics.jsonl` (one line per iteration) and `trajectories/*.jsonl` (one file per logged
iteration, one line per episode) are the record; sinks such as TensorBoard's event file
show it. Resuming cuts the record back to the checkpoint's iteration, so that an
interrupted run leaves the files of an uninterrupted one. Reading is `runs.reader`.
"""

import fcntl
import json
import math
import os
import pathlib
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.runs.reader import read_metrics
from ragen_jax.runs.sinks.base import OpenedRun
from ragen_jax.runs.sinks.opened import Sinks

# Significant digits of the numbers in a list: enough for a histogram, and short.
_DIGITS = 5

# Files of episodes in `trajectories/`, and the temporary file of a killed process.
_EPISODES_FILE = re.compile(r"iteration_(\d{6,})\.jsonl")
_TORN_EPISODES_FILE = re.compile(r"\.iteration_\d{6,}\.jsonl\..*tmp")


def open_workdir(workdir: pathlib.Path) -> int:
    """Create the run folder if necessary, and lock it against a second process.

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
    # Another process or thread may write the same file.
    writer = f"{os.getpid()}-{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}.{writer}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class RunWriter:
    """Appends to the record of one run.

    Args:
      workdir: the run folder, locked by the caller.
      after: last iteration of an existing record that is kept; -1 keeps none.
      sinks: names of `logging.sinks`, which are shown the record, too.
      run_id, settings, games: for the sinks, see `OpenedRun`.

    Raises:
      ValueError: see `load_sinks`.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        *,
        after: int,
        sinks: Sequence[str] = (),
        run_id: str = "",
        settings: Mapping[str, Any] | None = None,
        games: Sequence[str] = (),
    ):
        self._folder = workdir / "trajectories"
        records = [r for r in read_metrics(workdir) if r["iteration"] <= after]
        text = "".join(_line(record) for record in records)
        write_text_atomically(workdir / "metrics.jsonl", text)
        for path in self._folder.glob(".iteration_*"):
            if _TORN_EPISODES_FILE.fullmatch(path.name):
                path.unlink()
        for name in ("metrics.jsonl", "config.json"):
            for path in workdir.glob(f".{name}.*tmp"):
                path.unlink()
        for iteration, path in self._episode_files().items():
            if iteration > after:
                path.unlink()
        for path in workdir.glob("events.out.tfevents.*"):
            path.unlink()
        self._metrics = (workdir / "metrics.jsonl").open("a", encoding="utf-8")
        run = OpenedRun(
            workdir, run_id, settings or {}, games, records, self._episode_files()
        )
        self._sinks = Sinks(sinks, run)

    def scalars(
        self,
        iteration: int,
        metrics: Mapping[str, float],
        distributions: Mapping[str, Sequence[float]] | None = None,
    ) -> list[str]:
        """Append one line of metrics.

        Numbers that are not finite are written as null; distributions are lists, from
        which such numbers are left out.

        Returns:
          Names of the metrics and distributions that hold such numbers.
        """
        record = {"iteration": iteration, "time": time.time()}
        record |= {name: finite_or_none(value) for name, value in metrics.items()}
        not_finite = [name for name in metrics if record[name] is None]
        for name, values in (distributions or {}).items():
            rounded = [finite_or_none(f"{float(x):.{_DIGITS}g}") for x in values]
            record[name] = [x for x in rounded if x is not None]
            if len(record[name]) < len(rounded):
                not_finite.append(name)
        self._metrics.write(_line(record))
        self._metrics.flush()
        self._sinks.write(record)
        return not_finite

    def episodes(self, iteration: int, episodes: Sequence[Mapping]) -> None:
        """Write the iteration's sample episodes, one JSON line each.

        Numbers that are not finite are written as null.
        """
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"iteration_{iteration:06d}.jsonl"
        episodes = [_without_non_finite(episode) for episode in episodes]
        write_text_atomically(path, "".join(map(_line, episodes)))
        self._sinks.episodes(iteration, episodes)

    def sync(self) -> None:
        """Make the record durable; called before a checkpoint that relies on it."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        self._sinks.flush()

    def close(self) -> None:
        try:
            self._metrics.close()
        finally:
            self._sinks.close()

    def _episode_files(self) -> dict[int, pathlib.Path]:
        """Files of episodes by iteration, oldest first."""
        matches = (
            (_EPISODES_FILE.fullmatch(path.name), path)
            for path in self._folder.glob("iteration_*")
        )
        return dict(sorted((int(m.group(1)), path) for m, path in matches if m))


class NoWriter:
    """The record of a process that is not the first, which writes for all."""

    def scalars(self, *_) -> list[str]:
        return []

    def episodes(self, *_) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


def finite_or_none(value: float | str) -> float | None:
    """A number as a float, None in place of infinities and not-a-number."""
    number = float(value)
    return number if math.isfinite(number) else None


def _without_non_finite(value: Any) -> Any:
    """A copy of JSON-like data with None in place of numbers that JSON has not."""
    if isinstance(value, Mapping):
        return {name: _without_non_finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_non_finite(part) for part in value]
    return finite_or_none(value) if isinstance(value, float) else value


def _line(record: Mapping) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
