"""The HTTP client of games: JSON out, JSON in.

In: a URL, and for a POST a document. Out: the JSON of the answer, or an `HttpError`
whose sentence says what happened. Does not know what the documents mean.
"""

import contextlib
import http.client
import ipaddress
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.host_games.common.files import parse_json

# Enough for all that a program may print.
MAX_ANSWER_BYTES = 2**28
# Statuses of servers that are busy or are being restarted.
_BUSY = frozenset({429, 500, 502, 503, 504})
_LONGEST_WAIT_SECONDS = 8.0


class HttpError(ConnectionError):
    """A server gave no usable answer; the message says how.

    Attributes:
      status: of the answer; None if there was none or it could not be read.
      may_pass: the server was busy or not reached, so that asking again may help.
    """

    def __init__(self, message: str, status: int | None = None, may_pass: bool = False):
        super().__init__(message)
        self.status, self.may_pass = status, may_pass


def check_url(
    option: str, url: str, schemes: Sequence[str] = ("http", "https")
) -> urllib.parse.SplitResult:
    """The parts of a server's URL.

    Raises:
      ValueError: a server cannot have it.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        # Reading the port checks it.
        is_good = parts.scheme in schemes and parts.hostname and parts.port != 0
    except (ValueError, AttributeError, TypeError):
        # The latter two: it is no text.
        is_good = False
    if not is_good:
        example = f"{schemes[0]}://127.0.0.1:8000"
        raise ValueError(f"{option} is {url!r}; use one like {example}")
    return parts


def is_loopback(host: str | None) -> bool:
    """Whether a host is this machine by its name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def get_json(url: str, *, timeout_seconds: float, max_bytes: int) -> Any:
    """The JSON at a URL, asked for once; see `post_json`."""
    return _ask(urllib.request.Request(url), timeout_seconds, max_bytes)


def post_json(
    url: str,
    document: Any,
    *,
    timeout_seconds: float,
    max_bytes: int = MAX_ANSWER_BYTES,
    headers: Mapping[str, str] | None = None,
    tries: int = 1,
    wait_seconds: float = 0.5,
) -> Any:
    """Sends a document and reads the JSON of the answer.

    Args:
      url: checked by `check_url`.
      document: written as JSON.
      timeout_seconds: for the server to accept, and between two parts of its answer.
      max_bytes: of the answer; a longer one is an error.
      headers: besides those that say that both sides speak JSON.
      tries: requests in all, at least 1. Asked again is a server that is busy or not
        reached; not one that is late, for which more requests would only queue up.
      wait_seconds: before the second try; doubles with each further one.

    Raises:
      HttpError: the server cannot be reached, is late, answers with a status of 400 or
        more, or with something that is not JSON.
    """
    body = json.dumps(document).encode()
    kinds = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(url, body, {**kinds, **(headers or {})})
    for left in reversed(range(tries)):
        try:
            return _ask(request, timeout_seconds, max_bytes)
        except HttpError as error:
            if not error.may_pass or left == 0:
                raise
        time.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, _LONGEST_WAIT_SECONDS)
    raise AssertionError("the last try returns or raises")


def _ask(
    request: urllib.request.Request, timeout_seconds: float, max_bytes: int
) -> Any:
    url = request.full_url
    # A proxy of the environment is for the web, not for a server on this machine.
    proxies = {} if is_loopback(urllib.parse.urlsplit(url).hostname) else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    try:
        with opener.open(request, timeout=timeout_seconds) as response:
            body = response.read(max_bytes + 1)
    except urllib.error.HTTPError as error:
        said = b""
        with error, contextlib.suppress(OSError, http.client.HTTPException):
            said = error.read(200)
        raise HttpError(
            f"{url} answered with status {error.code}: "
            f"{said.decode(errors='replace') or error.reason}; see the server's log",
            status=error.code,
            may_pass=error.code in _BUSY,
        ) from error
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        # urllib wraps an error that comes before the answer.
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            raise HttpError(
                f"{url} did not answer within {timeout_seconds:g} s; raise "
                "timeout_seconds or use a faster server"
            ) from error
        raise HttpError(
            f"no answer from {url}: {cause or type(cause).__name__}; check that the "
            "server runs and that the URL is right",
            may_pass=True,
        ) from error
    if len(body) > max_bytes:
        raise HttpError(f"{url} answered with more than {max_bytes} bytes")
    try:
        return parse_json(body)
    except ValueError as error:
        raise HttpError(
            f"{url} answered with something that is not JSON: {body[:80]!r}; check "
            "that the URL is right"
        ) from error
