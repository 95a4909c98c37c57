"""A small HTTP server: JSON in, JSON or a page out, with bounds on what it reads.

In: requests of any client. Out: an answer to each, of 400 or more and with a sentence
where the request is at fault. Its users decide what is served, and what it means.
"""

import contextlib
import http.server
import io
import json
import logging
import socket
import time
import urllib.parse
from http import HTTPStatus
from typing import Any

from ragen_jax.host_games.common.files import parse_json
from ragen_jax.host_games.common.http import is_loopback

logger = logging.getLogger(__name__)

LOCAL_HOST = "127.0.0.1"
MAX_BODY_BYTES = 1_000_000
# What is left in the connection of a request that is too large is read up to here, so
# that the client reads why; beyond, it sees a broken connection.
MAX_DRAINED_BYTES = 16_000_000
# For a client to send its request, however it divides it, so that silent and slow
# connections cannot hold threads.
PATIENCE_SECONDS = 30.0
# For a client that has been refused to read why, before its unread bytes are thrown
# away: a socket closed with unread bytes in it throws away the answer, too.
LINGER_SECONDS = 2.0


class RequestError(ValueError):
    """A request that cannot be answered.

    Attributes:
      status: of the response.
    """

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST):
        super().__init__(message)
        self.status = status


class _Reader(io.RawIOBase):
    """Reads a socket up to a deadline, which single bytes do not move."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._deadline = time.monotonic()

    def allow(self, seconds: float) -> None:
        """Set the deadline."""
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client did not send its request in time")
        # What is sent has the usual limit.
        usual = self._connection.gettimeout()
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(usual)


class JsonHandler(http.server.BaseHTTPRequestHandler):
    """One connection, with one request unless it is kept.

    Attributes:
      is_persistent: whether a connection is kept for further requests, if its client
        wants that.
      max_body_bytes: of a request.
    """

    timeout = PATIENCE_SECONDS
    # What a WebSocket begins with.
    protocol_version = "HTTP/1.1"
    is_persistent = False
    max_body_bytes = MAX_BODY_BYTES

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reader = _Reader(self.connection)
        self.rfile = io.BufferedReader(self._reader)
        self._has_unread = False

    def handle_one_request(self) -> None:
        """Wait for a request and answer it; the time to send it starts at its first
        byte."""
        self._reader.allow(self.timeout)
        try:
            has_come = bool(self.rfile.peek(1))
        except OSError:
            has_come = False
        if not has_come:
            self.close_connection = True
            return
        self._reader.allow(self.timeout)
        super().handle_one_request()

    def finish(self) -> None:
        if self._has_unread:
            self._linger()
        super().finish()

    def route(self) -> str:
        """The path that is asked for, without its query."""
        try:
            return urllib.parse.urlsplit(self.path).path
        except ValueError:
            # No address; there is nothing at such a path either.
            return self.path

    def read_json(self, wanted: str) -> Any:
        """The JSON of the request's body.

        Args:
          wanted: what a client should send, for the error: "an object with `query`".

        Raises:
          RequestError: the body is too large, cut short, or not JSON.
        """
        return self.parse(self.read_body(), wanted)

    def parse(self, body: bytes, wanted: str) -> Any:
        """The JSON of a body; see `read_json`."""
        try:
            return parse_json(body)
        except ValueError:
            raise RequestError(f"the body is not JSON; send {wanted}") from None

    def read_body(self) -> bytes:
        """The request's body.

        Raises:
          RequestError: it is too large or cut short, or its length is not known. The
            connection is not used again.
        """
        try:
            return self._read_body()
        except RequestError:
            self.close_connection = self._has_unread = True
            raise

    def _read_body(self) -> bytes:
        lengths = set(self.headers.get_all("Content-Length", [""]))
        if len(lengths) > 1:
            raise RequestError("the request has several Content-Lengths; send one")
        (length,) = lengths
        is_chunked = "Transfer-Encoding" in self.headers
        if is_chunked or not length.isascii() or not length.isdigit():
            raise RequestError(
                "the request has no Content-Length; send the body's number of bytes",
                HTTPStatus.LENGTH_REQUIRED,
            )
        # Python refuses to read integers of thousands of digits.
        num_bytes = int(length[:20])
        try:
            if num_bytes > self.max_body_bytes:
                self._drain(min(num_bytes, MAX_DRAINED_BYTES))
                raise RequestError(
                    f"the body has {num_bytes} bytes; send at most "
                    f"{self.max_body_bytes}",
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                )
            body = self.rfile.read(num_bytes)
        except TimeoutError:
            raise RequestError(
                f"the body of {num_bytes} bytes did not come within "
                f"{self.timeout:g} s; send it at once",
                HTTPStatus.REQUEST_TIMEOUT,
            ) from None
        if len(body) < num_bytes:
            raise RequestError(
                f"the body ends after {len(body)} bytes; send the {num_bytes} that its "
                "Content-Length announces"
            )
        return body

    def answer(self, status: HTTPStatus, answer: Any) -> None:
        """Answer with JSON."""
        self.answer_page(status, "application/json", json.dumps(answer))

    def answer_page(
        self, status: HTTPStatus, kind: str, page: str, **headers: str
    ) -> None:
        """Answer with a text of a media type, and further headers."""
        body = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection or not self.is_persistent:
            self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer with a sentence about the request."""
        self.answer(status, {"error": message})

    def is_cross_origin(self) -> bool:
        """Whether a page of another site asks; browsers let any page connect here."""
        origin = self.headers.get("Origin")
        if origin is None:
            return False
        try:
            site = urllib.parse.urlsplit(origin)
        except ValueError:
            return True
        # A name of another site may lead to this machine.
        is_local = is_loopback(self.server.server_address[0])
        if is_local and not is_loopback(site.hostname):
            return True
        return site.netloc != self.address()

    def address(self) -> str:
        """Host and port by which the client calls this server."""
        return self.headers.get("Host") or urllib.parse.urlsplit(self.server.url).netloc

    def log_message(self, format: str, *args: Any) -> None:
        """To this module's logger instead of standard error."""
        logger.debug(format, *args)

    def _drain(self, num_bytes: int) -> None:
        while num_bytes > 0:
            chunk = self.rfile.read(min(num_bytes, 1 << 16))
            if not chunk:
                return
            num_bytes -= len(chunk)

    def _linger(self) -> None:
        """Read on for a moment, so that the client reads the answer."""
        self._reader.allow(LINGER_SECONDS)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self._drain(MAX_DRAINED_BYTES)


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
