"""The server: OpenEnv's WebSocket, and the pages around it.

In: a game and an address. Out: a session of the game for each client. There are no
passwords and no encryption; the default address is reached from this machine alone.
Each connection has a thread, each WebSocket one more, so that pings are answered while
a game computes.
"""

import contextlib
import queue
import selectors
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ragen_jax import install_command
from ragen_jax.host_games.common.http_server import (
    LOCAL_HOST,
    MAX_BODY_BYTES,
    JsonHandler,
    JsonServer,
    RequestError,
)
from ragen_jax.serve import pages, protocol
from ragen_jax.serve.games import Game
from ragen_jax.serve.protocol import Code, MessageError
from ragen_jax.serve.sessions import Session, Sessions

if TYPE_CHECKING:
    from websockets.frames import Frame

# Connections besides the sessions: pages, and clients that are refused.
SPARE_CONNECTIONS = 64
# Messages of a client that wait for their turn; more of them wait in its socket.
MAX_WAITING = 16
# At the end, for sessions to close.
LEAVING_SECONDS = 2.0
NORMAL, GOING_AWAY, INVALID_DATA, TRY_AGAIN_LATER = 1000, 1001, 1007, 1013
# Between two looks at whether the connection has been closed from this side.
POLL_SECONDS = 0.5
# After the server's last message, for the client's.
CLOSING_SECONDS = 2.0


def check_installed() -> None:
    """Refuse to go on without the library.

    Raises:
      ImportError: says how to install it.
    """
    try:
        import websockets.server  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "cannot serve games: it needs the package websockets: "
            + install_command("serve")
        ) from error


class WebSocket:
    """The WebSocket of a connection that HTTP began; any thread sends, one receives.

    Pings of the client are answered while its messages wait. None are sent: a client
    that decodes for minutes would miss them.

    Args:
      connection: the socket, whose timeout bounds what is sent.
      head: request line and headers, as they came.
    """

    def __init__(self, connection: socket.socket, head: bytes):
        from websockets.protocol import OPEN
        from websockets.server import ServerProtocol

        self._connection, self._lock = connection, threading.Lock()
        self._protocol = ServerProtocol(max_size=MAX_BODY_BYTES)
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
            if self._selector.select(min(left, POLL_SECONDS)):
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
        """Sends pending frames; returns False if the client disconnected.

        Call with the lock held.
        """
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


class _Handler(JsonHandler):
    """One connection: a page, or a session."""

    server: "GameServer"
    # A client waits for each answer before it writes again.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path = self.route()
        if path == "/ws":
            self._open_socket()
        elif path == "/":
            page = pages.landing_page(self.server.sessions, self.address())
            self.answer_page(HTTPStatus.OK, "text/html; charset=utf-8", page)
        elif path == "/state":
            if self._refuse_cross_origin():
                return
            self._in_session(lambda session: session.state())
        elif path in pages.DOCUMENTS:
            document = pages.DOCUMENTS[path](self.server.sessions)
            self.answer(HTTPStatus.OK, document)
        else:
            self._refuse_path()

    def do_POST(self) -> None:
        path = self.route()
        if path not in ("/reset", "/step", "/mcp"):
            self._refuse_path()
            return
        if self._refuse_cross_origin():
            return
        try:
            body = self.read_json("an object")
        except RequestError as error:
            if path == "/mcp" and error.status == HTTPStatus.BAD_REQUEST:
                self.answer(HTTPStatus.OK, protocol.answer_mcp(None))
            else:
                self.refuse(error.status, str(error))
            return
        if path == "/mcp":
            self.answer(HTTPStatus.OK, protocol.answer_mcp(body))
        elif not isinstance(body, dict):
            self.refuse(HTTPStatus.UNPROCESSABLE_ENTITY, "the body must be an object")
        elif path == "/reset":
            self._in_session(lambda session: session.reset(protocol.read_reset(body)))
        else:
            self._in_session(lambda session: _step_alone(session, body))

    def _in_session(self, ask: Callable[[Session], dict[str, Any]]) -> None:
        """Answer with the result of `ask` in a session made for this request."""
        sessions = self.server.sessions
        try:
            session = sessions.open()
            try:
                data = ask(session)
            finally:
                sessions.close(session)
        except MessageError as error:
            self.answer(_STATUS[error.code], {"detail": protocol.error_data(error)})
        else:
            self.answer(HTTPStatus.OK, data)

    def _refuse_cross_origin(self) -> bool:
        """Answers 403 to cross-origin requests. Returns whether it did."""
        is_cross_origin = self.is_cross_origin()
        if is_cross_origin:
            message = "pages of other sites cannot connect here"
            self.refuse(HTTPStatus.FORBIDDEN, message)
        return is_cross_origin

    def _open_socket(self) -> None:
        if self._refuse_cross_origin():
            return
        query = urllib.parse.urlsplit(self.path).query
        if "session_id" in urllib.parse.parse_qs(query):
            message = "a session cannot be joined; leave session_id out for a new one"
            self.refuse(HTTPStatus.NOT_FOUND, message)
            return
        try:
            check_installed()
        except ImportError as error:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        lines = [self.requestline, *(f"{k}: {v}" for k, v in self.headers.items())]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
        connection = WebSocket(self.connection, head)
        self.close_connection = True
        if connection.is_open:
            self.server.play(connection)
        connection.finish()

    def _refuse_path(self) -> None:
        self.refuse(
            HTTPStatus.NOT_FOUND, "there is nothing here; GET / says how to connect"
        )


