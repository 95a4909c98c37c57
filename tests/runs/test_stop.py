"""Signals are answered while the main thread is inside one endless call of C."""

import contextlib
import signal
import subprocess
import sys
import time

import pytest

from ragen_jax.runs.stop import SAME_SECONDS, stop_when_clean

# Hours, without a bytecode in between and without the interpreter's lock.
ENDLESS = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
IN_A_STEP = f"""
import hashlib
from ragen_jax.runs.stop import StopRequest
with StopRequest(lambda text: print(text, flush=True)):
    print("began", flush=True)
    {ENDLESS}
"""
IN_A_COMMAND = f"""
import hashlib
from launch import command
def main(argv):
    print("began", flush=True)
    {ENDLESS}
command.run(main)
"""
# Seconds inside a call of C, longer than a command waits for one after Ctrl-C.
LONG = "hashlib.pbkdf2_hmac('sha256', b'', b'', 5_000_000)"
IN_AN_EXPORT = f"""
import hashlib, pathlib, sys
from launch import command
from ragen_jax.models.hf.weights import replace_folder
from ragen_jax.runs.stop import stop_when_clean
def main(argv):
    with stop_when_clean(), replace_folder(pathlib.Path("FOLDER")) as fresh:
        (fresh / "half").write_text("")
        print("began", flush=True)
        while True:
            {LONG}
sys.argv = ["export"]
command.run(main)
"""
BETWEEN_STEPS = """
import signal
from ragen_jax.runs.stop import StopRequest
before = signal.getsignal(signal.SIGTERM)
with StopRequest() as stop:
    print("began", flush=True)
    while not stop.requested:
        pass
assert signal.getsignal(signal.SIGTERM) is before
raise SystemExit(stop.exit_status)
"""


@pytest.fixture
def start():
    """Starts a script, up to its line "began"; none outlives the test."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as processes:

        def start_(script: str) -> subprocess.Popen:
            process = subprocess.Popen([sys.executable, "-c", script], **pipes)
            processes.callback(process.kill)
            assert process.stdout.readline() == "began\n"
            return process

        yield start_


def end_of(process: subprocess.Popen) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_announced_and_the_second_ends(start, number):
    process = start(IN_A_STEP)
    process.send_signal(number)
    assert process.stdout.readline().startswith("stopping after this iteration")
    time.sleep(SAME_SECONDS + 0.1)
    assert process.poll() is None
    process.send_signal(number)
    assert end_of(process) == (128 + number, "stopped\n")


def test_signals_of_one_moment_are_one(start):
    """`timeout` signals a command and then its group, which the command is in."""
    process = start(IN_A_STEP)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(SAME_SECONDS / 10)
    assert process.stdout.readline().startswith("stopping after this iteration")
    time.sleep(SAME_SECONDS + 0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (143, "stopped\n")


def test_a_command_without_anything_to_save_ends_at_the_first(start):
    process = start(IN_A_COMMAND)
    process.send_signal(signal.SIGINT)
    assert end_of(process) == (130, "stopped\n")


def test_a_loop_reads_the_request(start):
    process = start(BETWEEN_STEPS)
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (143, "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_export_that_is_stopped_leaves_nothing(start, number, tmp_path):
    process = start(IN_AN_EXPORT.replace("FOLDER", str(tmp_path / "exported")))
    assert len(list(tmp_path.iterdir())) == 1
    for _ in range(3):
        process.send_signal(number)
    status, _ = end_of(process)
    assert status == 128 + number
    assert not list(tmp_path.iterdir())


def test_a_clean_stop_is_stopped_by_nothing_and_puts_the_handlers_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended, stop_when_clean():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    cleaning = contextlib.ExitStack()
    cleaning.callback(signal.raise_signal, signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stop_when_clean(), cleaning:
        signal.raise_signal(signal.SIGINT)
    after = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert after == before
