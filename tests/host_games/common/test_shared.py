"""Values that one process works out for all."""

import subprocess
import sys

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
