"""Messages and tools of an agent's request, checked and brought into one form.

In: JSON of any client. Out: what `calls.ChatCall` holds, or `CallRefused` with the
place that is at fault. What has no meaning for a model of text (images, files, audio)
is refused, not left out.
"""

import json
import math
import re
from typing import Any, NoReturn

from ragen_jax.host_games.agent.calls import CallRefused
from ragen_jax.host_games.common.files import parse_json

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
# OpenAI's later name of the system's role.
DEVELOPER = "developer"
ROLES = (SYSTEM, USER, ASSISTANT, TOOL, DEVELOPER)
# Types of parts of a message: the first one of chat completions, the others of the
# Responses API.
TEXT_PARTS = ("text", "input_text", "output_text")
# OpenAI's bounds on names of functions.
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Schemas of tools and arguments of calls are nested far less.
MAX_DEPTH = 64
_READ = ("role", "content", "tool_calls", "tool_call_id")
# `name` tells apart people of one role, which chat templates do not show; the others
# are in messages that an answer is copied into.
_IGNORED = ("name", "type", "id", "status", "annotations")


def refuse(
    where: str, problem: str, cure: str, code: str = "invalid_value"
) -> NoReturn:
    """Raise `CallRefused` with one sentence about a place in the request."""
    raise CallRefused(f"`{where}` {problem}; {cure}", code=code, param=where)


def show(value: Any) -> str:
    """The beginning of a JSON value, for sentences."""
    return json.dumps(value)[:80]


def check_document(document: Any) -> None:
    """Refuse what no later stage could write again.

    Args:
      document: JSON as Python reads it, which is more than JSON.

    Raises:
      CallRefused: it is nested deeper than `MAX_DEPTH`, or has numbers that are not
        finite, or texts that are not Unicode.
    """
    level, depth = [document], 0
    while level:
        if depth > MAX_DEPTH:
            raise CallRefused(
                f"the body is nested more than {MAX_DEPTH} deep; send a flatter one"
            )
        inner = []
        for value in level:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, float) and not math.isfinite(value):
                raise CallRefused(f"the body has the number {value}; send finite ones")
            elif isinstance(value, dict):
                inner += value.keys()
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level, depth = inner, depth + 1


def read_messages(messages: Any) -> tuple[dict, ...]:
    """The messages of a request for a chat completion.

    Raises:
      CallRefused: they are of another form.
    """
    if not isinstance(messages, list) or not messages:
        refuse("messages", "is no list of messages", "send at least one message")
    return tuple(read_message(m, f"messages[{i}]") for i, m in enumerate(messages))


def read_message(message: Any, where: str) -> dict[str, Any]:
    """One message, in the form that it has in `ChatCall`.

    Raises:
      CallRefused: it is of another form.
    """
    message = _object(message, where)
    role = message.get("role")
    if role not in ROLES:
        refuse(f"{where}.role", f"is {show(role)}", f"send one of {', '.join(ROLES)}")
    for name, value in message.items():
        if value is not None and name not in (*_READ, *_IGNORED):
            refuse(f"{where}.{name}", "is not known here", "leave it out")
    calls, content = message.get("tool_calls"), message.get("content")
    # A reply may be empty, and clients write that as null.
    if content is None and role == ASSISTANT:
        content = ""
    found = {
        "role": SYSTEM if role == DEVELOPER else role,
        "content": read_text(content, f"{where}.content"),
    }
    if calls is not None and calls != []:
        place = f"{where}.tool_calls"
        if role != ASSISTANT or not isinstance(calls, list):
            refuse(place, "is no list of an assistant", "leave it out")
        found["tool_calls"] = [
            read_call(c, f"{place}[{i}]") for i, c in enumerate(calls)
        ]
    if role == TOOL:
        place = f"{where}.tool_call_id"
        found["tool_call_id"] = read_string(message.get("tool_call_id"), place)
    return found


def read_text(content: Any, where: str) -> str:
    """A text, or a list of parts with texts, which are joined.

    Raises:
      CallRefused: it is something else.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(where, f"is {show(content)}", "send a text or a list of parts")
    return "".join(_read_part(p, f"{where}[{i}]") for i, p in enumerate(content))


def read_string(value: Any, where: str) -> str:
    """A text.

    Raises:
      CallRefused: it is something else.
    """
    if not isinstance(value, str):
        refuse(where, f"is {show(value)}", "send a text")
    return value


def read_name(value: Any, where: str) -> str:
    """The name of a function.

    Raises:
      CallRefused: it is something else.
    """
    if not isinstance(value, str) or not NAME.fullmatch(value):
        refuse(where, f"is {show(value)}", "send 1 to 64 of A-Z a-z 0-9 _ -")
    return value


def read_call(call: Any, where: str) -> dict[str, Any]:
    """A call of a tool in an assistant's message.

    Raises:
      CallRefused: it is of another form.
    """
    call = _object(call, where)
    if call.get("type", "function") != "function":
        refuse(f"{where}.type", f"is {show(call['type'])}", 'send "function"')
    function = _object(call.get("function"), f"{where}.function")
    return write_call(
        read_string(call.get("id"), f"{where}.id"),
        read_name(function.get("name"), f"{where}.function.name"),
        read_arguments(function.get("arguments"), f"{where}.function.arguments"),
    )


def write_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a tool, in the form that it has in messages."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def read_arguments(arguments: Any, where: str) -> str:
    """The JSON text of a call's arguments.

    Raises:
      CallRefused: it is something else.
    """
    text = read_string(arguments, where)
    try:
        is_object = isinstance(parse_json(text, allow_nan=False), dict)
    except ValueError:
        is_object = False
    if not is_object:
        refuse(where, f"is {show(text)}", "send the JSON text of an object")
    return text


def read_tools(tools: Any) -> tuple[dict, ...]:
    """The tools of a request for a chat completion.

    `strict` is left out: that arguments follow the schema is for the model to learn.

    Raises:
      CallRefused: they are of another form.
    """
    if not isinstance(tools, list):
        refuse("tools", f"is {show(tools)}", "send a list of functions")
    found = []
    for i, tool in enumerate(tools):
        place = f"tools[{i}]"
        check_function(tool, place)
        found.append(read_function(tool.get("function"), f"{place}.function"))
    return tuple(found)


def check_function(tool: Any, where: str) -> None:
    """Refuse a tool that is not a function.

    Raises:
      CallRefused: it is something else.
    """
    if _object(tool, where).get("type") != "function":
        refuse(
            f"{where}.type",
            f"is {show(tool.get('type'))}",
            'send "function": no other tools are known here',
        )


def read_function(function: Any, where: str) -> dict[str, Any]:
    """A function, as the tool of chat completions that it is in `ChatCall`.

    Raises:
      CallRefused: it is of another form.
    """
    function = _object(function, where)
    found = {"name": read_name(function.get("name"), f"{where}.name")}
    if function.get("description") is not None:
        place = f"{where}.description"
        found["description"] = read_string(function["description"], place)
    if function.get("parameters") is not None:
        found["parameters"] = _object(function["parameters"], f"{where}.parameters")
    return {"type": "function", "function": found}


def _read_part(part: Any, where: str) -> str:
    part = _object(part, where)
    if part.get("type") not in TEXT_PARTS:
        refuse(
            f"{where}.type",
            f"is {show(part.get('type'))}",
            'send "text": the model reads nothing else',
        )
    return read_string(part.get("text"), f"{where}.text")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse(where, f"is {show(value)}", "send an object")
    return value


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CallRefused(
            f"the body has a text that is not Unicode, {show(text)}; send surrogates "
            "in pairs"
        ) from None
