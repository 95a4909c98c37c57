"""The Responses API: its requests as calls, answers as its objects and events.

In: the object of a request, then a `ChatAnswer`. Out: a `ChatCall`, then the response,
whole or as the events of a stream. Dialogues go on by `previous_response_id`, as long
as the server holds them.

Items are messages and calls of functions; a reply's text and its calls, which are
items of their own here, are one message for the model.
"""

import collections
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ragen_jax.host_games.agent import parameters
from ragen_jax.host_games.agent.calls import LENGTH, CallRefused, ChatAnswer, ChatCall
from ragen_jax.host_games.agent.chat import (
    read_given_tools,
    split_content,
    write_tokens,
)
from ragen_jax.host_games.agent.messages import (
    ASSISTANT,
    TOOL,
    check_function,
    read_arguments,
    read_function,
    read_message,
    read_name,
    read_string,
    read_text,
    refuse,
    show,
    write_call,
)

MAX_DIALOGUES = 1_000

Messages = tuple[dict[str, Any], ...]


class Dialogues:
    """Earlier responses that requests may continue; of many, the last ones."""

    def __init__(self, max_dialogues: int = MAX_DIALOGUES):
        self._max_dialogues, self._lock = max_dialogues, threading.Lock()
        self._messages: collections.OrderedDict[str, Messages] = (
            collections.OrderedDict()
        )

    def keep(self, response_id: str, messages: Messages) -> None:
        """Hold what a response ended."""
        with self._lock:
            self._messages[response_id] = messages
            if len(self._messages) > self._max_dialogues:
                self._messages.popitem(last=False)

    def find(self, response_id: str) -> Messages:
        """All messages up to a response.

        Raises:
          CallRefused: it is not held.
        """
        with self._lock:
            messages = self._messages.get(response_id)
        if messages is None:
            raise CallRefused(
                f"there is no response {response_id!r:.80}; the last "
                f"{self._max_dialogues} are held, unless their `store` was false",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return messages


@dataclasses.dataclass(frozen=True)
class Request:
    """A request that has been read.

    Attributes:
      call: what is completed.
      said: messages that the next response continues, without instructions, which hold
        for one response.
      given: its parameters, for the response that repeats them.
    """

    call: ChatCall
    said: Messages
    given: Mapping[str, Any]

    @property
    def stream(self) -> bool:
        return self.given.get("stream", False)

    @property
    def is_kept(self) -> bool:
        return self.given.get("store", True)


def read_request(body: Any, find: Callable[[str], Messages]) -> Request:
    """The call of a request.

    Args:
      body: its object.
      find: messages of an earlier response, by its id.

    Raises:
      CallRefused: it cannot be answered.
    """
    given = parameters.read_parameters(body, parameters.RESPONSES)
    said: Messages = ()
    if "previous_response_id" in given:
        said = find(given["previous_response_id"])
    said += _read_input(given.get("input"))
    instructions: Messages = ()
    if "instructions" in given:
        instructions = ({"role": "system", "content": given["instructions"]},)
    call = ChatCall(
        messages=instructions + said,
        tools=read_given_tools(given, _read_tools),
        max_tokens=given.get("max_output_tokens"),
        wants_logprobs=parameters.LOGPROBS in given.get("include", []),
        temperature=given.get("temperature"),
        top_p=given.get("top_p"),
    )
    return Request(call, said, given)


def continue_dialogue(said: Messages, answer: ChatAnswer) -> Messages:
    """The messages after an answer."""
    message: dict[str, Any] = {"role": ASSISTANT, "content": answer.content}
    if answer.tool_calls:
        message["tool_calls"] = list(answer.tool_calls)
    return (*said, message)


def write_answer(
    answer: ChatAnswer, request: Request, *, answer_id: str, model: str
) -> dict[str, Any]:
    """The response as one object."""
    items = [item for item, _ in _items(answer, request.call, answer_id)]
    is_cut = answer.finish_reason == LENGTH
    reason = {"reason": "max_output_tokens"} if is_cut else None
    return _write_response(request, answer_id, model) | {
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": reason,
        "output": items,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        },
    }


def write_events(
    answer: ChatAnswer, request: Request, *, answer_id: str, model: str
) -> Iterator[dict[str, Any]]:
    """The response as the events of a stream."""
    numbers = itertools.count()

    def event(kind, **fields):
        return {"type": kind, "sequence_number": next(numbers), **fields}

    begun = _write_response(request, answer_id, model)
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, (item, pieces) in enumerate(_items(answer, request.call, answer_id)):
        write = _message_events if item["type"] == "message" else _call_events
        for kind, fields in write(item, pieces):
            yield event(kind, output_index=index, **fields)
    response = write_answer(answer, request, answer_id=answer_id, model=model)
    # Made when the stream began.
    response["created_at"] = begun["created_at"]
    yield event(f"response.{response['status']}", response=response)


