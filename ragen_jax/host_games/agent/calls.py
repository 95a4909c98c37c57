"""Calls of a model and their answers: what agents ask for, apart from any wire.

An agent is a program that calls a model. In: a `ChatCall`, from whoever speaks with the
agent. Out: a `ChatAnswer`, from whoever has the model, or `CallRefused`. Both are plain
data, which travel between processes as JSON. Knows neither HTTP nor tokenizers.
"""

import dataclasses
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self

from ragen_jax.host_games.common.http_server import RequestError

# Why a reply ended: its end-of-turn token or a stop text, a limit, or calls of tools.
STOP, LENGTH, TOOL_CALLS = "stop", "length", "tool_calls"
FINISH_REASONS = (STOP, LENGTH, TOOL_CALLS)


class CallRefused(RequestError):
    """A call that is not answered; the message is a sentence for the agent.

    Attributes:
      status: of the HTTP response.
      code: for programs: "context_length_exceeded", "budget_exhausted".
      param: the parameter that is at fault; None: no single one.
    """

    def __init__(
        self,
        message: str,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        code: str = "invalid_value",
        param: str | None = None,
    ):
        super().__init__(message, status)
        self.code, self.param = code, param


@dataclasses.dataclass(frozen=True)
class ChatCall:
    """A dialogue whose next reply is asked for.

    Messages and tools are in the form that `messages.read_messages` and
    `messages.read_tools` give them.

    Attributes:
      messages: with `role` (system, user, assistant or tool) and `content`, a text;
        those of the assistant perhaps with `tool_calls`, a list of {"id", "type":
        "function", "function": {"name", "arguments"}} with arguments as JSON text;
        those of a tool with `tool_call_id`.
      tools: {"type": "function", "function": {"name", "description", "parameters"}},
        the last two where they are known.
      max_tokens: of the reply; None: as many as its completer allows.
      stop: texts at which the reply ends; they are not part of it.
      wants_logprobs: the answer should have `logprobs`.
      wants_token_ids: the answer should have `token_ids` and `prompt_token_ids`.
      temperature, top_p: of sampling; None: its completer's.
      seed: of sampling; None: its completer's.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    wants_logprobs: bool = False
    wants_token_ids: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Lists, dictionaries, texts and numbers, which share this call's parts."""
        return _to_json(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The call of `to_json`."""
        return _from_json(cls, document, ("messages", "tools", "stop"))


@dataclasses.dataclass(frozen=True)
class ChatAnswer:
    """The reply to a call.

    Attributes:
      content: the text besides calls of tools.
      tool_calls: in the form that they have in messages.
      finish_reason: one of `FINISH_REASONS`; with `tool_calls` "tool_calls", unless a
        limit cut the reply.
      prompt_tokens: read.
      completion_tokens: sampled, with the end-of-turn token.
      token_ids: sampled; None: not known.
      prompt_token_ids: read; None: not known.
      logprobs: text and log-probability of each sampled token; None: not known. Agents
        that stream get a piece for each of these texts.
    """

    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str = STOP
    prompt_tokens: int = 0
    completion_tokens: int = 0
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    logprobs: tuple[tuple[str, float], ...] | None = None

    def __post_init__(self):
        if self.finish_reason not in FINISH_REASONS:
            raise ValueError(
                f"finish_reason is {self.finish_reason!r}; use one of {FINISH_REASONS}"
            )
        if self.finish_reason == TOOL_CALLS and not self.tool_calls:
            raise ValueError(
                f"finish_reason is {TOOL_CALLS!r}, but there are no tool_calls; use "
                f"{STOP!r} or {LENGTH!r}"
            )
        odd = [p for _, p in self.logprobs or () if not math.isfinite(p)]
        if odd:
            # JSON has no such numbers.
            raise ValueError(f"a log-probability is {odd[0]}; give finite ones")

    def to_json(self) -> dict[str, Any]:
        """Lists, dictionaries, texts and numbers, which share this answer's parts."""
        return _to_json(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The answer of `to_json`."""
        fields = dict(document)
        if fields.get("logprobs") is not None:
            fields["logprobs"] = tuple((text, p) for text, p in fields["logprobs"])
        return _from_json(
            cls, fields, ("tool_calls", "token_ids", "prompt_token_ids", "logprobs")
        )


def _to_json(data: ChatCall | ChatAnswer) -> dict[str, Any]:
    fields = {f.name: getattr(data, f.name) for f in dataclasses.fields(data)}
    return {
        name: [list(v) if isinstance(v, tuple) else v for v in value]
        if isinstance(value, tuple)
        else value
        for name, value in fields.items()
    }


def _from_json(cls: type, document: Mapping[str, Any], sequences: tuple[str, ...]):
    fields = dict(document)
    for name in sequences:
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    return cls(**fields)
