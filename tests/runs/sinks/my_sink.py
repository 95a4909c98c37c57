"""A user's sinks, of docs/library.md: one that keeps what it is told, and bad ones."""

import json
import time

from ragen_jax.runs.sinks.base import Sink, numbers


class Lines(Sink):
    """Appends every call to a file in the run folder."""

    def __init__(self, run):
        self._path = run.workdir / "lines.jsonl"
        self._say("open", run.run_id, len(run.records), run.settings.get("seed"))

    def _say(self, *words):
        with self._path.open("a") as file:
            file.write(json.dumps(words) + "\n")

    def write(self, record):
        self._say("write", record["iteration"], numbers(record))

    def episodes(self, iteration, episodes):
        self._say("episodes", iteration, episodes)

    def flush(self):
        self._say("flush")

    def close(self):
        self._say("close")


class Failing(Sink):
    """Fails at the first record, and when it is closed."""

    num_calls = 0
    num_closed = 0

    def write(self, record):
        type(self).num_calls += 1
        raise ConnectionError("no route to host\nand a page more")

    def close(self):
        type(self).num_closed += 1
        raise ConnectionError("still no route to host")


class BadEnd(Sink):
    """Fails when it is closed."""

    num_closed = 0

    def write(self, record):
        pass

    def close(self):
        type(self).num_closed += 1
        raise OSError("disk full")


class Unreachable(Sink):
    def __init__(self, run):
        raise TimeoutError("no answer")


class Slow(Sink):
    """Takes a moment to open."""

    def __init__(self, run):
        time.sleep(0.1)

    def write(self, record):
        pass


def function(run):
    return None
