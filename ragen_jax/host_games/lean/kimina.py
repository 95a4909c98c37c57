"""Checks Lean scripts on a Kimina Lean server, over HTTP.

In: a script. Out: Lean's messages. Refuses to blame a player for a server: what is not
an answer about the script is a `KiminaError`, which ends the row and not the reward.

Protocol (project-numina/kimina-lean-server): one `POST /api/check` with a list of
snippets; each result has `error` (a sentence, such as that Lean timed out) or
`response` (`messages`, `sorries`, or one `message` where the REPL itself failed). The
older `POST /verify` calls a snippet's `id` and `code` `custom_id` and `proof`. Status
429 says that all of the server's REPLs are busy.
"""

import hashlib
import http.client
import ipaddress
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from ragen_jax.host_games.lean.checker import CheckResult, Message

# Path and the names of its fields: the list, a snippet's name, its text.
APIS = {
    "check": ("/api/check", "snippets", "id", "code"),
    "verify": ("/verify", "codes", "custom_id", "proof"),
}
# Answers after which asking again may help: busy, and what a restarting server says.
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
# The server stops Lean itself after the timeout; this is for the way there and back and
# for the start of a REPL, which imports Mathlib.
_GRACE_SECONDS = 60
_LONGEST_WAIT_SECONDS = 8.0
_MAX_ANSWER_BYTES = 16 * 2**20
_SORRY = "declaration uses 'sorry'"
# Lean's own warning; newer versions quote the word differently.
_WARNS_OF_SORRY = re.compile(r"declaration uses .sorry.")


class KiminaError(ConnectionError):
    """No answer about the script has come from the server."""


class KiminaChecker:
    """A client of one server; see `lean_check.Checker`.

    Args:
      url: of the server, such as `http://127.0.0.1:8000`, without a path.
      timeout_seconds: that Lean may take for a script; a whole number.
      api: `check`, or `verify` for servers that have only the older path.
      key_variable: environment variable with the server's key; None: it wants none.
      tries: requests sent before a busy or silent server is given up, at least 1.
      wait_seconds: before the second try; doubles with each further one.

    Raises:
      ValueError: an argument is out of range.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: int = 30,
        api: str = "check",
        key_variable: str | None = None,
        tries: int = 6,
        wait_seconds: float = 0.5,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url is {url!r}; use one as http://127.0.0.1:8000.")
        if api not in APIS:
            raise ValueError(f"api is {api!r}; use {' or '.join(APIS)}.")
        if isinstance(timeout_seconds, bool) or not isinstance(timeout_seconds, int):
            raise ValueError(
                f"timeout_seconds is {timeout_seconds!r}; use a whole number, as the "
                "protocol does."
            )
        if timeout_seconds < 1 or tries < 1 or wait_seconds < 0:
            raise ValueError(
                f"timeout_seconds is {timeout_seconds}, tries {tries}, wait_seconds "
                f"{wait_seconds}; use at least 1, 1 and 0."
            )
        path, self._list, self._id, self._code = APIS[api]
        self.url = url.rstrip("/") + path
        self.timeout_seconds = timeout_seconds
        self.tries = tries
        self.wait_seconds = wait_seconds
        self._headers = {"Content-Type": "application/json", **_key(key_variable)}
        # A proxy for the web is none for a server on this machine.
        proxies = {} if _is_loopback(parts.hostname) else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def check(self, code: str) -> CheckResult:
        """The verdict of Lean.

        Raises:
          KiminaError: the server is busy for too long, cannot be reached, or answers
            what the protocol does not have.
        """
        name = hashlib.blake2b(code.encode(), digest_size=16).hexdigest()
        snippet = {self._id: name, self._code: code}
        # What is left out (debug, infotree, reuse of a REPL) is off, off and on.
        body = {self._list: [snippet], "timeout": self.timeout_seconds}
        answer = self._ask(json.dumps(body).encode())
        try:
            (result,) = answer["results"]
            if result[self._id] != name:
                raise ValueError(f"answer to {result[self._id]!r}")
            return read_result(result)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise KiminaError(
                f"{self.url} answered what the protocol does not have: {error!r}."
            ) from error

    def close(self) -> None:
        """Every request has its own connection; nothing is held."""

    def _ask(self, body: bytes) -> Mapping[str, Any]:
        wait = self.wait_seconds
        for left in reversed(range(self.tries)):
            try:
                return self._post(body)
            except urllib.error.HTTPError as error:
                problem = f"status {error.code}: {_sentence(error)}"
                if error.code not in _TRY_AGAIN or left == 0:
                    raise self._given_up(problem) from error
            except TimeoutError as error:
                # It has had its time; more tries would only queue more work.
                raise self._given_up("no answer in time") from error
            except (OSError, http.client.HTTPException) as error:
                if left == 0:
                    raise self._given_up(repr(error)) from error
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _post(self, body: bytes) -> Mapping[str, Any]:
        request = urllib.request.Request(self.url, body, self._headers, method="POST")
        limit = self.timeout_seconds + _GRACE_SECONDS
        with self._opener.open(request, timeout=limit) as answer:
            text = answer.read(_MAX_ANSWER_BYTES + 1)
        if len(text) > _MAX_ANSWER_BYTES:
            raise KiminaError(f"{self.url} answered over {_MAX_ANSWER_BYTES} bytes.")
        try:
            return json.loads(text)
        except ValueError as error:
            raise KiminaError(f"{self.url} answered no JSON: {text[:80]!r}.") from error

    def _given_up(self, problem: str) -> KiminaError:
        return KiminaError(
            f"no answer from the Lean server at {self.url} ({problem}); start it, or "
            "raise its number of REPLs or `tries`."
        )


def read_result(result: Mapping[str, Any]) -> CheckResult:
    """One entry of the protocol's `results`.

    Raises:
      KeyError, TypeError, ValueError, AttributeError: it is none.
    """
    error = result.get("error")
    if error is not None:
        is_timeout = "timed out" in error.lower()
        return CheckResult((), False, error=error, is_timeout=is_timeout)
    response = result["response"]
    if "message" in response:
        return CheckResult((), False, error=str(response["message"]))
    messages = [
        Message(
            severity=message["severity"],
            line=message["pos"]["line"],
            column=message["pos"]["column"],
            text=str(message["data"]),
        )
        for message in response.get("messages") or ()
    ]
    # Lean only warns of `sorry`; to a proof it is an error.
    for sorry in response.get("sorries") or ():
        at = sorry.get("pos") or {"line": 1, "column": 0}
        messages.append(Message("error", at["line"], at["column"], _SORRY))
    is_done = not any(
        m.severity == "error" or _WARNS_OF_SORRY.search(m.text) for m in messages
    )
    return CheckResult(tuple(messages), is_done)


def _sentence(error: urllib.error.HTTPError) -> str:
    with error:
        return error.read(200).decode(errors="replace")


def _key(variable: str | None) -> dict[str, str]:
    if variable is None:
        return {}
    if not os.environ.get(variable):
        raise ValueError(
            f"key_variable is {variable!r}, which is not set in the environment; set "
            "it to the server's key, or leave key_variable out."
        )
    return {"Authorization": f"Bearer {os.environ[variable]}"}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
