"""The connection to an OpenEnv server: one WebSocket, one session.

In: requests. Out: the data of the answers, or an error that says which side is at
fault. Knows no games.

Source: `core/env_server/http_server.py` and `types.py` of OpenEnv 0.10.
"""

import contextlib
import json
import time
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ragen_jax import install_command
from ragen_jax.host_games.common.files import parse_json
from ragen_jax.host_games.common.http import (
    HttpError,
    check_url,
    get_json,
    is_loopback,
)

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

MAX_DOCUMENT_BYTES = 1_000_000
MAX_MESSAGE_BYTES = 16_000_000
# A server may end a session a moment after its client, and take no other before.
ROOM_SECONDS = 2.0
CLOSE_SECONDS = 1.0
# Codes of errors that mean something to a client.
_CAPACITY, _REFUSED_ACTION = "CAPACITY_REACHED", "VALIDATION_ERROR"
_SESSION_ENDED = "SESSION_ERROR"


class OpenEnvError(ConnectionError):
    """The server did not answer as it should; the message says how."""


class ActionRefused(ValueError):
    """The server rejected the action as invalid; the episode continues."""


class _Lost(OpenEnvError):
    """The connection ended before the answer."""


class _NoRoom(OpenEnvError):
    """The server has no session to spare."""


def server_urls(url: str) -> tuple[str, str]:
    """Addresses of a server: `ws://HOST:PORT/ws` and `http://HOST:PORT`.

    Args:
      url: with ws, wss, http or https; a path stays in front of the server's own.

    Raises:
      ValueError: a server cannot have it.
    """
    parts = check_url("url", url, schemes=tuple(_SECURE))
    if parts.query or parts.fragment:
        raise ValueError(f"url is {url!r}; leave out what follows ? or #")
    secure = "s" if _SECURE[parts.scheme] else ""
    path = parts.path.rstrip("/").removesuffix("/ws")
    return (
        f"ws{secure}://{parts.netloc}{path}/ws",
        f"http{secure}://{parts.netloc}{path}",
    )


# Scheme -> whether it is encrypted.
_SECURE = {"ws": False, "http": False, "wss": True, "https": True}


def check_installed() -> None:
    """Refuse to go on without the library.

    Raises:
      ValueError: says how to install it.
    """
    try:
        import websockets.sync.client  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "an OpenEnv server is reached with websockets: " + install_command("serve")
        ) from error


def fetch_document(url: str, seconds: float) -> dict[str, Any]:
    """The JSON object at a URL.

    Raises:
      OpenEnvError: the server does not answer with one.
    """
    try:
        document = get_json(url, timeout_seconds=seconds, max_bytes=MAX_DOCUMENT_BYTES)
    except HttpError as error:
        raise OpenEnvError(str(error)) from error
    if not isinstance(document, dict):
        raise OpenEnvError(
            f"{url} is not a JSON object: {json.dumps(document)[:80]}; check that the "
            "URL is an OpenEnv server's"
        )
    return document


