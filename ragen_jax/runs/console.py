"""Console of a run: a line per iteration, and a live bar on a terminal.

The bar names the stage that runs, with its clock. In a log a stage that compiles is
announced once it has taken a few seconds.
"""

import contextlib
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ragen_jax.devices import exchange
from ragen_jax.diagnostics import timing
from ragen_jax.registry.metrics import Metric
from ragen_jax.runs.metrics import METRICS
from ragen_jax.runs.progress import Clock, about, announced_late, open_console
from ragen_jax.terminal import fit, fold

# Seconds in which two cores compile one layer of a stage: only for a rough forecast.
_SECONDS_PER_LAYER = 4.0

_FORMATS = {"share": "{:.1%}", "seconds": "{:.1f}s", "number": "{:.3f}"}


class Display:
    """Prints each iteration and, on a terminal, a bar with the time left.

    Use it as a context manager.

    Args:
      env_names: environments trained on.
      start, total: iterations done before, and in all.
      metrics: declarations; those with a `console` label are printed.
      num_layers: of the network, for a forecast of how long programs compile.
      on_stage: told the iteration and the stage in which every stage begins.
    """

    def __init__(
        self,
        env_names: Sequence[str],
        *,
        start: int,
        total: int,
        metrics: Sequence[Metric] = METRICS,
        num_layers: int = 1,
        on_stage: Callable[[str], None] = lambda _: None,
    ):
        self._env_names = env_names
        self._metrics = metrics
        # One process speaks for all.
        self._console = open_console(soft_wrap=True, quiet=not exchange.is_first())
        self._on_stage, self._done = on_stage, start
        self._start, self._total = start, total
        # The first iteration and when it was done: it compiles, later ones do not.
        self._first: tuple[int, float] | None = None
        self._compile_seconds = _SECONDS_PER_LAYER * num_layers
        # Stages that have run here, and so are compiled.
        self._known_stages: set[str] = set()
        self._bar = Progress(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[bold]{task.description}"),
            Clock(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(
            "", total=total, completed=start, left="", since=None
        )

    def __enter__(self) -> "Display":
        self._bar.start()
        if len(self._env_names) > 1:
            self.say(f"side by side: {' / '.join(self._env_names)}")
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print lines above the bar, folded between words where a terminal ends."""
        if self._console.is_terminal:
            text = fold(text, self._console.width)
        self._console.print(text)

    def conclude(self, text: str) -> None:
        """Print how the run has ended and what to do next."""
        self.say(text)

    @contextlib.contextmanager
    def timed(self, timings: dict[str, float], stage: str) -> Iterator[None]:
        """`timing.timed`, with the stage and its clock in the bar."""
        text = stage
        self._on_stage(f"iteration {self._done + 1} of {self._total}, {stage}")
        late = contextlib.nullcontext()
        if stage not in self._known_stages:
            # What a run has compiled before is in the cache.
            what = "loading or compiling" if self._start else "compiling"
            text += f": {what} first, {about(self._compile_seconds)}"
            late = announced_late(lambda: self._log(text))
        self._bar.update(self._task, description=text, since=time.monotonic())
        with late, timing.timed(timings, stage):
            yield
        self._known_stages.add(stage)
        self._bar.update(self._task, description="", since=None)

    def _log(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text)

    def iteration(
        self, done: int, metrics: Mapping[str, float], news: Sequence[str] = ()
    ) -> None:
        """Print what was compiled, the metrics of iteration `done`, and news."""
        self._done = done
        if compiled := timing.describe(metrics):
            self.say(compiled)
        left = self._time_left(done)
        # In a file an iteration is one line; a terminal has few columns, and
        # the bar has the time left.
        width = self._console.width if self._console.is_terminal else math.inf
        shown = [*self._values(metrics)]
        values = [text for kind, text in shown if kind != "seconds"]
        spare = [text for kind, text in shown if kind == "seconds"]
        if not self._console.is_terminal and left:
            spare.append(left)
        *lines, last = _wrap(f"{done:5d}/{self._total}", values, width)
        # Seconds without room are in metrics.jsonl.
        for line in (*lines, fit(last, spare, width)):
            self.say(line)
        for text in news:
            self.say(text)
        self._bar.update(self._task, completed=done, left=left)

    def _values(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """Kind and text of every metric shown; all environments side by side."""
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
                label = view.console
                if label == "held-out" and self._has_known_levels(metrics):
                    label = "validation"
                if values:
                    yield metric.kind, f"{label} {' / '.join(values)}"

    def _has_known_levels(self, metrics: Mapping[str, float]) -> bool:
        """Whether training may play the validation levels: a game has too few."""
        names = (f"val-env/{name}/held_out" for name in self._env_names)
        return any(metrics.get(name) == 0 for name in names)

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


def command_name(name: str) -> str:
    """How the user starts a command: by the console command, or as a module."""
    program = pathlib.Path(sys.argv[0].split(" ")[0]).name
    if program == "ragen-jax":
        return f"ragen-jax {name}"
    return f"python -m launch.{name}"


def _wrap(start: str, parts: Iterable[str], width: float) -> list[str]:
    """Lines of at most `width` columns: the start, then parts, none of them torn."""
    lines = [start]
    for part in parts:
        if len(lines[-1]) + 2 + len(part) > width and lines[-1].strip():
            lines.append(" " * len(start))
        lines[-1] += f"  {part}"
    return lines
