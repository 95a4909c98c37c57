"""Requests to an OpenAI-compatible API, repeated until one is answered.

In: chat messages. Out: a `ChatReply`. Temporary failures are retried, all others end in
one sentence. Knows no environments. No text that leaves this file, replies and errors
included, contains the key.

The `openai` client sends the requests. Retries are our policy: they are spread by
conversation instead of by chance, wait as long as a server asks for, and repeat answers
that are not chat completions.
"""

import asyncio
import datetime
import email.utils
import json
import math
import re
import types
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax import install_command
from ragen_jax.rollout.host.text import (
    FILTERED,
    NO_ROOM,
    ChatReply,
    write_tool_calls,
)

# Longest waits between two tries, by our choice and at a server's request.
MAX_BACKOFF_SECONDS = 60.0
MAX_RETRY_AFTER_SECONDS = 600.0
_MAY_PASS = (408, 409, 425, 429)
# OpenAI's, vLLM's, SGLang's, llama.cpp's, TGI's and further servers' words about too
# long a dialogue.
_TOO_LONG = re.compile(
    r"context_length_exceeded|context (length|size|window)|exceed_context_size"
    r"|longer than the (model|maximum)|inputs` tokens \+ `max_new_tokens"
    r"|inputs` must have less than|prompt is too long|too many (input )?tokens"
    r"|exceeds the maximum number of (input )?tokens",
    re.IGNORECASE,
)
# OpenAI's and Azure's about one that a filter stops.
_FILTERED = re.compile(r"content_filter|content_policy|content management policy")
_MAX_QUOTED_CHARACTERS = 300
# Of a message: names that vLLM, SGLang, DeepSeek and OpenRouter give to the thought.
_THOUGHT_FIELDS = ("reasoning_content", "reasoning")
# Types of the parts of a content that are text.
_TEXT_PARTS = ("text", "output_text")
# No request has more tokens; larger counts would not survive sums in floating point.
_MAX_TOKENS = 2**40
# Multiples of the golden ratio, modulo 1, are spread evenly: tries of conversations
# never coincide, and a repeated command waits as long.
_GOLDEN_RATIO = 0.6180339887


class EndpointError(ValueError):
    """The API gave no answer, and further tries would not help."""


class DialogueRefused(EndpointError):
    """The API refuses this dialogue; it may answer others.

    Attributes:
      reason: `NO_ROOM` in the model's context, or `FILTERED`.
    """

    def __init__(self, sentence: str, reason: str):
        super().__init__(sentence)
        self.reason = reason


class _Temporary(Exception):
    """A temporary failure; `wait_seconds` is the wait that the server asks for."""

    def __init__(self, sentence: str, wait_seconds: float = 0.0):
        super().__init__(sentence)
        self.wait_seconds = wait_seconds


