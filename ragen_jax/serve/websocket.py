"""The WebSocket of a connection that HTTP has begun.

In: the socket and the head of the request. Out: whole messages, and texts sent. Knows
nothing of what they say. Pings of the client are answered while its messages wait;
none are sent, since a client that decodes for minutes would miss them.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ragen_jax.serve.http_json import MAX_BODY_BYTES

if TYPE_CHECKING:
    from websockets.frames import Frame

INSTALL = "it needs the package websockets: pip install 'ragen_jax[serve]'"
MAX_MESSAGE_BYTES = MAX_BODY_BYTES
NORMAL, GOING_AWAY, INVALID_DATA, TRY_AGAIN_LATER = 1000, 1001, 1007, 1013
# Between two looks at whether the connection has been closed from this side.
LOOK_SECONDS = 0.5
# After the server's last word, for the client's.
CLOSING_SECONDS = 2.0


def check_installed() -> None:
    """Refuse to go on without the library.

    Raises:
      ImportError: says how to install it.
    """
    try:
        import websockets.server  # noqa: F401
    except ImportError as error:
        raise ImportError(f"cannot serve games: {INSTALL}") from error


class WebSocket:
    """A connection after its handshake; one thread receives, any thread sends.

    Args:
      connection: the socket, whose timeout bounds what is sent.
      head: request line and headers, as they came.
    """

    def __init__(self, connection: socket.socket, head: bytes):
        from websockets.protocol import OPEN
        from websockets.server import ServerProtocol

        self._connection, self._lock = connection, threading.Lock()
        self._protocol = ServerProtocol(max_size=MAX_MESSAGE_BYTES)
        self._frames: list[Frame] = []
        # Of a message whose end has not come.
        self._parts: list[Frame] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        with self._lock:
            self._protocol.receive_data(head)
            for request in self._protocol.events_received():
                self._protocol.send_response(self._protocol.accept(request))
            self._flush()
        self.is_open = self._protocol.state is OPEN

    def receive(self, seconds: float) -> str | bytes | None:
        """The next message; None once the connection is closed.

        Raises:
          TimeoutError: none came in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                # Pings, pongs and closes are the protocol's.
                if frame.opcode > 2:
                    continue
                self._parts.append(frame)
                if frame.fin:
                    parts, self._parts = self._parts, []
                    return self._join(parts)
            if not self.is_open:
                return None
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            # In parts, so that it ends soon after another thread has closed.
            if self._selector.select(min(left, LOOK_SECONDS)):
                self._read()

    def send(self, text: str) -> bool:
        """Send a message; False if the connection is closed."""
        with self._lock:
            if not self.is_open:
                return False
            self._protocol.send_text(text.encode())
            return self._flush()

    def close(self, code: int, reason: str = "") -> None:
        """Say that nothing more will be sent; what is on its way arrives first."""
        with self._lock:
            if self.is_open:
                self.is_open = False
                self._protocol.send_close(code, reason)
                self._flush()

    def finish(self) -> None:
        """Read on for a moment, so that the client reads the last message.

        A socket that is closed with unread bytes in it would throw away what the client
        has not read yet.
        """
        deadline = time.monotonic() + CLOSING_SECONDS
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                if not self._selector.select(left) or not self._connection.recv(65_536):
                    break
        self._selector.close()

    def _join(self, frames: Sequence["Frame"]) -> str | bytes | None:
        data = b"".join(frame.data for frame in frames)
        if frames[0].opcode == 2:
            return data
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.close(INVALID_DATA, "a text must be UTF-8")
            return None

    def _read(self) -> None:
        """Take in what has come, and send what the protocol answers."""
        from websockets.protocol import OPEN

        try:
            data = self._connection.recv(65_536)
        except OSError:
            data = b""
        with self._lock:
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            self._frames += self._protocol.events_received()
            self._flush()
            if self._protocol.state is not OPEN or not data:
                self.is_open = False

    def _flush(self) -> bool:
        """Send what waits; False if the client is gone. The lock is held."""
        try:
            for data in self._protocol.data_to_send():
                # An empty part says that nothing follows.
                if data:
                    self._connection.sendall(data)
                else:
                    self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            self.is_open = False
            return False
        return True
