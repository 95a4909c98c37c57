"""Single keys from a terminal, without waiting for a line to end.

In: a terminal on standard input. Out: one string per key: a character, or the arrow of
an arrow key. The terminal's settings come back however the block ends. Windows has no
`termios`: there `can_read_keys` is False.
"""

import contextlib
import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

try:
    import termios
except ImportError:  # Windows, see `can_read_keys`
    termios = None

# Last letter of an arrow key's escape sequence -> the key.
_ARROWS = {"A": "↑", "B": "↓", "C": "→", "D": "←"}
_SEQUENCE = r"\x1b[\[O][0-9;]*"
_KEY = re.compile(rf"{_SEQUENCE}[^0-9;]|.", re.DOTALL)
_UNFINISHED = re.compile(rf"(?:\x1b|{_SEQUENCE})\Z".encode())
# A sequence's bytes follow each other at once; a person's Escape key stands alone.
_SEQUENCE_SECONDS = 0.05
_END_OF_INPUT = "\x04"  # Ctrl-D


def can_read_keys() -> bool:
    """Whether a person sits at a terminal that sends keys and moves its cursor."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return termios is not None and on_terminal and not is_dumb


@contextlib.contextmanager
def open_keyboard() -> Iterator[Iterator[str]]:
    """Keys pressed from here on, unseen on the screen; Ctrl-D ends them.

    Ctrl-C raises KeyboardInterrupt as ever, SIGTERM raises SystemExit. What is typed
    before the block and left over after it is dropped.
    """
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    previous = signal.signal(signal.SIGTERM, _exit)
    try:
        mode = termios.tcgetattr(terminal)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        # A read waits for one byte, for as long as it takes.
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(terminal, termios.TCSAFLUSH, mode)
        yield read_keys(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
        signal.signal(signal.SIGTERM, previous)


def read_keys(source: int) -> Iterator[str]:
    """Keys from a file descriptor until its end, or Ctrl-D.

    Yields:
      A character, an arrow, or the whole escape sequence of any other special key.
    """
    while typed := os.read(source, 1024):
        while _UNFINISHED.search(typed) and _is_ready(source):
            if not (more := os.read(source, 1024)):
                break
            typed += more
        for key in _KEY.findall(typed.decode(errors="replace")):
            if key == _END_OF_INPUT:
                return
            yield _ARROWS.get(key[-1], key) if len(key) > 1 else key


def _is_ready(source: int) -> bool:
    return bool(select.select([source], [], [], _SEQUENCE_SECONDS)[0])


def _exit(number: int, frame: object) -> NoReturn:
    del frame
    sys.exit(128 + number)
