"""The record of a warm start: every step to metrics.jsonl, a line now and then.

In: the stats of steps, on the device. Out: their numbers in the run folder, and
averages since the last line on the console.
"""

import math
import pathlib
import time
from collections.abc import Mapping

import jax
from jaxtyping import Array

from ragen_jax.runs import writer


class LessonLog:
    """Every step to metrics.jsonl, averages since the last line to the console.

    Steps are fetched from the device a few at a time, so that it never waits for us.
    """

    def __init__(
        self, workdir: pathlib.Path, *, start: int, total: int, every: int, say
    ):
        self._writer = writer.RunWriter(workdir, after=start, tensorboard=False)
        self._start, self._total, self._every, self._say = start, total, every, say
        self._began = time.monotonic()
        self._on_device: dict[int, Mapping[str, Array]] = {}
        # What an interrupted run had not averaged yet is in the record; null is NaN.
        shown = start - start % every
        self._unshown: list[Mapping[str, float]] = [
            {k: math.nan if v is None else v for k, v in record.items()}
            for record in writer.read_metrics(workdir)
            if record["iteration"] > shown
        ]

    def add(self, done: int, stats: Mapping[str, Array]) -> None:
        """Take the stats of step `done`; show a line when one is due."""
        self._on_device[done] = stats
        if done % self._every == 0 or done == self._total:
            self._fetch()
            self._show(done, stats)

    def sync(self) -> None:
        """Make the record durable; called before a checkpoint that relies on it."""
        self._fetch()
        self._writer.sync()

    def close(self) -> None:
        self._writer.close()

    def _fetch(self) -> None:
        for step, stats in jax.device_get(self._on_device).items():
            self._writer.scalars(step, stats)
            self._unshown.append(stats)
        self._on_device = {}

    def _show(self, done: int, names) -> None:
        rows, self._unshown = self._unshown, []
        means = {k: sum(row[k] for row in rows) / len(rows) for k in names}
        seconds = time.monotonic() - self._began
        left = round(seconds / (done - self._start) * (self._total - done))
        players = "  ".join(
            f"{k.removeprefix('demonstrated/')} {v:.0%}"
            for k, v in means.items()
            if k.startswith("demonstrated/")
        )
        self._say(
            f"{done:5d}/{self._total}  loss {means['loss']:.3f}  accuracy "
            f"{means['accuracy']:.1%}  demonstrators: {players}  {seconds:.0f}s, "
            f"{left // 60}m{left % 60:02d}s left"
        )
