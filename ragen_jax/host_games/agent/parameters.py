"""Parameters of requests: which are read, which change nothing, which are refused.

In: the object of a request and the table of its endpoint. Out: the values that are
there, checked. A parameter that would change the reply and is not supported is refused
by name, unless it has the value that changes nothing; so is a name in no table. Null
stands for a parameter that is left out.

| parameters | what happens |
|---|---|
| `messages`, `input`, `tools`, `stop`, `stream`, limits, sampling, `logprobs` | read |
| `user`, `metadata`, `service_tier`, keys of caches | accepted: no effect |
| `n`, penalties, `response_format`, `tool_choice`, `functions`, ... | neutral only |
| `audio`, `reasoning_effort`, `web_search_options`, names in no table | refused |

`prediction` only makes replies faster elsewhere, `max_tool_calls` counts tools of
OpenAI's, so both are accepted, too. `store` decides whether a response can be
continued; chat completions cannot.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ragen_jax.host_games.agent.messages import refuse, show

MAX_STOPS = 4
# What a 32-bit count of tokens holds.
MAX_TOKENS = 2**31 - 1
MAX_TEMPERATURE = 2.0

# Code of errors about names that are in no table.
UNSUPPORTED = "unsupported_parameter"

# Raises `CallRefused` for a value that is not allowed.
Check = Callable[[str, Any], None]


def read_parameters(body: Any, table: Mapping[str, Check]) -> dict[str, Any]:
    """The parameters of a request that are not null.

    Raises:
      CallRefused: one is unknown, or has a value that its table refuses.
    """
    if not isinstance(body, dict):
        refuse("body", f"is {show(body)}", "send an object")
    found = {name: value for name, value in body.items() if value is not None}
    for name, value in found.items():
        if name not in table:
            refuse(name, "is not supported here", "leave it out", UNSUPPORTED)
        table[name](name, value)
    return found


def anything(name: str, value: Any) -> None:
    """Accepts all: read and checked elsewhere, or without effect on the reply."""


def only(*neutral: Any) -> Check:
    """Accepts the values that change nothing."""

    def check(name: str, value: Any) -> None:
        if not any(_is_same(value, other) for other in neutral):
            refuse(
                name,
                f"is {show(value)}, which is not supported here",
                f"use {' or '.join(show(v) for v in neutral)}, or leave it out",
                "unsupported_value",
            )

    return check


def flag(name: str, value: Any) -> None:
    """Accepts true and false."""
    if not isinstance(value, bool):
        refuse(name, f"is {show(value)}", "send true or false")


def text(name: str, value: Any) -> None:
    """Accepts texts."""
    if not isinstance(value, str):
        refuse(name, f"is {show(value)}", "send a text")


def integer(low: int, high: int) -> Check:
    """Accepts integers of a range, its ends included."""

    def check(name: str, value: Any) -> None:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not low <= value <= high:
            refuse(name, f"is {show(value)}", f"send an integer from {low} to {high}")

    return check


def number(low: float, high: float) -> Check:
    """Accepts numbers of a range, its ends included."""

    def check(name: str, value: Any) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            refuse(name, f"is {show(value)}", f"send a number from {low:g} to {high:g}")

    return check


def share(name: str, value: Any) -> None:
    """Accepts numbers above 0, up to 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= 1:
        refuse(name, f"is {show(value)}", "send a number above 0, up to 1")


def stops(name: str, value: Any) -> None:
    """Accepts a text that is not empty, or a list of up to `MAX_STOPS`."""
    values = value if isinstance(value, list) else [value]
    is_good = all(isinstance(v, str) and v for v in values)
    if not is_good or len(values) > MAX_STOPS:
        refuse(
            name, f"is {show(value)}", f"send a text or up to {MAX_STOPS}, none empty"
        )


def fields(**checks: Check) -> Check:
    """Accepts objects of fields that are null or pass their checks."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, dict):
            refuse(name, f"is {show(value)}", "send an object")
        for key, inner in value.items():
            place = f"{name}.{key}"
            if inner is not None and key not in checks:
                refuse(place, "is not supported here", "leave it out", UNSUPPORTED)
            if inner is not None:
                checks[key](place, inner)

    return check


def includes(name: str, value: Any) -> None:
    """Accepts what can be included in an answer of the Responses API."""
    if not isinstance(value, list) or any(v not in INCLUDED for v in value):
        refuse(name, f"is {show(value)}", f"send some of {', '.join(INCLUDED)}")


def _is_same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


LOGPROBS = "message.output_text.logprobs"
# The second is asked for by clients that keep no state; there is no reasoning here.
INCLUDED = (LOGPROBS, "reasoning.encrypted_content")

# Read by both endpoints, or without effect on the replies of both.
_COMMON: dict[str, Check] = {
    "model": text,
    "tools": anything,
    # With "none" the tools are left out.
    "tool_choice": only("auto", "none"),
    "parallel_tool_calls": only(True),
    "stream": flag,
    "stream_options": fields(include_usage=flag, include_obfuscation=flag),
    "temperature": number(0, MAX_TEMPERATURE),
    "top_p": share,
    "store": flag,
    "top_logprobs": only(0),
    **dict.fromkeys(
        (
            "metadata",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "user",
        ),
        anything,
    ),
}
CHAT: dict[str, Check] = {
    **_COMMON,
    "messages": anything,
    "max_tokens": integer(1, MAX_TOKENS),
    "max_completion_tokens": integer(1, MAX_TOKENS),
    "stop": stops,
    "seed": integer(-(2**63), 2**63 - 1),
    "logprobs": flag,
    # vLLM's.
    "return_token_ids": flag,
    "n": only(1),
    "presence_penalty": only(0),
    "frequency_penalty": only(0),
    "logit_bias": only({}),
    "response_format": only({"type": "text"}),
    "modalities": only(["text"]),
    "verbosity": only("medium"),
    "function_call": only("auto", "none"),
    "functions": only([]),
    "prediction": anything,
    # vLLM's, where they do nothing.
    "top_k": only(-1, 0),
    "min_p": only(0),
    "repetition_penalty": only(1),
}
RESPONSES: dict[str, Check] = {
    **_COMMON,
    "input": anything,
    "instructions": text,
    "max_output_tokens": integer(1, MAX_TOKENS),
    "previous_response_id": text,
    "include": includes,
    "background": only(False),
    "max_tool_calls": anything,
    "reasoning": fields(),
    "text": fields(format=only({"type": "text"}), verbosity=only("medium")),
    "truncation": only("disabled"),
}
