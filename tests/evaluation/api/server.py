"""A local OpenAI-compatible API with the answers of a test."""

import contextlib
import dataclasses
import http.client
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass
class Request:
    """A request of a client."""

    path: str
    headers: http.client.HTTPMessage
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        return self.body["messages"]


@dataclasses.dataclass
class Answer:
    """A response: status, headers, and bytes, text or an object that becomes JSON."""

    body: Any
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


def completion(text: str | None, *, finish: str = "stop", usage: Any = None, **more):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    response = {"object": "chat.completion", "model": "scripted", "choices": [choice]}
    return Answer(response | ({} if usage is None else {"usage": usage}) | more)


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
            request = Request(self.path, self.headers, body)
            requests.append(request)
            response = answer(request)
            data = response.body
            if not isinstance(data, str | bytes):
                data = json.dumps(data)
            if isinstance(data, str):
                data = data.encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(response.status)
                for name, value in response.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

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
