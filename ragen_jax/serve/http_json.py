"""A small HTTP server: JSON in, JSON or a page out, with bounds on what it reads.

In: requests of any client. Out: an answer to each, of 400 or more and with a sentence
where the request is at fault. Its users decide what is served, and what it means.
"""

import http.server
import json
import logging
import socket
from http import HTTPStatus
from typing import Any

from ragen_jax.host_games.common.files import parse_json

logger = logging.getLogger(__name__)

LOCAL_HOST = "127.0.0.1"
MAX_BODY_BYTES = 1_000_000
# What is left in the connection of a request that is too large is read up to here, so
# that the client reads why; beyond, it sees a broken connection.
MAX_DRAINED_BYTES = 16_000_000
# For a client to send its request, so that idle connections cannot hold threads.
PATIENCE_SECONDS = 30.0


class RequestError(ValueError):
    """A request that cannot be answered.

    Attributes:
      status: of the response.
    """

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST):
        super().__init__(message)
        self.status = status


class JsonHandler(http.server.BaseHTTPRequestHandler):
    """One connection, with one request."""

    timeout = PATIENCE_SECONDS
    # What a WebSocket begins with.
    protocol_version = "HTTP/1.1"

    def read_json(self, wanted: str) -> Any:
        """The JSON of the request's body.

        Args:
          wanted: what a client should send, for the error: "an object with `query`".

        Raises:
          RequestError: the body is too large, or not JSON.
        """
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise RequestError(
                "the request has no Content-Length; send the body's number of bytes",
                HTTPStatus.LENGTH_REQUIRED,
            )
        # Python refuses to read integers of thousands of digits.
        num_bytes = int(length[:20])
        if num_bytes > MAX_BODY_BYTES:
            self._drain(min(num_bytes, MAX_DRAINED_BYTES))
            raise RequestError(
                f"the body has {num_bytes} bytes; send at most {MAX_BODY_BYTES}",
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
        body = self.rfile.read(num_bytes)
        try:
            return parse_json(body)
        except ValueError:
            raise RequestError(f"the body is not JSON; send {wanted}") from None

    def answer(self, status: HTTPStatus, answer: Any) -> None:
        """Answer with JSON."""
        self.answer_page(status, "application/json", json.dumps(answer))

    def answer_page(self, status: HTTPStatus, kind: str, page: str) -> None:
        """Answer with a text of a media type."""
        body = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer with a sentence about the request."""
        self.answer(status, {"error": message})

    def log_message(self, format: str, *args: Any) -> None:
        """To this module's logger instead of standard error."""
        logger.debug(format, *args)

    def _drain(self, num_bytes: int) -> None:
        while num_bytes > 0:
            chunk = self.rfile.read(min(num_bytes, 1 << 16))
            if not chunk:
                return
            num_bytes -= len(chunk)


class JsonServer(http.server.ThreadingHTTPServer):
    """One thread per connection.

    It listens once it exists; `serve_forever` answers, `shutdown` from another thread
    stops that, and `server_close`, or leaving a `with`, frees the port.
    """

    daemon_threads = True
    # Connections that wait to be accepted: the rows of a trainer come all at once.
    request_queue_size = 256

    def __init__(self, host: str, port: int, handler: type[JsonHandler]):
        """Bind to an address.

        Args:
          host: name or address of the interface; `LOCAL_HOST` is not reached from
            other machines.
          port: 0 for any free one.
          handler: of the connections.

        Raises:
          OSError: the address is taken or not ours.
        """
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)

    @property
    def url(self) -> str:
        """Where clients find it."""
        host, port = self.server_address[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection without a traceback on standard error."""
        logger.debug("The connection of %s broke", client_address, exc_info=True)
