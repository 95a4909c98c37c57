"""Values that one process works out for all."""

import concurrent.futures
import functools
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from ragen_jax.host_games.common import shared

ASK = """
import sys, time
from ragen_jax.host_games.common import shared
def make():
    with open(sys.argv[1], "a") as file:
        file.write("x")
    time.sleep(0.2)
    return [len(sys.argv)]
print(shared.once("numbers", make))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(shared.FOLDER, str(tmp_path))


def test_processes_that_ask_at_once_wait_for_one(tmp_path):
    made = tmp_path / "made"
    words = [sys.executable, "-c", ASK, str(made)]
    asking = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(4)]
    assert [x.communicate()[0] for x in asking] == [b"[2]\n"] * 4
    assert made.read_text() == "x"


def test_threads_that_ask_at_once_get_one_folder(monkeypatch):
    """Each starts a worker, which is told the folder's name."""
    monkeypatch.delenv(shared.FOLDER)
    # Another folder than the one that this process has by now.
    fresh = functools.cache(shared._temporary.__wrapped__)
    monkeypatch.setattr(shared, "_temporary", fresh)
    make = tempfile.TemporaryDirectory

    def slowly(**words):
        time.sleep(0.05)
        return make(**words)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", slowly)
    barrier = threading.Barrier(4)

    def ask(_):
        barrier.wait()
        return shared.folder()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1


def test_a_failure_is_not_kept():
    with pytest.raises(ZeroDivisionError):
        shared.once("a", lambda: 1 // 0)
    assert shared.once("a", lambda: 3) == 3
    assert shared.once("a", lambda: 4) == 3
    assert shared.once("b", lambda: 4) == 4


def test_half_of_a_file_is_not_read(tmp_path, monkeypatch):
    """As after a kill while it is written."""

    def killed(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.rename", killed)
        with pytest.raises(KeyboardInterrupt):
            shared.once("a", lambda: 1)
    assert shared.once("a", lambda: 2) == 2
