"""How many messages per second a served game answers on this machine.

    python -m benchmarks.serve
    python -m benchmarks.serve --openenv_python=VENV/bin/python --json=FILE

A server in a separate process, and clients in threads of this one, each waiting for
an answer before it asks again: plain websockets, the same for every server. What is
counted are answers: to `state`, which no game sees, and to episodes of a reset and a
step. With a Python that has openenv, a game of words on OpenEnv's own server, too
(`tests/serve/official_server.py`). Machines are noisy: the best of the repeats tells
what the program needs, the median what one gets.
"""

import concurrent.futures
import contextlib
import json
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator

from absl import flags

from benchmarks import harness
from launch import command

_MESSAGES = flags.DEFINE_integer("messages", 2000, "Answers per measurement.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Measurements of each kind.")
_CLIENTS = flags.DEFINE_list("clients", ["1", "8"], "Numbers of clients at once.")
_GAMES = flags.DEFINE_list(
    "games", ["echo", "frozen_lake", "sokoban"], "Built-in games that are served."
)
_OPENENV = flags.DEFINE_string(
    "openenv_python", None, "Python with openenv, whose own server is measured, too."
)
harness.define_json()

ROOT = pathlib.Path(__file__).parents[1]
OFFICIAL = ROOT / "tests" / "serve" / "official_server.py"
START_SECONDS = 300.0


def main(_: list[str]) -> int:
    if _MESSAGES.value < 2 or _REPEATS.value < 1:
        raise ValueError("--messages must be at least 2, --repeats at least 1")
    if not all(word.isdigit() and int(word) for word in _CLIENTS.value):
        raise ValueError("--clients must be whole numbers from 1, as in 1,8")
    counts = [int(word) for word in _CLIENTS.value]
    ours = [sys.executable, "-m", "launch.serve"]
    servers = {
        name: ([*ours, f"--env={name}", f"--max_sessions={max(counts)}"], "answer")
        for name in _GAMES.value
    }
    if _OPENENV.value:
        words = [_OPENENV.value, str(OFFICIAL)]
        servers["OpenEnv's own server"] = (words, "message")
    figures = {}
    print(f"{'answers per second':<44}{'best':>10}{'median':>10}")
    for name, (words, field) in servers.items():
        with running(words, max(counts)) as url:
            for kind, play in {"state": ask_state, "episodes": play_episodes}.items():
                for count in counts:
                    rates = measure(url, field, play, count)
                    best, median = max(rates), statistics.median(rates)
                    row = f"{name}: {kind}, {count} at once"
                    figures[row] = {"best_per_s": best, "median_per_s": median}
                    print(f"{row:<44}{best:>10,.0f}{median:>10,.0f}", flush=True)
    harness.write_json({"machine": platform.machine(), "figures": figures})
    return 0


@contextlib.contextmanager
def running(words: list[str], num_sessions: int) -> Iterator[str]:
    """A server in a process; its WebSocket's address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    is_ours = "-m" in words
    rest = [f"--port={port}"] if is_ours else [str(port), str(num_sessions)]
    process = subprocess.Popen(
        [*words, *rest], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                opener.open(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise ValueError(f"{' '.join(words)} does not start; run it to see why")
            time.sleep(0.2)
        yield f"ws://127.0.0.1:{port}/ws"
    finally:
        process.terminate()
        process.wait()


def measure(url: str, field: str, play: Callable, num_clients: int) -> list[float]:
    """Answers per second to all clients together, for every repeat."""
    from websockets.sync.client import connect

    each = _MESSAGES.value // num_clients
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(connect(url, compression=None, proxy=None))
            for _ in range(num_clients)
        ]
        threads = stack.enter_context(
            concurrent.futures.ThreadPoolExecutor(num_clients)
        )
        rates = []
        # The first session starts what a game starts only once.
        for _ in range(_REPEATS.value + 1):
            began = time.perf_counter()
            list(threads.map(lambda client: play(client, field, each), clients))
            rates.append(each * num_clients / (time.perf_counter() - began))
    return rates[1:]


def ask_state(client, field: str, num_messages: int) -> None:
    """Ask where the episode stands, again and again."""
    del field
    for _ in range(num_messages):
        _ask(client, '{"type": "state"}')


def play_episodes(client, field: str, num_messages: int) -> None:
    """Episodes of one step."""
    step = json.dumps({"type": "step", "data": {field: "Up"}})
    for seed in range(num_messages // 2):
        _ask(client, json.dumps({"type": "reset", "data": {"seed": seed}}))
        _ask(client, step)


def _ask(client, request: str) -> None:
    client.send(request)
    answer = json.loads(client.recv(timeout=60))
    if answer["type"] == "error":
        raise ValueError(f"{request} was answered with {answer['data']}")


if __name__ == "__main__":
    command.run(main)