def _message_events(
    item: dict[str, Any], pieces: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    (part,) = item["content"]
    place = {"item_id": item["id"], "content_index": 0}
    tokens = part["logprobs"]
    begun = item | {"status": "in_progress", "content": []}
    yield "response.output_item.added", {"item": begun}
    empty = part | {"text": "", "logprobs": []}
    yield "response.content_part.added", place | {"part": empty}
    for i, piece in enumerate(pieces):
        said = tokens[i : i + 1]
        if piece or said:
            delta = {"delta": piece, "logprobs": said}
            yield "response.output_text.delta", place | delta
    done = {"text": part["text"], "logprobs": tokens}
    yield "response.output_text.done", place | done
    yield "response.content_part.done", place | {"part": part}
    yield "response.output_item.done", {"item": item}


def _call_events(
    item: dict[str, Any], pieces: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = item | {"status": "in_progress", "arguments": ""}
    yield "response.output_item.added", {"item": begun}
    for piece in pieces:
        delta = {"item_id": item["id"], "delta": piece}
        yield "response.function_call_arguments.delta", delta
    done = {key: item[key] for key in ("name", "arguments")}
    done["item_id"] = item["id"]
    yield "response.function_call_arguments.done", done
    yield "response.output_item.done", {"item": item}


def _items(
    answer: ChatAnswer, call: ChatCall, answer_id: str
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Items of the output, and the pieces in which a stream sends each."""
    tail = answer_id.partition("_")[2]
    if answer.content or not answer.tool_calls:
        sampled = answer.logprobs or ()
        part = {
            "type": "output_text",
            "text": answer.content,
            "annotations": [],
            "logprobs": write_tokens(sampled) if call.wants_logprobs else [],
        }
        message = {
            "type": "message",
            "id": f"msg_{tail}",
            "status": "incomplete" if answer.finish_reason == LENGTH else "completed",
            "role": ASSISTANT,
            "content": [part],
        }
        yield message, split_content(answer.content, [text for text, _ in sampled])
    for i, tool_call in enumerate(answer.tool_calls):
        function = tool_call["function"]
        item = {
            "type": "function_call",
            "id": f"fc_{tail}_{i}",
            "call_id": tool_call["id"],
            "status": "completed",
            **function,
        }
        yield item, [function["arguments"]]


def _write_response(request: Request, answer_id: str, model: str) -> dict[str, Any]:
    """The response before there is an answer."""
    given = request.given
    return {
        "id": answer_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "metadata": given.get("metadata", {}),
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": given.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": request.is_kept,
        "temperature": given.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
        "top_p": given.get("top_p"),
        "truncation": "disabled",
        "usage": None,
        "user": given.get("user"),
    }


def _read_tools(tools: Any) -> Messages:
    """Tools in the flat form of this API."""
    if not isinstance(tools, list):
        refuse("tools", f"is {show(tools)}", "send a list of functions")
    found = []
    for i, tool in enumerate(tools):
        place = f"tools[{i}]"
        check_function(tool, place)
        found.append(read_function(tool, place))
    return tuple(found)


def _read_input(items: Any) -> Messages:
    if isinstance(items, str):
        return ({"role": "user", "content": items},)
    if not isinstance(items, list) or not items:
        refuse("input", "is no text and no list of items", "send at least one item")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(items):
        where = f"input[{i}]"
        if not isinstance(item, dict):
            refuse(where, f"is {show(item)}", "send an object")
        kind = item.get("type", "message")
        if kind == "function_call":
            _add_call(messages, item, where)
        elif kind == "function_call_output":
            messages.append(_read_output(item, where))
        elif kind == "message":
            messages.append(read_message(item, where))
        else:
            refuse(
                f"{where}.type",
                f"is {show(kind)}",
                "send messages, function_call and function_call_output",
            )
    return tuple(messages)


def _add_call(
    messages: list[dict[str, Any]], item: Mapping[str, Any], where: str
) -> None:
    """Put a call into the assistant's message before it, or one of its own."""
    call = write_call(
        read_string(item.get("call_id"), f"{where}.call_id"),
        read_name(item.get("name"), f"{where}.name"),
        read_arguments(item.get("arguments"), f"{where}.arguments"),
    )
    if not messages or messages[-1]["role"] != ASSISTANT:
        messages.append({"role": ASSISTANT, "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _read_output(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    call_id = read_string(item.get("call_id"), f"{where}.call_id")
    content = read_text(item.get("output"), f"{where}.output")
    return {"role": TOOL, "content": content, "tool_call_id": call_id}
