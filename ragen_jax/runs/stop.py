"""SIGINT (Ctrl-C) and SIGTERM, answered at once even while XLA compiles.

Python runs its signal handlers between bytecodes of the main thread, which may be
inside one call of XLA for minutes. The C part of a handler runs at once: it writes the
signal's number into a pipe, which a thread reads here.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from ragen_jax.devices import exchange

# Between signals that are one request.
SAME_SECONDS = 0.2
_SHOW_CURSOR = "\x1b[?25h"


class StopRequest:
    """A request to stop, made by a signal and read between steps.

    The first signal is announced at once; the second ends the process at once, which
    loses no more than the steps after the last checkpoint. Signals within
    `SAME_SECONDS` of the first are the first: `timeout` and batch systems signal a
    process and then its group. Use it as a context manager, in the main thread.

    Args:
      say: prints a line.
    """

    def __init__(self, say: Callable[[str], None] = print):
        self._say = say
        self._signal: int | None = None
        self._announced_at: float | None = None
        self._stack = contextlib.ExitStack()

    @property
    def requested(self) -> bool:
        return self._signal is not None

    def agree(self) -> bool:
        """Whether a signal came to any process of the run; together."""
        signals = exchange.gather(self._signal)
        agreed = next((n for n in signals if n is not None), None)
        if agreed is not None and self._signal is None:
            self._signal = agreed
        # Not `requested`: other processes do not know of a signal that came meanwhile.
        return agreed is not None

    @property
    def exit_status(self) -> int:
        """128 plus the signal's number, as shells report it."""
        return 128 + (self._signal or 0)

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGINT):
            previous = signal.signal(number, self._handle)
            self._stack.callback(signal.signal, number, previous)
        self._stack.enter_context(_watched(self._request))
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def _handle(self, number, frame) -> None:
        """In the main thread, where the loop asks: it need not wait for the other."""
        del frame
        self._signal = number

    def _request(self, number: int) -> None:
        """In the thread that reads the pipe."""
        now = time.monotonic()
        if self._announced_at is not None:
            if now - self._announced_at > SAME_SECONDS:
                _end(number)
            return
        self._announced_at, self._signal = now, number
        # Whoever read the output may have got the signal, too.
        with contextlib.suppress(BrokenPipeError):
            self._say("stopping after this iteration; Ctrl-C again to stop now")


@contextlib.contextmanager
def prompt_interrupt(grace_seconds: float | None = 0.5) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt in the block; where it cannot, the process ends.

    Args:
      grace_seconds: until the process ends although the main thread is still inside a
        call; None: only a second Ctrl-C does that.
    """
    timers: list[threading.Timer] = []

    def interrupt(number: int) -> None:
        if number != signal.SIGINT:
            return
        if timers:
            _end(number)
        timer = threading.Timer(grace_seconds or 0.0, _end, [number])
        timer.daemon = True
        timers.append(timer)
        if grace_seconds is not None:
            timer.start()

    with _watched(interrupt):
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()


@contextlib.contextmanager
def stop_when_clean() -> Iterator[None]:
    """SIGINT and SIGTERM raise in the block, which then removes what it has begun.

    They raise KeyboardInterrupt and SystemExit. Later ones are ignored, so that nothing
    ends the process before the block is left; a call of C returns first.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(number, frame):
        del frame
        for later in numbers:
            signal.signal(later, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    # Without the pipe no thread hears of a signal, see `prompt_interrupt`.
    pipe = signal.set_wakeup_fd(-1)
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)


@contextlib.contextmanager
def _watched(on_signal: Callable[[int], None]) -> Iterator[None]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while number := os.read(reader, 1):
            on_signal(number[0])
        os.close(reader)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writer)
        thread.join()


def _end(number: int) -> None:
    """End the process as after a kill: every file is whole or not there."""
    if sys.stdout.isatty():
        # A progress bar has hidden it.
        sys.stdout.write(f"{_SHOW_CURSOR}\n")
    print("stopped", file=sys.stderr, flush=True)
    os._exit(128 + number)
