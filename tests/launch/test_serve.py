"""The command that serves: what it prints, refuses, and how it ends."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from websockets.sync.client import connect

from tests import commands


def until_ready(process):
    """What a server prints, up to where it listens and who can connect."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "can connect" in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


@pytest.mark.slow
def test_a_game_is_served_until_a_signal():
    words = ["--env=echo", "--env.kwargs.num_words=5", "--port=0", "--max_sessions=3"]
    process = commands.start(commands.command("serve", *words))
    try:
        said = until_ready(process)
        assert "Echo at ws://127.0.0.1:" in said
        assert "up to 3 sessions" in said
        assert "Only this machine can connect; --host=0.0.0.0 opens it" in said
        url = said.split(" at ws://")[1].split(",")[0]
        with connect(f"ws://{url}/ws", proxy=None) as client:
            client.send('{"type": "reset"}')
            answer = json.loads(client.recv(timeout=20))
            assert len(answer["data"]["observation"]["shown"].split()) == 5
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=30)
        assert rest == "stopped; 1 sessions were open\n"
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_an_environment_of_arrays_is_served():
    words = ["--env=bandit", "--port=0", "--config.rollout.max_turns=7"]
    process = commands.start(commands.command("serve", *words))
    try:
        said = until_ready(process)
        url = said.split(" at ws://")[1].split(",")[0]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{url}/metadata", timeout=20) as response:
            assert "You have 7 turns" in json.load(response)["description"]
    finally:
        process.kill()
        process.communicate()


def test_a_retriever_is_served():
    words = ["--retriever=embedded", "--port=0", "--host=0.0.0.0"]
    process = commands.start(commands.command("serve", *words))
    try:
        said = until_ready(process)
        assert "Every machine that reaches this one can connect" in said
        port = said.split("/retrieve")[0].split(":")[-1]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/retrieve",
            json.dumps({"query": "capital", "top_k": 2}).encode(),
            {"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=20) as response:
            assert "results" in json.load(response)
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
        assert (rest, process.returncode) == ("stopped\n", 0)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to serve: add --env=NAME"),
        (["--env", "echo"], "write --env=echo, with an equals sign"),
        (["--env=ecko"], "no game 'ecko'. Did you mean 'echo'?"),
        (["--env=echo", "--port=70000"], "--port=70000; it must be from 0 to 65535"),
        (["--env=echo", "--max_sessions=0"], "it must be at least 1"),
        (["--env=echo", "--idle_seconds=0"], "it must be above 0"),
        (["--env=echo", "--idle_seconds=nan"], "it must be above 0"),
        (["--env=echo", "--retriever=embedded"], "--retriever serves no game"),
        (
            ["--retriever=embedded", "--max_sessions=3"],
            "--max_sessions=3 has no effect with --retriever",
        ),
        (["--retriever=nothing"], "there is no such file"),
        (["--env=echo", "--env.kwargs.num_words=99"], "num_words=99"),
        (["--env=echo", "--env.kwargs.size=3"], "size"),
        (
            ["--env=echo", "--config.train.num_iterations=3"],
            "has no effect on what is served",
        ),
        (["--env=lean", "play"], "unexpected argument 'play'"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(words, message):
    assert message in commands.refusal("serve", *words)


def test_a_taken_port_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = commands.refusal("serve", "--env=echo", f"--port={port}")
    assert f"127.0.0.1:{port}" in said
    assert "choose another --port" in said


def test_without_the_library_there_is_an_install_line():
    code = (
        "import runpy, sys; sys.modules['websockets'] = None; "
        "sys.argv = ['serve', '--env=echo']; "
        "runpy.run_module('launch.serve', run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=commands.ROOT,
        env=commands.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 2
    assert "-m pip install" in result.stderr
    assert "[serve]" in result.stderr


def test_help_lists_the_flags():
    result = commands.call(commands.command("serve", "--help"))
    assert result.returncode == 0
    for flag in ("--env=TEXT", "--retriever=TEXT", "--max_sessions", "'127.0.0.1'"):
        assert flag in result.stdout
