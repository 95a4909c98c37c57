"""A user's sinks, of docs/library.md: one that keeps what it is told, and bad ones."""

import json

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
        self._say("episodes", iteration, len(episodes))

    def flush(self):
        self._say("flush")

    def close(self):
        self._say("close")


class Failing(Sink):
    """Fails at the first record."""

    num_calls = 0

    def write(self, record):
        type(self).num_calls += 1
        raise ConnectionError("no route to host\nand a page more")


class Unreachable(Sink):
    def __init__(self, run):
        raise TimeoutError("no answer")


def function(run):
    return None
