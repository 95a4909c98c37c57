"""Checks Lean scripts on a Kimina Lean server, over HTTP.

In: a script. Out: Lean's messages. Does not blame a player for a server: what is not
an answer about the script is a `KiminaError`, which ends the row and not the reward.

Protocol (project-numina/kimina-lean-server): one `POST /api/check` with a list of
snippets; each result has `error` (a sentence, such as that Lean timed out) or
`response` (`messages`, `sorries`, or one `message` where the REPL itself failed). The
older `POST /verify` calls a snippet's `id` and `code` `custom_id` and `proof`. Status
429 says that all of the server's REPLs are busy.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any

from ragen_jax.host_games.common.http import HttpError, check_url, post_json
from ragen_jax.host_games.common.options import (
    check_number,
    check_one_of,
    check_whole,
)
from ragen_jax.host_games.lean.checker import CheckResult, Message

# Path and the names of its fields: the list, a snippet's name, its text.
APIS = {
    "check": ("/api/check", "snippets", "id", "code"),
    "verify": ("/verify", "codes", "custom_id", "proof"),
}
# The server stops Lean itself after the timeout; this is for the way there and back and
# for the start of a REPL, which imports Mathlib.
_GRACE_SECONDS = 60
_MAX_ANSWER_BYTES = 16 * 2**20
_SORRY = "declaration uses 'sorry'"
# Lean's own warning; newer versions quote the word differently.
_WARNS_OF_SORRY = re.compile(r"declaration uses .sorry.")


class KiminaError(ConnectionError):
    """No answer about the script has come from the server."""


class KiminaChecker:
    """A client of one server; see `checker.Checker`.

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
        check_url("url", url)
        check_one_of("api", api, APIS)
        check_whole("timeout_seconds", timeout_seconds)
        check_whole("tries", tries)
        check_number("wait_seconds", wait_seconds, least=0)
        path, self._list, self._id, self._code = APIS[api]
        self.url = url.rstrip("/") + path
        self.timeout_seconds = timeout_seconds
        self.tries = tries
        self.wait_seconds = wait_seconds
        self._headers = _key(key_variable)

    @property
    def try_seconds(self) -> int:
        """How long a request is waited for."""
        return self.timeout_seconds + _GRACE_SECONDS

    def check(self, code: str) -> CheckResult:
        """The verdict of Lean.

        An error of Lean's process is the script's if it comes a second time.

        Raises:
          KiminaError: the server is busy for too long, cannot be reached, does not get
            as far as the script, or answers what the protocol does not have.
        """
        result = self._ask(code)
        if result.error is None or result.is_timeout:
            return result
        return self._ask(code)

    def _ask(self, code: str) -> CheckResult:
        name = hashlib.blake2b(code.encode(), digest_size=16).hexdigest()
        snippet = {self._id: name, self._code: code}
        # What is left out (debug, infotree, reuse of a REPL) is off, off and on.
        body = {self._list: [snippet], "timeout": self.timeout_seconds}
        try:
            answer = post_json(
                self.url,
                body,
                timeout_seconds=self.try_seconds,
                max_bytes=_MAX_ANSWER_BYTES,
                headers=self._headers,
                tries=self.tries,
                wait_seconds=self.wait_seconds,
            )
        except HttpError as error:
            raise KiminaError(
                f"no verdict from the Lean server: {error}; start it, or raise its "
                "number of REPLs or `tries`."
            ) from error
        try:
            (result,) = answer["results"]
            if result[self._id] != name:
                raise ValueError(f"answer to {result[self._id]!r}")
            return read_result(result)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise KiminaError(
                f"{self.url} answered what the protocol does not have: {error!r}."
            ) from error


def read_result(result: Mapping[str, Any]) -> CheckResult:
    """One entry of the protocol's `results`.

    Raises:
      KiminaError: the server has not come to the script.
      KeyError, TypeError, ValueError, AttributeError: it is not one.
    """
    error = result.get("error")
    if error is not None:
        is_timeout = "timed out" in error.lower()
        if is_timeout and "header" in error.lower():
            raise KiminaError(
                f"the Lean server did not import Mathlib in time ({error}); start it "
                "with REPLs that have, or raise timeout_seconds."
            )
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


def _key(variable: str | None) -> dict[str, str]:
    if variable is None:
        return {}
    if not os.environ.get(variable):
        raise ValueError(
            f"key_variable is {variable!r}, which is not set in the environment; set "
            "it to the server's key, or leave key_variable out."
        )
    return {"Authorization": f"Bearer {os.environ[variable]}"}
