"""A server that speaks OpenAI's API for a model that is plugged in.

In: a function that answers a `ChatCall`, and a name for the model. Out: a URL, to which
programs with any client of that API point. It has no passwords: any key is accepted,
and the default address is reached from this machine alone.

| request | what it is |
|---|---|
| `POST /v1/chat/completions` | a reply, whole or as a stream |
| `POST /v1/responses` | the same in the Responses API |
| `GET /v1/models`, `GET /v1/models/ID` | the one model |
| `GET /health` | says that the server runs |

Connections are kept for further requests (HTTP/1.1), since clients reuse them. An
answer is whole before its first byte is sent, streams included, so each has its length
and an error its status. `parameters` says which parameters are read, and which refused.
"""

import itertools
import json
import logging
import secrets
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Self

from ragen_jax.host_games.agent import chat, responses
from ragen_jax.host_games.agent.calls import CallRefused, ChatAnswer, ChatCall
from ragen_jax.host_games.agent.messages import check_document
from ragen_jax.host_games.common.http_server import (
    LOCAL_HOST,
    PATIENCE_SECONDS,
    JsonHandler,
    JsonServer,
    RequestError,
)

logger = logging.getLogger(__name__)

# A context of a million characters, and as much again for tools.
MAX_BODY_BYTES = 8_000_000
MAX_CONNECTIONS = 128
# Connections beyond the limit that are told so; still further ones are closed.
SPARE_CONNECTIONS = 64
SPARE_PATIENCE_SECONDS = 5.0
# Between two looks of the accepting thread at whether the server is closed.
POLL_SECONDS = 0.05
STREAM = "text/event-stream; charset=utf-8"

Complete = Callable[[ChatCall], ChatAnswer]


