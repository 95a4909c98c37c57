"""What a person sees while a run works: a live display, or plain lines without one."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ragen_jax import timing

# metric name -> (label, format); `{env}` is the environment's name. Several
# environments have their numbers side by side.
SHOWN = {
    "train/{env}/success": ("success", "{:.1%}"),
    "train/{env}/episodic_return": ("return", "{:.2f}"),
    "actor/entropy": ("entropy", "{:.3f}"),
    "timing_s/rollout": ("rollout", "{:.1f}s"),
    "timing_s/update": ("update", "{:.1f}s"),
    "timing_s/diagnostics": ("diagnostics", "{:.1f}s"),
    "val-env/{env}/success": ("held-out", "{:.1%}"),
}


class Display:
    """Shows one line per iteration, and a bar with the time left on a terminal.

    Use it as a context manager.

    Args:
      env_names: of the environments, as metrics call them.
      start, total: iterations already done, and to be done in all.
      shown: the metrics of a line, see `SHOWN`.
    """

    def __init__(
        self,
        env_names: Sequence[str],
        *,
        start: int,
        total: int,
        shown: Mapping[str, tuple[str, str]] = SHOWN,
    ):
        self._env_names, self._shown = env_names, shown
        self._console = Console(highlight=False, soft_wrap=True)
        self._start, self._total = start, total
        # When which iteration was done, from the first on: that one compiles.
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
        """Show what iteration `done` compiled, its metrics, what else there is."""
        if compiled := timing.describe(metrics):
            self.say(compiled)
        words = []
        for name, (label, form) in self._shown.items():
            # Not all names hold `{env}`: one entry for each that is left.
            names = dict.fromkeys(name.format(env=env) for env in self._env_names)
            values = [form.format(metrics[n]) for n in names if n in metrics]
            if values:
                words.append(f"{label} {' / '.join(values)}")
        left = self._time_left(done)
        self.say(f"{done:5d}/{self._total}  {'  '.join(words)}  {left}")
        for text in news:
            self.say(text)
        self._bar.update(self._task, completed=done, left=left)

    def _time_left(self, done: int) -> str:
        now = time.monotonic()
        if self._first is None:
            # What is shown before any iteration is an evaluation, number `start`.
            self._first = (done, now) if done > self._start else None
            return ""
        at, then = self._first
        seconds = round((now - then) / (done - at) * (self._total - done))
        return f"{seconds // 60}m{seconds % 60:02d}s left"