class Endpoint:
    """A model behind an API; an asynchronous context manager.

    Args:
      base_url: address of the API, without `/chat/completions`.
      key: sent as a bearer token; None: no token.
      key_env: environment variable of the key, for messages.
      body: fields of every request besides the messages.
      timeout_seconds, max_retries, retry_seconds: see `configs/endpoint.py`.

    Raises:
      ValueError: `base_url` or the key cannot be used, or `openai` is missing.
    """

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None,
        key_env: str,
        body: Mapping[str, Any],
        timeout_seconds: float,
        max_retries: int,
        retry_seconds: float,
    ):
        self._openai = _import_openai()
        self._url = f"{check_url(base_url).rstrip('/')}/chat/completions"
        self._key, self._key_env = _check_key(key, key_env), key_env
        self._body, self._timeout_seconds = dict(body), timeout_seconds
        self._max_retries, self._retry_seconds = max_retries, retry_seconds
        self._client = self._openai.AsyncOpenAI(
            base_url=base_url,
            # Without one the client would look for a key in the environment.
            api_key=key or "none",
            max_retries=0,
            timeout=None,
            # A redirect could send the key elsewhere.
            http_client=self._openai.DefaultAsyncHttpxClient(
                follow_redirects=False, event_hooks={"response": [_expect_utf8]}
            ),
        )
        self._headers = None if key else {"Authorization": self._openai.omit}
        self.num_retries = 0

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_) -> None:
        await self._client.close()

    async def reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        conversation: int,
        options: Mapping[str, Any] | None = None,
    ) -> ChatReply:
        """The assistant's next message.

        Args:
          messages: the dialogue so far.
          conversation: number of the conversation, which spreads tries in time.
          options: fields of this request alone, such as an agent's tools.

        Raises:
          ContextExceeded: the messages are longer than the model's context.
          EndpointError: the request was refused, or failed at every try.
        """
        for attempt in range(self._max_retries + 1):
            try:
                return await self._ask(messages, options or {})
            except _Temporary as failure:
                if attempt == self._max_retries:
                    raise EndpointError(
                        f"{self._url} failed {attempt + 1} times in a row, finally: "
                        f"{failure}; check that it is up, lower --api.concurrency, or "
                        "raise --api.timeout_seconds or --api.max_retries"
                    ) from None
                asked = failure.wait_seconds
            self.num_retries += 1
            await asyncio.sleep(self.wait_seconds(attempt, conversation, asked))
        raise AssertionError("the last try returns or raises")

    def wait_seconds(self, attempt: int, conversation: int, asked: float) -> float:
        """Exponential backoff with jitter, at least the wait that the server asked for.

        Raises:
          EndpointError: the server asked for more than `MAX_RETRY_AFTER_SECONDS`.
        """
        if asked > MAX_RETRY_AFTER_SECONDS:
            raise EndpointError(
                f"{self._url} asks to wait {asked:.0f} seconds; run the same command "
                "again later to resume"
            )
        jitter = (conversation + attempt) * _GOLDEN_RATIO % 1
        backoff = min(self._retry_seconds * 2**attempt, MAX_BACKOFF_SECONDS)
        return max(backoff * (0.5 + jitter / 2), asked + self._retry_seconds * jitter)

    async def _ask(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> ChatReply:
        create = self._client.chat.completions.with_raw_response.create
        body = self._body | options
        if limit := self._body.get("max_tokens"):
            body["max_tokens"] = min(limit, body["max_tokens"])
        model = body.pop("model", self._openai.omit)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await create(
                    model=model,
                    messages=list(messages),
                    extra_body=body,
                    extra_headers=self._headers,
                )
        except TimeoutError:
            sentence = f"no answer within {self._timeout_seconds:g} seconds"
            raise _Temporary(sentence) from None
        except self._openai.APIStatusError as error:
            status, text = error.status_code, _decode(error.response.content)
            # llama.cpp says 500 where a dialogue grows too long.
            is_too_long = status not in _MAY_PASS and _TOO_LONG.search(text)
            if not is_too_long and (status in _MAY_PASS or status >= 500):
                wait = retry_after_seconds(error.response.headers.get("retry-after"))
                raise _Temporary(
                    f"status {status}, {self._quote(text)}", wait
                ) from None
            sentence = self._refusal(status, text)
            if is_too_long or _FILTERED.search(text):
                reason = NO_ROOM if is_too_long else FILTERED
                raise DialogueRefused(sentence, reason) from None
            raise EndpointError(sentence) from None
        except self._openai.APIConnectionError as error:
            cause = error.__cause__ or error
            reason = self._clean(str(cause)) or type(cause).__name__
            raise _Temporary(f"no connection ({reason})") from None
        return self._read(response.content, "tools" in options)

    def _read(self, content: bytes, has_tools: bool) -> ChatReply:
        """The reply in a successful response.

        Raises:
          _Temporary: the response is not a chat completion.
        """
        try:
            # Deep nesting is a RecursionError, a long number a ValueError.
            completion = json.loads(_decode(content))
            choice = completion["choices"][0]
            usage = completion.get("usage") or {}
            details = usage.get("prompt_tokens_details") or {}
            return ChatReply(
                text=self._clean(
                    _reply_text(
                        choice["message"],
                        is_cut=choice.get("finish_reason") == "length",
                        has_tools=has_tools,
                    )
                ),
                finish_reason=self._clean(_text(choice.get("finish_reason"))),
                prompt_tokens=_count(usage.get("prompt_tokens")),
                cached_tokens=_count(details.get("cached_tokens")),
                reply_tokens=_count(usage.get("completion_tokens")),
                model=self._clean(_text(completion.get("model"))),
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            quote = self._quote(_decode(content))
            sentence = f"an answer that is not a chat completion, {quote}"
            raise _Temporary(sentence) from None

    def _refusal(self, status: int, text: str) -> str:
        cure = (
            "change the option that the message names (--api.model, --api.extra_body)"
        )
        if status in (401, 403):
            has_key = "holds" if self._key else "is not set, it should hold"
            cure = f"${self._key_env} {has_key} the key; --api.key_env names another"
        elif status == 404 or 300 <= status < 400:
            cure = "check that --api.base_url ends before /chat/completions"
        quote = self._quote(text)
        return f"{self._url} refuses the request with status {status}, {quote}; {cure}"

    def _quote(self, text: str) -> str:
        line = " ".join(self._clean(text).split())
        return repr(line[:_MAX_QUOTED_CHARACTERS]) if line else "no text"

    def _clean(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()
        return text.replace(self._key, "[key]") if self._key else text


def check_url(base_url: str) -> str:
    """Refuse an invalid address, or one that contains a secret.

    Raises:
      ValueError: the message does not repeat an address that may hold a secret.
    """
    try:
        if not (base_url.isascii() and base_url.isprintable() and " " not in base_url):
            raise ValueError
        url = urllib.parse.urlsplit(base_url)
        # Parses the port as well, which may not be a number.
        has_host = bool(url.hostname) and url.port != 0
    except ValueError:
        raise ValueError(
            "--api.base_url is not an address; use e.g. http://localhost:8000/v1"
        ) from None
    if "@" in url.netloc or url.query or url.fragment:
        raise ValueError(
            "--api.base_url contains a user, a password or a query, which would be "
            "logged; keep the key in the environment (--api.key_env)"
        )
    if url.scheme not in ("http", "https") or not has_host:
        raise ValueError(
            f"--api.base_url={base_url} must begin with http:// or https:// and name a "
            "host, e.g. http://localhost:8000/v1"
        )
    return base_url


def retry_after_seconds(header: str | None) -> float:
    """The wait of a Retry-After header (RFC 9110, section 10.2.3); 0 without one."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        seconds = _seconds_until(header)
    return seconds if seconds > 0 and math.isfinite(seconds) else 0.0


def _seconds_until(date: str) -> float:
    """Seconds from now to a date of an HTTP header; 0 if it is not a date."""
    try:
        then = email.utils.parsedate_to_datetime(date)
        if then.tzinfo is None:
            then = then.replace(tzinfo=datetime.UTC)
        return (then - datetime.datetime.now(datetime.UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError, LookupError):
        return 0.0


def read_extra_body(text: str) -> dict[str, Any]:
    """The JSON object of `api.extra_body`.

    Raises:
      ValueError: the text is not such an object.
    """
    try:
        extra = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--api.extra_body is not JSON: {error}") from None
    if not isinstance(extra, dict) or "messages" in extra or extra.get("stream"):
        raise ValueError(
            f"--api.extra_body={text} must be a JSON object without messages and "
            'without streaming, e.g. {"top_p": 0.9}'
        )
    return extra


def _check_key(key: str | None, key_env: str) -> str | None:
    """Refuse a key that HTTP does not allow, in a message without the key."""
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(
            f"${key_env} contains white space or characters outside ASCII; set it to "
            "the key alone"
        )
    return key


def _reply_text(
    message: Mapping[str, Any], *, is_cut: bool, has_tools: bool = False
) -> str:
    """Thought and content of a message as the one text that the model wrote.

    Refusals have no content: an empty reply. Calls of tools that an agent offered are
    JSON, as `host_games.agent.game.read_reply` reads them. Servers with a reasoning
    parser take the thought out of the content, into a field of its own.
    """
    parts, thoughts = message.get("content"), list(map(message.get, _THOUGHT_FIELDS))
    content = _joined(parts)
    if isinstance(parts, list):
        # Mistral's thoughts are parts of the content, and themselves in parts.
        thinking = [p.get("thinking") for p in parts if p.get("type") == "thinking"]
        thoughts.append("".join(map(_joined, thinking)))
    thought = next((t for t in thoughts if isinstance(t, str) and t), None)
    if thought is not None and "</think>" not in content:
        end = "" if is_cut and not content else "</think>"
        content = f"<think>{thought}{end}{content}"
    if has_tools and message.get("tool_calls"):
        return write_tool_calls(content, message["tool_calls"])
    return content


def _joined(content: object) -> str:
    """A text, or the texts among its parts."""
    if not isinstance(content, list):
        return _text(content)
    texts = [part for part in content if part.get("type", "text") in _TEXT_PARTS]
    return "".join(_text(part.get("text")) for part in texts)


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


def _count(value: object) -> int | None:
    if value is None:
        return None
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not 0 <= value <= _MAX_TOKENS:
        raise ValueError("no count")
    return value


def _decode(content: bytes) -> str:
    """Text of a response. JSON is UTF-8, even if a header names another charset."""
    return content.decode("utf-8", "replace")


async def _expect_utf8(response: Any) -> None:
    """Keep the client from decoding by the charset of a header, which may not exist."""
    response.encoding = "utf-8"


def _import_openai() -> types.ModuleType:
    """The `openai` package, which only evaluation over an API needs.

    Raises:
      ValueError: the package is not installed.
    """
    try:
        import openai
    except ImportError as error:
        raise ValueError(
            "--api.base_url needs the package openai: " + install_command("api")
        ) from error
    return openai
