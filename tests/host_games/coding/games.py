"""What the tests of the game of programming tasks share."""

import contextlib
import pathlib
import time

import pytest

from ragen_jax.host_games.coding.game import Coding
from ragen_jax.host_games.coding.judge import LocalSandbox


@contextlib.contextmanager
def playing(split="training", **options):
    game = Coding(split, **options)
    try:
        yield game
    finally:
        game.close()


def open_sandbox(isolation: str) -> LocalSandbox:
    """Skips the test where the isolation is not possible."""
    try:
        return LocalSandbox(isolation, memory_mb=256)
    except ValueError as error:
        pytest.skip(str(error))


def processes_with(text: str) -> list[int]:
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text.encode() in words and state != "Z":
            found.append(int(folder.name))
    return found


def assert_only_the_runner_is_left(sandbox):
    """What a program forks has the runner's command line, which names its folder."""
    # Who answered may still be about to end; what would have outlived it sleeps long.
    deadline = time.monotonic() + 10
    while processes_with(sandbox._folder.name) != [sandbox._child.process.pid]:
        assert time.monotonic() < deadline, processes_with(sandbox._folder.name)
        time.sleep(0.01)
    assert not list(pathlib.Path(sandbox._folder.name).iterdir())


def assert_alive_and_clean(sandbox):
    outcome = sandbox.run("print(input() * 2)", "ab\n", 10)
    assert (outcome.printed, outcome.ok) == ("abab\n", True)
    assert_only_the_runner_is_left(sandbox)
