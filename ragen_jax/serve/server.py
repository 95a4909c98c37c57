"""The server: OpenEnv's WebSocket, and the pages around it.

In: a game and an address. Out: a session of the game for each client. There are no
passwords and no encryption; the default address is reached from this machine alone.
Each connection has a thread, each WebSocket one more, so that pings are answered while
a game computes.
"""

import logging
import queue
import threading
import time
import urllib.parse
from http import HTTPStatus
from typing import Any

from ragen_jax.host_games.search.client import LOOPBACK
from ragen_jax.serve import pages, protocol, websocket
from ragen_jax.serve.games import Game
from ragen_jax.serve.http_json import LOCAL_HOST, JsonHandler, JsonServer, RequestError
from ragen_jax.serve.protocol import Code, MessageError
from ragen_jax.serve.sessions import Session, Sessions
from ragen_jax.serve.websocket import WebSocket

logger = logging.getLogger(__name__)

# Connections besides the sessions: pages, and clients that are refused.
SPARE_CONNECTIONS = 64
# Messages of a client that wait for their turn; more of them wait in its socket.
MAX_WAITING = 16
# At the end, for sessions to close.
LEAVING_SECONDS = 2.0


class _Handler(JsonHandler):
    """One connection: a page, or a session."""

    server: "GameServer"
    # A client waits for each answer before it writes again.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        if path == "/ws":
            self._open_socket()
        elif path == "/":
            page = pages.landing_page(self.server.sessions, self._address())
            self.answer_page(HTTPStatus.OK, "text/html; charset=utf-8", page)
        elif path == "/state":
            if self._refuse_foreign():
                return
            self._in_session(lambda session: session.state())
        elif path in pages.DOCUMENTS:
            document = pages.DOCUMENTS[path](self.server.sessions.game)
            self.answer(HTTPStatus.OK, document)
        else:
            self._refuse_path()

    def do_POST(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        if path not in ("/reset", "/step", "/mcp"):
            self._refuse_path()
            return
        if self._refuse_foreign():
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

    def _in_session(self, ask) -> None:
        """Answer with what `ask` gets from a session of this request alone."""
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

    def _address(self) -> str:
        """The server's, as the client has reached it."""
        return self.headers.get("Host") or urllib.parse.urlsplit(self.server.url).netloc

    def _is_foreign(self) -> bool:
        """Whether a page of another site asks; browsers let any page connect here."""
        origin = self.headers.get("Origin")
        if origin is None:
            return False
        site = urllib.parse.urlsplit(origin)
        # A name of another site may lead to this machine.
        is_local = self.server.server_address[0] in LOOPBACK
        if is_local and site.hostname not in LOOPBACK:
            return True
        return site.netloc != self._address()

    def _refuse_foreign(self) -> bool:
        """Refuse what a page of another site asks; whether it was."""
        is_foreign = self._is_foreign()
        if is_foreign:
            self.refuse(
                HTTPStatus.FORBIDDEN, "pages of other sites cannot connect here"
            )
        return is_foreign

    def _open_socket(self) -> None:
        if self._refuse_foreign():
            return
        query = urllib.parse.urlsplit(self.path).query
        if "session_id" in urllib.parse.parse_qs(query):
            message = "a session cannot be joined; leave session_id out for a new one"
            self.refuse(HTTPStatus.NOT_FOUND, message)
            return
        try:
            websocket.check_installed()
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
            connection.close(websocket.TRY_AGAIN_LATER, "at capacity")
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
                # A game that takes its time is no idle client.
                if session.num_answered < num_asked:
                    continue
                if time.monotonic() - session.last_used < self._idle_seconds:
                    continue
                words = f"no message for {self._idle_seconds:g} s; the session ends"
                error = MessageError(Code.SESSION_ERROR, words)
                connection.send(protocol.write("error", protocol.error_data(error)))
                connection.close(websocket.GOING_AWAY, "idle")
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
            connection.close(websocket.GOING_AWAY, "the server stops")
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
            connection.close(websocket.NORMAL)
            is_open = False
        else:
            is_open = connection.send(text)
