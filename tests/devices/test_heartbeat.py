"""Heartbeats: what a process does when another one is lost, fails or hangs."""

import dataclasses
import json
import time

import pytest

from ragen_jax.devices import heartbeat
from ragen_jax.devices.heartbeat import (
    Heartbeat,
    Watch,
    find_lost,
    read_heartbeat,
    write_heartbeat,
)
from tests import commands

# `Ends` raises in the thread that watches.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(heartbeat, "LOST_SECONDS", 0.3)


class Ends:
    """The status with which a watch ended its process."""

    def __init__(self):
        self.statuses = []

    def __call__(self, status):
        self.statuses.append(status)
        # `os._exit` would not return.
        raise SystemExit(status)

    def wait(self, seconds=10):
        deadline = time.monotonic() + seconds
        while not self.statuses and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.statuses


def watch(tmp_path, ends, number=0, total=2, **options):
    return Watch(tmp_path, number=number, total=total, attempt="a", end=ends, **options)


def beat(number=1, attempt="a", **changes):
    return dataclasses.replace(
        Heartbeat(attempt, number, "node1", 7, "iteration 3 of 9, update"), **changes
    )


def test_a_process_without_new_beats_is_gone(tmp_path, capsys):
    ends = Ends()
    with watch(tmp_path, ends):
        write_heartbeat(tmp_path, beat(count=1))
        assert ends.wait() == [heartbeat.EXIT_STATUS]
    error = capsys.readouterr().err
    assert "error: process 1 (node1, pid 7) has not reported" in error
    assert "its last stage: iteration 3 of 9, update" in error
    assert heartbeat.RESUME in error


def test_a_process_that_never_comes_is_gone_too(tmp_path, capsys):
    ends = Ends()
    with watch(tmp_path, ends, number=1):
        assert ends.wait() == [heartbeat.EXIT_STATUS]
    assert "process 0 (unknown host, pid 0)" in capsys.readouterr().err


def test_a_failure_is_passed_on_with_its_sentence(tmp_path, capsys):
    ends = Ends()
    with watch(tmp_path, ends):
        write_heartbeat(
            tmp_path, beat(state=heartbeat.FAILED, reason="the disk is full", status=2)
        )
        # Starting again would not help.
        assert ends.wait() == [2]
    assert (
        "process 1 (node1, pid 7) failed: the disk is full" in capsys.readouterr().err
    )


def test_a_process_that_was_seen_to_start_must_not_vanish(tmp_path, capsys):
    """Others may still be starting; files of an earlier start do not count."""
    ends = Ends()
    write_heartbeat(tmp_path, beat(1, attempt="before", count=9))
    write_heartbeat(tmp_path, beat(2, attempt="before", state=heartbeat.FAILED))
    with watch(tmp_path, ends, total=4, is_starting=True):
        time.sleep(0.5)
        assert not ends.statuses
        write_heartbeat(tmp_path, beat(1, count=1))
        assert ends.wait() == [heartbeat.EXIT_STATUS]
    assert "process 1 (node1, pid 7) has not reported" in capsys.readouterr().err


@pytest.mark.parametrize("state", [heartbeat.RUNNING, heartbeat.FINISHED])
def test_heartbeats_and_an_orderly_end_are_not_a_loss(tmp_path, state):
    ends = Ends()
    with watch(tmp_path, ends):
        for count in range(40):
            if state == heartbeat.RUNNING or count == 0:
                write_heartbeat(tmp_path, beat(state=state, count=count))
            time.sleep(0.02)
    assert not ends.statuses


def test_the_file_of_an_earlier_start_does_not_count(tmp_path):
    ends = Ends()
    write_heartbeat(tmp_path, beat(attempt="before", state=heartbeat.FAILED))
    with watch(tmp_path, ends):
        time.sleep(0.1)
        assert not ends.statuses
        assert ends.wait() == [heartbeat.EXIT_STATUS]


def test_a_stall_says_where_every_process_stands(tmp_path, capfd):
    ends = Ends()
    with watch(tmp_path, ends, stall_seconds=0.2) as watching:
        watching.at("iteration 4 of 9, rollout")
        deadline = time.monotonic() + 10
        count = 0
        while not ends.statuses and time.monotonic() < deadline:
            write_heartbeat(tmp_path, beat(since=80.0, count=(count := count + 1)))
            time.sleep(0.01)
    error = capfd.readouterr().err
    assert ends.statuses == [heartbeat.EXIT_STATUS]
    assert "nothing has moved for train.stall_seconds = 0.2 seconds" in error
    assert "iteration 4 of 9, rollout, for 0 s" in error
    assert "process 1 (node1, pid 7): iteration 3 of 9, update, for 80 s" in error
    # The stacks of the threads name the line that waits.
    assert "test_heartbeat.py" in error