class ApiServer:
    """Answers at `url` from its making until `close`, or the end of a `with`.

    Calls are completed in the thread of their connection, several at once. A call whose
    agent goes away is completed all the same. What raises anything but `CallRefused` is
    logged and answered by status 500, which clients do not repeat.
    """

    def __init__(
        self,
        complete: Complete,
        *,
        model: str,
        host: str = LOCAL_HOST,
        port: int = 0,
        max_connections: int = MAX_CONNECTIONS,
        max_body_bytes: int = MAX_BODY_BYTES,
        patience_seconds: float = PATIENCE_SECONDS,
    ):
        """Listen, and answer in threads of this process.

        Args:
          complete: the reply to a call; may raise `CallRefused`.
          model: name by which agents ask for it.
          host, port: see `JsonServer`.
          max_connections: open at once; further ones get status 503.
          max_body_bytes: of a request.
          patience_seconds: for a client to send a request, and to begin the next one.

        Raises:
          OSError: the address is taken or not ours.
          ValueError: `max_connections` is below 1.
        """
        if max_connections < 1:
            raise ValueError(f"max_connections={max_connections} must be at least 1")
        self._server = _Server(
            (host, port), complete, model, max_connections, max_body_bytes
        )
        self._server.patience_seconds = patience_seconds
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """What clients call the base URL; ends in /v1."""
        return f"{self._server.url}/v1"

    def close(self) -> None:
        """Free the port and end all connections.

        Calls that are being completed are not waited for; their answers go nowhere.
        """
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.close_connections()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Server(JsonServer):
    """What the connections share."""

    patience_seconds = PATIENCE_SECONDS

    def __init__(
        self,
        address: tuple[str, int],
        complete: Complete,
        model: str,
        max_connections: int,
        max_body_bytes: int,
    ):
        self.complete, self.model = complete, model
        self.max_connections, self.max_body_bytes = max_connections, max_body_bytes
        self.created, self.dialogues = int(time.time()), responses.Dialogues()
        # Ids of another server, or of one before it, name nothing here.
        self._prefix, self._numbers = secrets.token_hex(6), itertools.count(1)
        self._lock = threading.Lock()
        # Open connections, and whether each is beyond the limit.
        self._open: dict[socket.socket, bool] = {}
        super().__init__(*address, _Handler)

    def new_id(self, kind: str) -> str:
        """An id that no other answer has."""
        return f"{kind}{self._prefix}{next(self._numbers)}"

    def is_spare(self, connection: socket.socket) -> bool:
        """Whether a connection is beyond the limit."""
        with self._lock:
            return self._open[connection]

    def is_half_full(self) -> bool:
        """Whether connections should not be kept, so that idle ones leave room."""
        with self._lock:
            return 2 * len(self._open) > self.max_connections

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = len(self._open) >= self.max_connections
        super().process_request(request, client_address)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            return len(self._open) < self.max_connections + SPARE_CONNECTIONS

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """End all connections; their threads see that nothing more comes."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                logger.debug("A connection had ended: %s", error)


class _Handler(JsonHandler):
    """One connection of a client."""

    server: _Server
    is_persistent = True
    # A client waits for each answer before it writes again.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        self.max_body_bytes = self.server.max_body_bytes
        self._is_spare = self.server.is_spare(self.request)
        self.timeout = self.server.patience_seconds
        if self._is_spare:
            self.timeout = min(self.timeout, SPARE_PATIENCE_SECONDS)
        super().setup()

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    def _other_method(self) -> None:
        self._respond(self._refuse_path)

    do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = do_PUT = _other_method

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Refuse bytes that are no request; the base class calls it."""
        self.close_connection = self._has_unread = True
        # Otherwise the base class leaves out status and headers, as HTTP/0.9 does.
        self.request_version = self.protocol_version
        status = HTTPStatus(code)
        said = f"this is no HTTP request that can be read: {message or status.phrase}"
        self._refuse(CallRefused(f"{said}; send another", status, "bad_request"))

    def _respond(self, answer: Callable[[bytes], None]) -> None:
        """Read the whole request, then answer it."""
        try:
            body = b""
            if self.command == "POST" or "Content-Length" in self.headers:
                body = self.read_body()
            if self._is_spare:
                self.close_connection = True
                raise CallRefused(
                    f"the server has {self.server.max_connections} connections, which "
                    "is its limit; try again later",
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "too_many_connections",
                )
            if self.server.is_half_full():
                self.close_connection = True
            if self.is_cross_origin():
                raise CallRefused(
                    "pages of other sites cannot connect here; use a program",
                    HTTPStatus.FORBIDDEN,
                    "cross_origin",
                )
            answer(body)
        except RequestError as error:
            self._refuse(error)
        except OSError:
            # The client has gone away, or does not read.
            raise
        except Exception:
            logger.exception("A request failed")
            self._refuse(
                CallRefused(
                    "the server failed to answer; its log says why",
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "internal_error",
                )
            )

    def _get(self, body: bytes) -> None:
        path, models = self.route().rstrip("/"), "/v1/models"
        if path == "/health":
            self.answer(HTTPStatus.OK, {"status": "healthy"})
        elif path == models:
            self.answer(HTTPStatus.OK, {"object": "list", "data": [self._model()]})
        elif path.startswith(f"{models}/"):
            self._check_model(urllib.parse.unquote(path.removeprefix(f"{models}/")))
            self.answer(HTTPStatus.OK, self._model())
        else:
            self._refuse_path(body)

    def _post(self, body: bytes) -> None:
        asks = {"/v1/chat/completions": self._chat, "/v1/responses": self._response}
        ask = asks.get(self.route().rstrip("/"))
        if ask is None:
            self._refuse_path(body)
        else:
            ask(self._read_object(body))

    def _refuse_path(self, body: bytes) -> None:
        path = self.route().rstrip("/")
        known = {
            "/v1/chat/completions": "POST",
            "/v1/responses": "POST",
            "/v1/models": "GET",
            "/health": "GET",
        }
        if path in known:
            raise CallRefused(
                f"{self.command} is not allowed for {path}; use {known[path]}",
                HTTPStatus.METHOD_NOT_ALLOWED,
                "method_not_allowed",
            )
        raise CallRefused(
            f"there is nothing at {path[:80]}; use {', '.join(known)}: a client's base "
            "URL ends in /v1",
            HTTPStatus.NOT_FOUND,
            "unknown_url",
        )

    def _read_object(self, body: bytes) -> dict[str, Any]:
        document = self.parse(body, "an object")
        if not isinstance(document, dict):
            raise CallRefused("the body is no JSON object; send one")
        check_document(document)
        # What is no text has its error in the table of parameters.
        if isinstance(document.get("model"), str):
            self._check_model(document["model"])
        return document

    def _complete(self, call: ChatCall) -> ChatAnswer:
        """The reply; whatever goes wrong becomes an answer, not a lost connection."""
        try:
            answer = self.server.complete(call)
            if not isinstance(answer, ChatAnswer):
                raise TypeError(f"a call was completed by a {type(answer).__name__}")
            return answer
        except CallRefused:
            raise
        except Exception as error:
            logger.exception("A call failed")
            raise CallRefused(
                "the call could not be completed; the server's log says why",
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "internal_error",
            ) from error

    def _chat(self, document: dict[str, Any]) -> None:
        call, options = chat.read_request(document)
        answer = self._complete(call)
        names = self._names("chatcmpl-")
        if options.stream:
            chunks = chat.write_chunks(answer, call, options, **names)
            lines = [f"data: {_write_json(chunk)}" for chunk in chunks]
            self._stream([*lines, "data: [DONE]"])
        else:
            self.answer(HTTPStatus.OK, chat.write_answer(answer, call, **names))

    def _response(self, document: dict[str, Any]) -> None:
        dialogues = self.server.dialogues
        request = responses.read_request(document, dialogues.find)
        answer = self._complete(request.call)
        names = self._names("resp_")
        if request.is_kept:
            said = responses.continue_dialogue(request.said, answer)
            dialogues.keep(names["answer_id"], said)
        if request.stream:
            events = responses.write_events(answer, request, **names)
            self._stream(f"event: {e['type']}\ndata: {_write_json(e)}" for e in events)
        else:
            self.answer(HTTPStatus.OK, responses.write_answer(answer, request, **names))

    def _names(self, kind: str) -> dict[str, str]:
        return {"answer_id": self.server.new_id(kind), "model": self.server.model}

    def _stream(self, events: Iterable[str]) -> None:
        page = "".join(f"{event}\n\n" for event in events)
        self.answer_page(HTTPStatus.OK, STREAM, page, **{"Cache-Control": "no-cache"})

    def _model(self) -> dict[str, Any]:
        return {
            "id": self.server.model,
            "object": "model",
            "created": self.server.created,
            "owned_by": "ragen_jax",
        }

    def _check_model(self, name: Any) -> None:
        if name != self.server.model:
            raise CallRefused(
                f"there is no model {name!r:.80}; ask for {self.server.model!r}",
                HTTPStatus.NOT_FOUND,
                "model_not_found",
                "model",
            )

    def answer(self, status: HTTPStatus, answer: Any) -> None:
        """Answer with JSON."""
        self.answer_page(status, "application/json", _write_json(answer))

    def _refuse(self, error: RequestError) -> None:
        """Answer with OpenAI's form of an error."""
        said = {
            "message": str(error),
            "type": _error_type(error.status),
            "param": getattr(error, "param", None),
            "code": getattr(error, "code", None),
        }
        is_busy = error.status == HTTPStatus.SERVICE_UNAVAILABLE
        # Clients repeat requests that meet limits or faults; only a server that has
        # too many connections would answer otherwise then.
        again = {"Retry-After": "1"} if is_busy else {"x-should-retry": "false"}
        page = _write_json({"error": said})
        self.answer_page(error.status, "application/json", page, **again)


def _error_type(status: HTTPStatus) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def _write_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, allow_nan=False)
