"""OpenEnv's own validator, graders, client and server against ours.

They pull more than a hundred packages, so they have a virtual environment of their own:
RAGEN_JAX_OPENENV_PYTHON names its Python, otherwise one is made here.
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from configs import frozen_lake, sokoban
from ragen_jax.host_games.adapters.openenv import OpenEnvGame
from ragen_jax.serve.build import build_game
from tests.serve.serving import host_game, serving
from tests.serve.test_arrays import make

pytestmark = [pytest.mark.live, pytest.mark.slow]

HERE = pathlib.Path(__file__).parent
OPENENV = "openenv==0.10.*"


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """The Python of an environment that has openenv."""
    given = os.environ.get("RAGEN_JAX_OPENENV_PYTHON")
    if given is not None:
        return given
    folder = tmp_path_factory.mktemp("openenv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    path = folder / "bin" / "python"
    made = subprocess.run(
        [path, "-m", "pip", "install", "-q", OPENENV],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode and os.environ.get("RAGEN_JAX_REQUIRE_LIVE") != "1":
        pytest.skip(f"cannot install {OPENENV}: {made.stderr[-200:]}")
    assert not made.returncode, made.stderr
    return path


GAMES = {
    "echo": (host_game, ["Up"]),
    "frozen_lake": (lambda: build_game(make(frozen_lake)), ["Up||Left", "no", "Down"]),
    "sokoban": (lambda: build_game(make(sokoban)), ["Up", "<answer>Left</answer>"]),
}


@pytest.mark.parametrize("name", GAMES)
def test_our_server_is_what_openenv_expects(python, name):
    build, answers = GAMES[name]
    with serving(build(), max_sessions=2) as server:
        words = [python, HERE / "official.py", server.url, json.dumps(answers), "500"]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=300, check=False
        )
        assert not done.returncode, done.stderr
        report = json.loads(done.stdout)
        assert server.sessions.wait_closed(10.0)
    validator = report["validator"]
    assert validator["passed"], validator
    assert validator["summary"]["passed_count"] == 6
    assert validator["mode"] == "simulation"
    assert report["failure"] is None
    assert {status for status, _ in report["graders"].values()} == {"pass"}
    assert len(report["graders"]) == 3
    client = report["client"]
    assert client["state"]["step_count"] == len(client["steps"]) > 0
    for _, reward, done in client["steps"][:-1]:
        assert isinstance(reward, float)
        assert not done
    print(f"{name}: {client['messages_per_second']:,.0f} messages/s")


@contextlib.contextmanager
def official_server(python, max_sessions):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [python, HERE / "official_server.py", str(port), str(max_sessions)]
    )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(600):
            with contextlib.suppress(OSError):
                opener.open(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            assert process.poll() is None
            time.sleep(0.2)
        yield f"ws://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def test_our_client_plays_on_openenvs_own_server(python):
    with official_server(python, 2) as url:
        game = OpenEnvGame("training", url)
        assert game.instruction == "Words\nSay the word asked for."
        for seed in range(50):
            word = game.reset(seed).text.removeprefix("Say ").removesuffix(".")
            assert game.step("null").reward == 0.0
            assert not game.step('{"word": 1}').info["valid"]
            assert not game.step("wrong").info["success"]
            last = game.step(json.dumps({"message": word}))
            assert (last.reward, last.terminated) == (1.0, True)
        game.reset(0)
        with pytest.raises(ConnectionError, match="EXECUTION_ERROR"):
            game.step("raise")
        # Both sessions are taken; one comes back while the third client waits.
        others = [OpenEnvGame("validation", url) for _ in range(2)]
        game.reset(0)
        others[0].reset(0)
        threading.Timer(0.5, game.close).start()
        assert others[1].reset(0).text.startswith("Say ")
        third = OpenEnvGame("validation", url)
        with pytest.raises(ConnectionError, match="no room for another session"):
            third.reset(0)
        for other in others:
            other.close()