_STATUS = {
    Code.VALIDATION_ERROR: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.EXECUTION_ERROR: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.CAPACITY_REACHED: HTTPStatus.SERVICE_UNAVAILABLE,
}


def _step_alone(session: Session, body: dict[str, Any]) -> dict[str, Any]:
    """The first step of an episode that this request begins and ends."""
    action = body.get("action")
    if not isinstance(action, dict):
        raise MessageError(Code.VALIDATION_ERROR, "Invalid message: action is missing")
    rest = {name: value for name, value in body.items() if name != "action"}
    step = protocol.read_step(action)
    session.reset(protocol.read_reset(rest))
    return session.step(step)


class GameServer(JsonServer):
    """Serves a game over OpenEnv's protocol; see `JsonServer` for its life."""

    def __init__(
        self,
        game: Game,
        *,
        host: str = LOCAL_HOST,
        port: int,
        max_sessions: int,
        idle_seconds: float,
    ):
        """Bind to an address.

        Args:
          game: that clients play.
          host, port: see `JsonServer`.
          max_sessions: played at once; further clients are refused.
          idle_seconds: after which a session without a message ends.

        Raises:
          OSError: the address is taken or not ours.
        """
        self.sessions = Sessions(game, max_sessions)
        self._idle_seconds = idle_seconds
        self._places = threading.BoundedSemaphore(max_sessions + SPARE_CONNECTIONS)
        self._open: set[WebSocket] = set()
        super().__init__(host, port, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, or close it where there are too many."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def play(self, connection: WebSocket) -> None:
        """Serve a client until it leaves, or has said nothing for too long."""
        try:
            session = self.sessions.open()
        except MessageError as error:
            connection.send(protocol.write("error", protocol.error_data(error)))
            connection.close(TRY_AGAIN_LATER, "at capacity")
            return
        inbox: queue.Queue[str | bytes | None] = queue.Queue(MAX_WAITING)
        thread = threading.Thread(
            target=_answer_all, args=(session, connection, inbox), daemon=True
        )
        self._open.add(connection)
        thread.start()
        try:
            self._receive(session, connection, inbox)
        finally:
            inbox.put(None)
            thread.join()
            self._open.discard(connection)
            self.sessions.close(session)

    def _receive(
        self, session: Session, connection: WebSocket, inbox: queue.Queue
    ) -> None:
        num_asked = 0
        while True:
            idle = time.monotonic() - session.last_used
            try:
                raw = connection.receive(max(self._idle_seconds - idle, 0.1))
            except TimeoutError:
                # A client that waits for a slow game is not idle.
                if session.num_answered < num_asked:
                    continue
                if time.monotonic() - session.last_used < self._idle_seconds:
                    continue
                words = f"no message for {self._idle_seconds:g} s; the session ends"
                error = MessageError(Code.SESSION_ERROR, words)
                connection.send(protocol.write("error", protocol.error_data(error)))
                connection.close(GOING_AWAY, "idle")
                return
            if raw is None:
                return
            num_asked += 1
            inbox.put(raw)

    def close_sessions(self) -> int:
        """End all sessions; returns how many there were.

        Waits for games that are thinking, up to the time that a step may take.
        """
        num_open = self.sessions.num_open
        for connection in list(self._open):
            connection.close(GOING_AWAY, "the server stops")
        if not self.sessions.wait_closed(LEAVING_SECONDS):
            step_seconds = self.sessions.game.step_seconds or 0.0
            self.sessions.wait_closed(step_seconds + LEAVING_SECONDS)
        return num_open


def _answer_all(session: Session, connection: WebSocket, inbox: queue.Queue) -> None:
    """Answer messages in order until None comes."""
    is_open = True
    # What is left is taken out all the same: the other thread may wait for room.
    for raw in iter(inbox.get, None):
        if not is_open:
            continue
        text = session.answer(raw)
        if text is None:
            connection.close(NORMAL)
            is_open = False
        else:
            is_open = connection.send(text)
