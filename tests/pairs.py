"""Runs a command as two processes of one run, on one machine."""

import os
import signal
import socket
import subprocess
import time

from tests import commands

# How long a process may take to notice that the other one is gone.
END_SECONDS = 60


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


class Pair:
    """Two processes of one command.

    Args:
      words: of the command.
      others: words that the second process has in addition.
      cwd: of the second process.
      devices: of each.
    """

    def __init__(self, words, others=(), cwd=commands.ROOT, devices=(4, 4)):
        port, folders = free_port(), (commands.ROOT, cwd)
        self.processes = [
            subprocess.Popen(
                [
                    *words,
                    *(others if i else ()),
                    f"--distributed=localhost:{port},2,{i}",
                ],
                cwd=folders[i],
                env=commands.environment(devices=devices[i]),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for i in range(2)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def finish(self, timeout=600) -> list[subprocess.CompletedProcess]:
        """Wait for both; their results, with everything they printed."""
        ended = []
        for process in self.processes:
            output, _ = process.communicate(timeout=timeout)
            ended.append(
                subprocess.CompletedProcess(process.args, process.returncode, output)
            )
        return ended

    def child(self, number: int) -> int | None:
        """Process number of the child that does the work; None: not there yet."""
        pid = self.processes[number].pid
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = file.read().split()
        return int(children[0]) if children else None


def run_pair(words, **options) -> list[subprocess.CompletedProcess]:
    with Pair(words, **options) as pair:
        return pair.finish()


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
