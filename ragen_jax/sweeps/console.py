"""Console of a sweep: a line when a run begins and one when it ends, and bars.

On a terminal each run that trains has a bar with its stage. Iterations are not printed:
they are in the run folders, and a sweep has thousands. Runs may be on threads.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ragen_jax.diagnostics import timing
from ragen_jax.runs.progress import Clock, open_console
from ragen_jax.terminal import fold


class SweepDisplay:
    """Console of all runs of a sweep. Use it as a context manager.

    Args:
      num_iterations: of every run that is not finished yet, by its title.
    """

    def __init__(self, num_iterations: Mapping[str, int]):
        self._console = open_console(soft_wrap=True)
        self._lock = threading.Lock()
        # Iterations that remain, by run, and those done since `_began`.
        self._left, self._num_done = dict(num_iterations), 0
        self._began: float | None = None
        self.bars = Progress(
            TextColumn("{task.fields[run]}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("[bold]{task.description}"),
            Clock(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> "SweepDisplay":
        self.bars.start()
        return self

    def __exit__(self, *_) -> None:
        self.bars.stop()

    def say(self, text: str) -> None:
        """Print lines above the bars."""
        if self._console.is_terminal:
            text = fold(text, self._console.width)
        self._console.print(text, markup=False)

    def expect(self, title: str, left: int, *, num_done: int = 0) -> None:
        """Note that a run has done `num_done` more iterations, and `left` remain."""
        with self._lock:
            self._left[title] = left
            if self._began is None:
                # The first iteration compiles, later ones do not.
                self._began = time.monotonic() if num_done else None
            else:
                self._num_done += num_done

    def time_left(self) -> str:
        """Time until all runs have ended, in words; empty before it is known."""
        with self._lock:
            num_left = sum(self._left.values())
            if not self._num_done or not num_left:
                return ""
            seconds = time.monotonic() - self._began
            return "; " + timing.time_left(
                seconds, num_done=self._num_done, num_left=num_left
            )


class RunDisplay:
    """Console of one run of a sweep, in place of `runs.console.Display`.

    Args:
      sweep: display of all runs.
      title: of the run.
      on_iteration: called after every iteration, but not after the first evaluation.
      on_stage: called with the stage when one begins.
      start, total: iterations done before, and in all.
    """

    def __init__(
        self,
        sweep: SweepDisplay,
        title: str,
        on_iteration: Callable[[], None],
        on_stage: Callable[[str], None],
        *,
        start: int,
        total: int,
    ):
        self._sweep, self._title = sweep, title
        self._on_iteration, self._on_stage = on_iteration, on_stage
        self._done, self._total = start, total
        self._bar = sweep.bars.add_task(
            "", total=total, completed=start, run=title, since=None
        )

    def __enter__(self) -> "RunDisplay":
        self._sweep.expect(self._title, self._total - self._done)
        return self

    def __exit__(self, *_) -> None:
        self._sweep.bars.remove_task(self._bar)

    def say(self, text: str) -> None:
        """Print lines, the first of them after the run's title."""
        self._sweep.say(f"{self._title}: {text}")

    def conclude(self, text: str) -> None:
        """Prints nothing: the sweep reports how its runs ended."""

    @contextlib.contextmanager
    def timed(self, timings: dict[str, float], stage: str) -> Iterator[None]:
        """`timing.timed`, with the stage and its clock in the run's bar."""
        bars = self._sweep.bars
        self._on_stage(f"{self._title}, iteration {self._done + 1}, {stage}")
        bars.update(self._bar, description=stage, since=time.monotonic())
        with timing.timed(timings, stage):
            yield
        bars.update(self._bar, description="", since=None)

    def iteration(
        self, done: int, metrics: Mapping[str, float], news: Sequence[str] = ()
    ) -> None:
        """Move the bar and print news, for example alarms."""
        del metrics
        for text in news:
            self.say(text)
        if done > self._done:
            left, num_done = self._total - done, done - self._done
            self._sweep.expect(self._title, left, num_done=num_done)
            self._done = done
            self._sweep.bars.update(self._bar, completed=done)
            self._on_iteration()
