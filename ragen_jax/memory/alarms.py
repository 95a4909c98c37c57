"""Standard error without the compiler's alarms about slow compilation.

XLA logs an alarm when a program takes two minutes to compile or a constant a second to
fold, and suggests to file a bug. For a large network on a CPU both are usual. They
cannot be switched off (openxla/xla issue 9828), and C++ writes to the file descriptor.
So a second process reads standard error and passes on everything else. It is a process
and not a thread, so that the last message of a crash is passed on, too.

Run as a program, this file is that process: it filters its standard input.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator

# First line of an alarm, in any of the formats of log lines.
_BEGINNING = re.compile(rb"^.*\bslow_operation_alarm\.cc:\d+\]")
# An alarm ends with its second rule, or, where it has none, with this advice.
_RULE, _ADVICE = b"*" * 32, b"attach the results."


@contextlib.contextmanager
def hidden_alarms() -> Iterator[None]:
    """Filter alarms from standard error while the block runs."""
    sys.stderr.flush()
    original = os.dup(2)
    passing = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=original
    )
    os.dup2(passing.stdin.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
        passing.stdin.close()
        passing.wait()


def without_alarms(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a log that are not part of an alarm."""
    num_rules = None  # of the alarm that is being read
    for line in lines:
        if _BEGINNING.match(line):
            num_rules = 0
        elif num_rules is None:
            yield line
        elif line.startswith(_RULE):
            num_rules += 1
            num_rules = None if num_rules == 2 else num_rules
        elif num_rules == 0 and line.rstrip().endswith(_ADVICE):
            num_rules = None


def main() -> None:
    """Filter standard input line by line."""
    # Ctrl-C is for the process that writes; this one ends with its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in without_alarms(sys.stdin.buffer):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
