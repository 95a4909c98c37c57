"""What a command is doing, with a clock: a moving line, or a line in a log.

On a terminal the line moves from the start and vanishes at the end. Elsewhere it is
printed once the work has taken `SILENT_SECONDS`. Either way on standard error, so that
what a command prints is the same however long it takes.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

SILENT_SECONDS = 3.0


class Clock(ProgressColumn):
    """Seconds since `since`, a field of the task; empty where it is None."""

    # Moves without an update of the task.
    max_refresh = None

    def render(self, task: Task) -> Text:
        since = task.fields.get("since")
        if since is None:
            return Text()
        minutes, seconds = divmod(int(time.monotonic() - since), 60)
        return Text(f"{minutes}:{seconds:02d}")


def open_console(**options: Any) -> Console:
    """A console that prints texts as they are: brackets and colons are no markup."""
    return _Console(highlight=False, markup=False, emoji=False, **options)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nothing reads the output any more: `launch.command` ends the process."""
        raise  # the error that rich handles


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Show what the block does while it runs."""
    console = open_console(stderr=True, soft_wrap=True)
    if not console.is_terminal:
        with announced_late(lambda: console.print(f"{text} ...")):
            yield
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), Clock()
    # What the block prints goes above the line, but into a file where one is given.
    on_terminal = sys.stdout.isatty()
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=on_terminal
    ) as progress:
        progress.add_task(text, total=None, since=time.monotonic())
        yield


@contextlib.contextmanager
def announced_late(announce: Callable[[], None]) -> Iterator[None]:
    """Call `announce` if the block takes longer than `SILENT_SECONDS`."""
    timer = threading.Timer(SILENT_SECONDS, announce)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def about(seconds: float) -> str:
    """A rough time in words: "about 20 seconds", "about 3 minutes"."""
    if seconds < 45:
        return f"about {max(round(seconds / 10), 1) * 10} seconds"
    minutes = round(seconds / 60)
    return "about a minute" if minutes <= 1 else f"about {minutes} minutes"
