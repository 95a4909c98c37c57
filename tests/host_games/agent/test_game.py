"""The game of an agent's program: what players of text can do, and what it leaves."""

import os
import pathlib
import signal
import subprocess
import sys
import time

from ragen_jax.host_games.agent.game import AgentGame

PROGRAMS = "tests.host_games.agent.programs"

# A worker that plays a command; prints the command's number.
WORKER = """
import time
from ragen_jax.host_games.agent.program import ClientSettings, CommandRun, Task
client = ClientSettings("http://127.0.0.1:1", "none", "policy")
command = CommandRun(["sleep", "600"], Task(0, None, "training", {}), client, print)
print(command._process.pid, flush=True)
time.sleep(600)
"""
TRAINER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]])
time.sleep(600)
"""


def test_a_text_calls_tools_where_there_are_any():
    game = AgentGame(function=f"{PROGRAMS}:with_tools")
    game.reset(1)
    step = game.step('<tool_call>{"name": "look", "arguments": {}}</tool_call>')
    assert not step.terminated
    assert "42" in step.observation.text
    assert game.step("42").reward == 1.0
    game.reset(1)
    assert game.step("look!").reward == 0.0
    game.close()


def test_a_command_ends_when_the_trainer_is_killed():
    words = [sys.executable, "-c", TRAINER, WORKER]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, start_new_session=True
    ) as trainer:
        command = int(trainer.stdout.readline())
        try:
            assert words_of(command)
            trainer.kill()
            for _ in range(300):
                if not words_of(command):
                    break
                time.sleep(0.1)
            assert not words_of(command)
        finally:
            os.killpg(trainer.pid, signal.SIGKILL)


def words_of(process: int) -> bytes:
    """The command line of a process; empty once it has ended."""
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
