"""One request to an OpenAI-compatible endpoint, sent again until it is answered.

In: chat messages. Out: a `ChatReply`. Failures that may pass are waited out, all others
are one sentence. Knows no games. The key is held here alone: whatever leaves this file
as text, replies and errors included, has been cleared of it.
"""

import asyncio
import datetime
import email.utils
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.rollout.host import ChatReply

# Seconds: the longest wait between two tries that we choose, and that a server may.
MAX_BACKOFF_SECONDS = 60.0
MAX_RETRY_AFTER_SECONDS = 600.0
_MAY_PASS = (408, 409, 425, 429)
_MAX_QUOTED_CHARACTERS = 300
# Successive multiples, modulo 1, are spread evenly: tries of many conversations never
# come together, and the same command waits as long each time.
_GOLDEN_RATIO = 0.6180339887


class EndpointError(ValueError):
    """The endpoint does not answer, for a reason that will not pass by itself."""


class _MayPass(Exception):
    """A failure worth another try; `wait_seconds` is what the server asks for."""

    def __init__(self, sentence: str, wait_seconds: float = 0.0):
        super().__init__(sentence)
        self.wait_seconds = wait_seconds


class Endpoint:
    """Asks for replies. Use it as an asynchronous context manager.

    Args:
      base_url: where `/chat/completions` is.
      key: sent as a bearer token; None: none is sent.
      key_env: where the key comes from, for messages.
      body: what every request holds beside the messages.
      concurrency: connections at a time.
      timeout_seconds, max_retries, retry_seconds: see `configs/endpoint.py`.

    Raises:
      ValueError: `base_url` or the key cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None,
        key_env: str,
        body: Mapping[str, Any],
        concurrency: int,
        timeout_seconds: float,
        max_retries: int,
        retry_seconds: float,
    ):
        # Imported here: nobody else needs it.
        import httpx2

        self._http = httpx2
        self._url = f"{check_url(base_url).rstrip('/')}/chat/completions"
        self._key, self._key_env = _check_key(key, key_env), key_env
        self._body, self._timeout_seconds = dict(body), timeout_seconds
        self._max_retries, self._retry_seconds = max_retries, retry_seconds
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=None,
            limits=httpx2.Limits(max_connections=concurrency),
        )
        self.num_retries = 0

    async def __aenter__(self) -> "Endpoint":
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *details) -> None:
        await self._client.__aexit__(*details)

    async def reply(
        self, messages: Sequence[Mapping[str, str]], conversation: int
    ) -> ChatReply:
        """The assistant's next message.

        Args:
          messages: the dialogue so far.
          conversation: a number of its own; tries of different ones are spread in time.

        Raises:
          EndpointError: it was refused, or failed until no tries were left.
        """
        for attempt in range(self._max_retries + 1):
            try:
                return await self._ask(messages)
            except _MayPass as failure:
                if attempt == self._max_retries:
                    raise EndpointError(
                        f"{self._url} failed {attempt + 1} times in a row, at last: "
                        f"{failure}; see whether it is up, ask for fewer conversations "
                        "at a time (--api.concurrency) or allow more time "
                        "(--api.timeout_seconds, --api.max_retries)"
                    ) from None
                asked = failure.wait_seconds
            self.num_retries += 1
            await asyncio.sleep(self.wait_seconds(attempt, conversation, asked))
        raise AssertionError("the last try returns or raises")

    def wait_seconds(self, attempt: int, conversation: int, asked: float) -> float:
        """Exponential backoff with jitter, at least what the server asked for.

        Raises:
          EndpointError: it asked for very long.
        """
        if asked > MAX_RETRY_AFTER_SECONDS:
            raise EndpointError(
                f"{self._url} asks to wait {asked:.0f} seconds; run the same command "
                "again later, it goes on where it stopped"
            )
        jitter = (conversation + attempt) * _GOLDEN_RATIO % 1
        backoff = min(self._retry_seconds * 2**attempt, MAX_BACKOFF_SECONDS)
        return max(backoff * (0.5 + jitter / 2), asked + self._retry_seconds * jitter)

    async def _ask(self, messages: Sequence[Mapping[str, str]]) -> ChatReply:
        """One try."""
        request = {"messages": list(messages), **self._body}
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await self._client.post(self._url, json=request)
        except TimeoutError:
            sentence = f"no answer within {self._timeout_seconds:g} seconds"
            raise _MayPass(sentence) from None
        except self._http.RequestError as error:
            said = self._clean(str(error)) or type(error).__name__
            raise _MayPass(f"no connection ({said})") from None
        status = response.status_code
        if status in _MAY_PASS or status >= 500:
            asked = retry_after_seconds(response.headers.get("retry-after"))
            raise _MayPass(f"status {status}, {self._quote(response.text)}", asked)
        if status != 200:
            raise EndpointError(self._refusal(status, response.text))
        return self._read(response)

    def _read(self, response) -> ChatReply:
        """What a successful response says.

        Raises:
          _MayPass: it is not what the interface promises.
        """
        try:
            # Nesting without end is a RecursionError.
            told = response.json()
            choice = told["choices"][0]
            text, usage = choice["message"].get("content"), told.get("usage") or {}
            details = usage.get("prompt_tokens_details") or {}
            return ChatReply(
                # Refusals and tool calls have no content: an empty reply.
                text=self._clean(_text(text)),
                finish_reason=self._clean(_text(choice.get("finish_reason"))),
                prompt_tokens=_count(usage.get("prompt_tokens")),
                cached_tokens=_count(details.get("cached_tokens")),
                reply_tokens=_count(usage.get("completion_tokens")),
                model=self._clean(_text(told.get("model"))),
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            said = self._quote(response.text)
            raise _MayPass(f"an answer that is no chat completion, {said}") from None

    def _refusal(self, status: int, text: str) -> str:
        cure = "change what the message names (--api.model, --api.extra_body)"
        if status in (401, 403):
            has_key = "holds" if self._key else "is not set, it should hold"
            cure = f"${self._key_env} {has_key} the key; --api.key_env names another"
        elif status == 404 or 300 <= status < 400:
            cure = "see whether --api.base_url ends before /chat/completions"
        said = self._quote(text)
        return f"{self._url} refuses the request with status {status}, {said}; {cure}"

    def _quote(self, text: str) -> str:
        """The beginning of what a server said, on one line."""
        line = " ".join(self._clean(text).split())
        return repr(line[:_MAX_QUOTED_CHARACTERS]) if line else "without a word"

    def _clean(self, text: str) -> str:
        """Without the key, and without half characters that no file can hold."""
        text = text.encode("utf-8", "replace").decode()
        return text.replace(self._key, "[key]") if self._key else text


def check_url(base_url: str) -> str:
    """Refuse what is no address, or holds a secret.

    Raises:
      ValueError: so it is; without repeating the address.
    """
    import httpx2

    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL:
        raise ValueError(
            "--api.base_url is no address; use e.g. http://localhost:8000/v1"
        ) from None
    if url.userinfo or url.query:
        raise ValueError(
            "--api.base_url holds a user, a password or a query, which would be "
            "logged; keep the key in the environment (--api.key_env)"
        )
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(
            f"--api.base_url={base_url} must begin with http:// or https:// and name a "
            "host, e.g. http://localhost:8000/v1"
        )
    return base_url


def retry_after_seconds(header: str | None) -> float:
    """What a Retry-After header asks for (RFC 9110, section 10.2.3); 0 without one."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
        return seconds if seconds > 0 else 0.0
    except ValueError:
        pass  # a date
    try:
        then = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    return max((then - datetime.datetime.now(datetime.UTC)).total_seconds(), 0.0)


def read_extra_body(text: str) -> dict[str, Any]:
    """The JSON object of `api.extra_body`.

    Raises:
      ValueError: it is none.
    """
    try:
        extra = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"--api.extra_body is no JSON: {error}") from None
    if not isinstance(extra, dict) or "messages" in extra or extra.get("stream"):
        raise ValueError(
            f"--api.extra_body={text} must be a JSON object without messages and "
            'without streaming, e.g. {"top_p": 0.9}'
        )
    return extra


def _check_key(key: str | None, key_env: str) -> str | None:
    """Refuse a key that HTTP would refuse, in words that do not hold it."""
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(
            f"${key_env} holds white space or characters outside ASCII; set it to the "
            "key alone"
        )
    return key


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


def _count(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError("no count")
    return value
