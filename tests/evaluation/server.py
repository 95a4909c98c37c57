"""A local OpenAI-compatible endpoint that says what a test tells it to."""

import contextlib
import dataclasses
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass
class Request:
    """What a client asked."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        return self.body["messages"]


@dataclasses.dataclass
class Answer:
    """What it gets: a status, headers, and text or an object that becomes JSON."""

    body: Any
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


def completion(text: str | None, *, finish: str = "stop", usage: Any = None, **more):
    """A chat completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    told = {"object": "chat.completion", "model": "scripted", "choices": [choice]}
    return Answer(told | ({} if usage is None else {"usage": usage}) | more)


@dataclasses.dataclass
class Server:
    url: str
    requests: list[Request]


@contextlib.contextmanager
def serve(answer: Callable[[Request], Answer]) -> Iterator[Server]:
    """Serve until the block is left; `answer` is called from several threads."""
    requests: list[Request] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            request = Request(self.path, dict(self.headers), body)
            requests.append(request)
            told = answer(request)
            data = told.body if isinstance(told.body, str) else json.dumps(told.body)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(told.status)
                for name, value in told.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data.encode())))
                self.end_headers()
                self.wfile.write(data.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{server.server_port}/v1", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
