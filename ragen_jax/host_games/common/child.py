"""Child processes that may hang or die: what they write in time, and their end.

In: a command. Out: the bytes of its process, or why there are none. Knows nothing of
the contents.
"""

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from typing import Any

# Seconds between two checks whether a silent process has ended: its child may hold the
# pipe open.
_POLL_SECONDS = 0.1
_PIECE = 1 << 16

# Times that the descendants of a process are looked for: killed ones may have started
# others meanwhile.
_ROUNDS = 20


class Child:
    """A process in a new session, and what it has written.

    Args:
      command: what is run, with pipes and without buffers.
      options: others of `subprocess.Popen`.
    """

    def __init__(self, command: Sequence[str], **options: Any):
        # All that the process starts inherits it, also what leaves its session.
        self._mark = f"RAGEN_JAX_CHILD_{uuid.uuid4().hex}"
        options["env"] = options.get("env", os.environ) | {self._mark: "1"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            **options,
        )
        self._unread = b""

    def write(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
          BrokenPipeError: it has ended.
        """
        # A pipe takes a part of much data at a time.
        while data:
            data = data[self.process.stdin.write(data) :]

    def read(self, size: int, deadline: float) -> bytes:
        """Read `size` bytes.

        Args:
          size: in bytes.
          deadline: of `time.monotonic`.

        Raises:
          TimeoutError: they did not come in time.
          EOFError: the process has ended.
        """
        while len(self._unread) < size:
            self._unread += self._more(deadline)
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def read_line(self, deadline: float, max_bytes: int) -> bytes:
        """The next line, without its end.

        Raises:
          TimeoutError, EOFError: see `read`.
          ValueError: it is longer than `max_bytes`.
        """
        while b"\n" not in self._unread:
            if len(self._unread) > max_bytes:
                raise ValueError(f"it is longer than {max_bytes:,} bytes")
            self._unread += self._more(deadline)
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def close_stdin(self) -> None:
        """Close its standard input, so that it may exit by itself."""
        self.process.stdin.close()

    def kill(self, deadline: float | None = None) -> None:
        """End the process and all that it has started.

        Left is what has lost its parent and has another session and environment.

        Args:
          deadline: of `time.monotonic`, until which it may exit by itself; None: now.
        """
        # While it lives: what has another environment is found by its parents alone.
        descendants = _descendants(self.process.pid)
        if deadline is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(deadline - time.monotonic(), 0.0))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for _ in range(_ROUNDS):
            if not _kill_marked(self._mark.encode()):
                break
        for handle in descendants:
            # It may have ended, or belong to somebody else.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self.process.stdin.close()
        self.process.stdout.close()

    def _more(self, deadline: float) -> bytes:
        pipe = self.process.stdout
        # Unlike `select`, it takes any number of a pipe.
        poller = select.poll()
        poller.register(pipe, select.POLLIN)
        while True:
            has_ended = self.process.poll() is not None
            left = max(deadline - time.monotonic(), 0.0)
            wait = 0.0 if has_ended else min(left, _POLL_SECONDS)
            if poller.poll(1000 * wait):
                data = os.read(pipe.fileno(), _PIECE)
                if not data:
                    raise EOFError
                return data
            if has_ended:
                raise EOFError
            if not left:
                raise TimeoutError


def _descendants(pid: int) -> list[int]:
    """Handles of the processes below one, which stay theirs when a number is reused.

    Linux alone tells parents under `/proc`; elsewhere none is found.
    """
    children: dict[int, list[int]] = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            # After its name, which may hold blanks and brackets: state, parent.
            after = (folder / "stat").read_bytes().rpartition(b")")[2]
            children.setdefault(int(after.split()[1]), []).append(int(folder.name))
    handles, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        for child in below:
            # It may have ended, or the kernel be older than 5.3.
            with contextlib.suppress(OSError):
                handles.append(os.pidfd_open(child))
    return handles


def _kill_marked(mark: bytes) -> bool:
    """Kill the processes whose environment has a mark; whether there were any.

    Linux lets environments be read, under `/proc`; elsewhere none is found.
    """
    found = False
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        # It may end meanwhile, or belong to somebody else.
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
                found = True
    return found