class Connection:
    """A session of a server; it begins with the first reset.

    A connection that was lost is made anew by the next reset, never inside an episode,
    which the server has forgotten by then.

    Args:
      url: `ws://HOST:PORT/ws`.
      timeout_seconds: for each answer.
    """

    def __init__(self, url: str, timeout_seconds: float):
        self._url, self._seconds = url, timeout_seconds
        self._socket: ClientConnection | None = None
        self._stack = contextlib.ExitStack()

    def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode; returns the data of its observation.

        Raises:
          OpenEnvError: it has not begun.
        """
        request = {"type": "reset", "data": dict(data)}
        was_open = self._socket is not None
        deadline = time.monotonic() + ROOM_SECONDS
        wait = 0.05
        while True:
            try:
                return self._ask(request)
            except ActionRefused as error:
                raise OpenEnvError(f"{self._url} refuses a reset: {error}") from error
            except _Lost as error:
                # Idle for long, or a server that closes where it has no room.
                if was_open:
                    was_open = False
                    continue
                if time.monotonic() > deadline:
                    raise OpenEnvError(
                        f"{error}; it may have no room for another session: every row "
                        "has one, so start it with that many, or use fewer rows"
                    ) from error
            except _NoRoom:
                if time.monotonic() > deadline:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, 0.5)

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Act; returns the data of the observation.

        Raises:
          ActionRefused: it is not an action.
          OpenEnvError: the episode is lost.
        """
        if self._socket is None:
            raise OpenEnvError("there is no episode: its connection was lost")
        return self._ask({"type": "step", "data": dict(action)})

    def close(self) -> None:
        """End the session."""
        from websockets.exceptions import WebSocketException

        if self._socket is None:
            return
        with contextlib.suppress(OSError, WebSocketException):
            self._socket.send(json.dumps({"type": "close"}))
        self._drop()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        try:
            answer = self._exchange(json.dumps(request))
        except TimeoutError as error:
            self._drop()
            raise OpenEnvError(
                f"{self._url} did not answer within {self._seconds:g} s; raise "
                "timeout_seconds, or use a faster server"
            ) from error
        except OpenEnvError:
            # There is no connection; `_Lost` is one that has ended.
            raise
        except (ConnectionClosed, OSError) as error:
            self._drop()
            raise _Lost(f"{self._url} ended the connection: {error}") from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            self._drop()
            raise OpenEnvError(
                f"{self._url} answered {json.dumps(answer)[:80]}, which is not a "
                "message"
            )
        if answer.get("type") == "error":
            self._raise(data)
        if answer.get("type") != "observation":
            self._drop()
            raise OpenEnvError(
                f"{self._url} answered with a message of type "
                f"{json.dumps(answer.get('type'))[:80]}, not an observation"
            )
        return data

    def _exchange(self, text: str) -> Any:
        from websockets.exceptions import ConnectionClosed

        is_new = self._socket is None
        if is_new:
            self._socket = self._connect()
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            # An error that came meanwhile is the answer; a second answer to the last
            # request would be taken for this one's, and all later ones be one behind.
            said = None if is_new else _parse(self._socket.recv(timeout=0))
            if isinstance(said, dict) and said.get("type") == "error":
                return said
            if not is_new:
                self._drop()
                raise _Lost(f"{self._url} answered a request twice")
        # What a server says before it closes, such as that it has no room, may be
        # there although nothing can be sent any more.
        with contextlib.suppress(ConnectionClosed):
            self._socket.send(text)
        return _parse(self._socket.recv(timeout=self._seconds))

    def _connect(self) -> "ClientConnection":
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        host = urllib.parse.urlsplit(self._url).hostname
        # A proxy of the environment is for the web, not for a server on this machine.
        proxy = {"proxy": None} if is_loopback(host) else {}
        try:
            return self._stack.enter_context(
                connect(
                    self._url,
                    compression=None,
                    open_timeout=self._seconds,
                    close_timeout=CLOSE_SECONDS,
                    # No answers to pings while the model replies, for minutes.
                    ping_interval=None,
                    max_size=MAX_MESSAGE_BYTES,
                    **proxy,
                )
            )
        except (OSError, WebSocketException) as error:
            raise OpenEnvError(
                f"cannot connect to {self._url}: {error or type(error).__name__}; "
                "check that the server runs and that the URL is right"
            ) from error

    def _raise(self, data: Mapping[str, Any]) -> None:
        code, message = data.get("code"), str(data.get("message", ""))[:500]
        if code == _REFUSED_ACTION:
            raise ActionRefused(_first_error(data) or message)
        self._drop()
        if code == _CAPACITY:
            raise _NoRoom(
                f"{self._url} has no room for another session ({message}); every row "
                "has one: start the server with that many, or use fewer rows"
            )
        kind = _Lost if code == _SESSION_ENDED else OpenEnvError
        raise kind(f"{self._url} failed with {code}: {message}")

    def _drop(self) -> None:
        """Drops the connection without a close frame; the next reset connects anew."""
        self._socket = None
        self._stack.close()


def _parse(raw: str | bytes) -> Any:
    """The value of a message; None: it is not JSON."""
    try:
        return parse_json(raw)
    except ValueError:
        return None


def _first_error(data: Mapping[str, Any]) -> str:
    errors = data.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    if not isinstance(first, dict):
        return ""
    place = first.get("loc")
    where = ".".join(map(str, place)) if isinstance(place, list) else ""
    return f"{where}: {first.get('msg', '')}"[:200]
