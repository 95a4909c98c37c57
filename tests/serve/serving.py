"""Servers in this process, clients of them, and what was recorded with other ones."""

import contextlib
import http.client
import json
import pathlib
import threading

from websockets.sync.client import connect

from ragen_jax.rollout.host.env import make_host_game
from ragen_jax.serve.games import ServedHostGame
from ragen_jax.serve.server import GameServer

DATA = pathlib.Path(__file__).parent / "data"
HOST = {
    "max_observation_tokens": 64,
    "image_grid": None,
    "num_widths": 1,
    "num_workers": 1,
    "start_seconds": 60.0,
    "step_seconds": 10.0,
    "max_worker_bytes": None,
    "max_failed_fraction": 0.1,
    "wrappers": (),
}


def host_game(name="echo", step_seconds=10.0, **kwargs):
    return ServedHostGame(
        make_host_game(name, kwargs, **HOST | {"step_seconds": step_seconds})
    )


def recorded(name):
    """The documents of a server, and pairs of a request and its answer."""
    found = json.loads((DATA / f"{name}.json").read_text())
    return found["documents"], found["pairs"]


@contextlib.contextmanager
def running(server):
    with server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def serving(game, *, max_sessions=64, idle_seconds=900.0, **options):
    limits = {"max_sessions": max_sessions, "idle_seconds": idle_seconds}
    with running(GameServer(game, port=0, **limits, **options)) as server:
        try:
            yield server
        finally:
            server.close_sessions()


@contextlib.contextmanager
def connected(server, path="/ws", **options):
    url = server.url.replace("http", "ws") + path
    with connect(url, compression=None, proxy=None, **options) as socket:
        yield socket


def ask(socket, kind, **data):
    message = {"type": kind} | ({"data": data} if kind in ("reset", "step") else {})
    socket.send(json.dumps(message))
    return hear(socket)


def hear(socket):
    answer = json.loads(socket.recv(timeout=20))
    assert answer.keys() == {"type", "data"}
    return answer


def request(server, method, path, body=None, **headers):
    """Status, media type and text of a page."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type"), response.read()


def request_json(server, method, path, body=None, **headers):
    sent = None if body is None else json.dumps(body)
    status, kind, text = request(server, method, path, sent, **headers)
    assert kind == "application/json"
    return status, json.loads(text)
