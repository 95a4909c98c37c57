"""Console of a run: a line per iteration, and a live bar on a terminal."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ragen_jax import timing
from ragen_jax.runs.metrics import METRICS
from ragen_jax.tables import Metric

_FORMATS = {"share": "{:.1%}", "seconds": "{:.1f}s", "number": "{:.3f}"}


class Display:
    """Prints each iteration and, on a terminal, a bar with the time left.

    Use it as a context manager.

    Args:
      env_names: environments trained on.
      start, total: iterations done before, and in all.
      metrics: declarations; those with a `console` label are printed.
    """

    def __init__(
        self,
        env_names: Sequence[str],
        *,
        start: int,
        total: int,
        metrics: Sequence[Metric] = METRICS,
    ):
        self._env_names = env_names
        self._metrics = metrics
        self._console = Console(highlight=False, soft_wrap=True)
        self._start, self._total = start, total
        # The first iteration and when it was done: it compiles, later ones do not.
        self._first: tuple[int, float] | None = None
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(
            "training", total=total, completed=start, left=""
        )

    def __enter__(self) -> "Display":
        self._bar.start()
        if len(self._env_names) > 1:
            self.say(f"side by side: {' / '.join(self._env_names)}")
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text)

    def iteration(
        self, done: int, metrics: Mapping[str, float], news: Sequence[str] = ()
    ) -> None:
        """Print what was compiled, the metrics of iteration `done`, and news."""
        if compiled := timing.describe(metrics):
            self.say(compiled)
        parts = [*self._values(metrics), left := self._time_left(done)]
        # In a file an iteration is one line; a terminal has only so many columns.
        width = self._console.width if self._console.is_terminal else math.inf
        for line in _wrap(f"{done:5d}/{self._total}", filter(None, parts), width):
            self.say(line)
        for text in news:
            self.say(text)
        self._bar.update(self._task, completed=done, left=left)

    def _values(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Label and value of every metric shown; of all environments side by side."""
        for metric in self._metrics:
            for view in metric.views:
                name = view.name or metric.name
                # A name without `{env}` is one name for all environments.
                names = dict.fromkeys(name.replace("{env}", e) for e in self._env_names)
                values = [
                    _FORMATS[metric.kind].format(metrics[n])
                    for n in names
                    if view.console and n in metrics
                ]
                if values:
                    yield f"{view.console} {' / '.join(values)}"

    def _time_left(self, done: int) -> str:
        now = time.monotonic()
        if self._first is None:
            # The evaluation before training is shown as iteration `start`.
            self._first = (done, now) if done > self._start else None
            return ""
        at, then = self._first
        return timing.time_left(
            now - then, num_done=done - at, num_left=self._total - done
        )


def _wrap(start: str, parts: Iterable[str], width: float) -> list[str]:
    """Lines of at most `width` columns: the start, then parts, none of them torn."""
    lines = [start]
    for part in parts:
        if len(lines[-1]) + 2 + len(part) > width and lines[-1].strip():
            lines.append(" " * len(start))
        lines[-1] += f"  {part}"
    return lines
