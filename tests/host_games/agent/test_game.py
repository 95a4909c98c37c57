"""The game of an agent's program: what players of text can do, and what it leaves."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from ragen_jax.host_games.agent.game import AgentGame
from ragen_jax.host_games.base import BrokenContract

PROGRAMS = "tests.host_games.agent.programs"

# Waits for the first call of a command, which never comes.
TRAINER = """
import json, sys
from ragen_jax.host_games.workers.pool import GameSpec, Pool
kwargs = {"function": "command", "command": json.loads(sys.argv[1])}
game = GameSpec("ragen_jax.host_games.agent.game:AgentGame", kwargs, num_workers=1,
                step_seconds=600.0)
Pool(game, "training", 1).reset([0], [None])
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


def test_a_metric_that_is_not_listed_is_refused():
    chat = {"function": f"{PROGRAMS}:chat", "options": {"counts": True}}
    play_to_the_end(AgentGame(**chat, metrics=("letters",)))
    game = AgentGame(**chat)
    with pytest.raises(BrokenContract, match=r"list it: metrics=\('letters',\)"):
        play_to_the_end(game)


@pytest.mark.parametrize(
    "reply", ['{"content": "42"}', '{"content": 4}', '[["content", "x"]]']
)
def test_a_reply_that_is_json_stays_a_text(reply):
    game = AgentGame(function=f"{PROGRAMS}:echo")
    game.reset(1)
    assert game.step(reply).reward == len(reply)
    game.close()


@pytest.mark.parametrize(
    "fields", [{"reward": None}, {"reward": "1"}, {"reward": 1, "metrics": 3}]
)
def test_a_result_that_is_no_number_is_refused(fields):
    game = AgentGame(function=f"{PROGRAMS}:result", options=fields)
    with pytest.raises(BrokenContract, match="has to be the reward, a number"):
        play_to_the_end(game)


# Asks once, then prints more than is kept.
TALKER = """
import json, os, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
messages = [{"role": "user", "content": "a"}]
call = {"model": os.environ["OPENAI_MODEL"], "messages": messages}
header = {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, json.dumps(call).encode(), header))
print("7\\n" * 600_000 + "1.5")
"""


def test_the_last_line_of_a_long_output_is_the_reward():
    game = AgentGame(function="command", command=(sys.executable, "-c", TALKER))
    game.reset(1)
    assert game.step("a").reward == 1.5
    game.close()


def play_to_the_end(game):
    game.reset(1)
    while not game.step("a").terminated:
        """Any reply will do."""
    game.close()


def test_a_command_and_its_worker_end_when_the_trainer_is_killed(tmp_path):
    note = tmp_path / "processes"
    command = ["sh", "-c", f"echo $$ $PPID > {note}; sleep 600"]
    words = [sys.executable, "-c", TRAINER, json.dumps(command)]
    with subprocess.Popen(words, start_new_session=True) as trainer:
        try:
            until(lambda: note.exists() and note.read_text().endswith("\n"))
            playing = [int(word) for word in note.read_text().split()]
            assert all(map(words_of, playing))
        finally:
            os.killpg(trainer.pid, signal.SIGKILL)
    until(lambda: not any(map(words_of, playing)))


def until(is_so: Callable[[], bool]) -> None:
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    pytest.fail("it did not come to that within a minute")


def words_of(process: int) -> bytes:
    """The command line of a process; empty once it has ended."""
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