def test_a_run_that_moves_does_not_stall_nor_one_without_a_limit(tmp_path):
    for options in ({"stall_seconds": 0.3}, {}):
        ends = Ends()
        with watch(tmp_path, ends, total=1, **options) as watching:
            for i in range(20):
                watching.at(f"iteration {i}")
                time.sleep(0.03)
        assert not ends.statuses
    # One process leaves no files.
    assert not (tmp_path / heartbeat.FOLDER).exists()


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (ValueError("no such model"), 2, "error: no such model"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_a_failure_ends_the_process_without_waiting_for_others(
    tmp_path, capsys, error, status, printed
):
    ends = Ends()
    with pytest.raises(SystemExit), watch(tmp_path, ends):
        raise error
    assert ends.statuses == [status]
    assert printed in capsys.readouterr().err
    left = read_heartbeat(tmp_path, 0)
    assert left.state == heartbeat.FAILED
    assert str(error) in left.reason


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("connection reset by peer"),
        ValueError("UNKNOWN: Gloo AllGather failed: connection closed by peer"),
    ],
)
def test_an_error_of_the_runtime_waits_for_the_loss_that_explains_it(
    tmp_path, capsys, monkeypatch, error
):
    """A collective operation raises at once; that a peer is gone shows later."""
    # It waits five of these longer: time for a thread on a busy machine.
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.2)
    ends = Ends()
    write_heartbeat(tmp_path, beat(count=1))
    with pytest.raises(SystemExit), watch(tmp_path, ends):
        raise error
    assert heartbeat.EXIT_STATUS in ends.statuses
    assert "process 1 (node1, pid 7) has not reported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "is_refused"),
    [
        # Another job's, alive.
        ({"address": "node1:21000"}, True),
        # A second process of this number.
        ({"address": "node0:20000", "number": 1}, True),
        # Of this start.
        ({"address": "node0:20000"}, False),
        ({"address": "node1:21000", "state": heartbeat.FINISHED}, False),
    ],
)
def test_a_start_beside_another_one_is_refused(tmp_path, there, is_refused):
    one = beat(**{"number": 0} | there)
    write_heartbeat(tmp_path, one)

    def wait(_):
        write_heartbeat(tmp_path, dataclasses.replace(one, count=1))

    def start(wait):
        heartbeat.refuse_another_start(tmp_path, 1, "node0:20000", wait)

    start(lambda _: None)  # the file of a start that is over
    if not is_refused:
        start(wait)
        return
    with pytest.raises(ValueError, match=r"another start .* at work .*: process \d"):
        start(wait)


def test_processes_that_stopped_beating_are_lost(tmp_path):
    mine = beat(0, count=5)
    others = [
        beat(1, count=3),
        beat(2, count=3),
        beat(3, state=heartbeat.CUT_OFF),
        beat(4, attempt="before"),
        beat(6, state=heartbeat.FAILED, reason="the disk is full"),
    ]
    for one in (mine, *others):
        write_heartbeat(tmp_path, one)
    (tmp_path / heartbeat.FOLDER / "5.json").write_text("{torn")

    def wait(_):
        write_heartbeat(tmp_path, beat(2, count=4))

    failed, lost = find_lost(tmp_path, 0, wait)
    assert failed == "process 6 (node1, pid 7) failed: the disk is full"
    assert lost.startswith("process 1 (node1, pid 7) has not reported")
    assert find_lost(tmp_path / "nothing", 0) == []


def test_a_beat_is_read_as_written(tmp_path):
    write_heartbeat(tmp_path, beat(since=2.5, count=9))
    assert read_heartbeat(tmp_path, 1) == beat(since=2.5, count=9)
    assert read_heartbeat(tmp_path, 2) is None
    assert json.loads((tmp_path / "processes/1.json").read_text())["count"] == 9


def test_a_run_that_hangs_ends_itself(model, tmp_path):
    """Compiling takes longer than this limit."""
    words = commands.train_command(
        model, tmp_path / "run", evaluation__every=None, train__stall_seconds=0.01
    )
    done = commands.run(words)
    assert done.returncode == heartbeat.EXIT_STATUS
    assert "error: nothing has moved for train.stall_seconds = 0.01" in done.stderr
    assert "process 0 (" in done.stderr


def test_a_folder_that_cannot_be_written_gives_a_warning(tmp_path, capsys):
    (tmp_path / heartbeat.FOLDER).write_text("a file in the way")
    with watch(tmp_path, Ends(), number=1):
        time.sleep(0.05)
    assert "warning: no heartbeat written" in capsys.readouterr().err
