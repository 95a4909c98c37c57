"""The connection to an OpenEnv server: one WebSocket, one session.

In: requests. Out: the data of the answers, or an error that says which side is at
fault. Knows no games.

Source: `core/env_server/http_server.py` and `types.py` of OpenEnv 0.10.
"""

import contextlib
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ragen_jax.host_games.search.client import LOOPBACK

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

INSTALL = "an OpenEnv server is reached with websockets: pip install 'ragen_jax[serve]'"
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
    """The server read the action and it is none; the episode goes on."""


class _Lost(OpenEnvError):
    """The connection ended before the answer."""


class _NoRoom(OpenEnvError):
    """The server has no session to spare."""


def server_urls(url: str) -> tuple[str, str]:
    """Addresses of a server: `ws://HOST:PORT/ws` and `http://HOST:PORT`.

    Args:
      url: with ws, wss, http or https; a path stays in front of the server's own.

    Raises:
      ValueError: it is none.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        # Reading the port checks it.
        is_good = parts.scheme in _SECURE and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise ValueError(f"url is {url!r}; use one like ws://127.0.0.1:8000")
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
        raise ValueError(INSTALL) from error


def fetch_document(url: str, seconds: float) -> dict[str, Any]:
    """The JSON object at a URL.

    Raises:
      OpenEnvError: there is none.
    """
    proxies = {} if _is_here(url) else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    try:
        with opener.open(url, timeout=seconds) as response:
            body = response.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise OpenEnvError(
            f"no answer from {url}: {getattr(error, 'reason', None) or error}; check "
            "that the server runs and that the URL is right"
        ) from error
    try:
        document = json.loads(body) if len(body) <= MAX_DOCUMENT_BYTES else None
    # Thousands of nested lists are a RecursionError.
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise OpenEnvError(
            f"{url} is no JSON object of up to {MAX_DOCUMENT_BYTES} bytes: "
            f"{body[:80]!r}; check that the URL is an OpenEnv server's"
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
          ActionRefused: it is no action.
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
        except (ConnectionClosed, OSError) as error:
            self._drop()
            raise _Lost(f"{self._url} ended the connection: {error}") from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            self._drop()
            raise OpenEnvError(
                f"{self._url} answered {json.dumps(answer)[:80]}, which is no message"
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

        if self._socket is None:
            self._socket = self._connect()
        # What a server says before it closes, such as that it has no room, may be
        # there although nothing can be sent any more.
        with contextlib.suppress(ConnectionClosed):
            self._socket.send(text)
        raw = self._socket.recv(timeout=self._seconds)
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            return None

    def _connect(self) -> "ClientConnection":
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        proxy = {"proxy": None} if _is_here(self._url) else {}
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
        """Close without a word; the next reset connects anew."""
        self._socket = None
        self._stack.close()


def _first_error(data: Mapping[str, Any]) -> str:
    """What is wrong with an action, in a few words."""
    errors = data.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    if not isinstance(first, dict):
        return ""
    place = first.get("loc")
    where = ".".join(map(str, place)) if isinstance(place, list) else ""
    return f"{where}: {first.get('msg', '')}"[:200]


def _is_here(url: str) -> bool:
    """Whether a server is on this machine; a proxy for the web is none for it."""
    return urllib.parse.urlsplit(url).hostname in LOOPBACK
