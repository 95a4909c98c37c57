"""A server for a model of tests, and bare connections to it."""

import contextlib
import json
import socket
import urllib.parse

from ragen_jax.host_games.agent.api import ApiServer
from ragen_jax.host_games.agent.calls import ChatAnswer

MODEL = "org/policy"
TOOL = {
    "type": "function",
    "function": {
        "name": "go",
        "description": "Goes.",
        "parameters": {"type": "object"},
    },
}
HI = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


class Model:
    """Answers with what a test sets, and remembers what it was asked."""

    def __init__(self, answer=None):
        self.answer = answer or ChatAnswer(
            "hello", prompt_tokens=3, completion_tokens=2
        )
        self.calls = []

    def __call__(self, call):
        self.calls.append(call)
        if isinstance(self.answer, ChatAnswer):
            return self.answer
        return self.answer(call)


def serving(complete, **options):
    return ApiServer(complete, model=MODEL, **options)


def address(server):
    parts = urllib.parse.urlsplit(server.url)
    return parts.hostname, parts.port


@contextlib.contextmanager
def connected(server):
    with socket.create_connection(address(server), timeout=20) as client:
        yield client


def write_request(path, document, method="POST", **headers):
    """The bytes of a request."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    named = {"Content-Length": str(len(body))} | headers
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in named.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_answer(client):
    """Status, headers and body of the next answer of a connection."""
    with client.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers = {}
        while line := file.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, file.read(int(headers["content-length"]))


def ask(server, path, document, method="POST", **headers):
    """Status, headers and JSON of the answer to one request."""
    with connected(server) as client:
        client.sendall(write_request(path, document, method, **headers))
        status, headers, body = read_answer(client)
        return status, headers, json.loads(body)


def complete(server, **parameters):
    """Status and JSON of a chat completion."""
    status, _, said = ask(server, "/v1/chat/completions", HI | parameters)
    return status, said


def respond(server, **parameters):
    """Status and JSON of a response."""
    body = {"model": MODEL, "input": "hi"} | parameters
    status, _, said = ask(server, "/v1/responses", body)
    return status, said
