"""How models write calls of tools: text as calls, and calls as text.

In: the text of a reply. Out: its content, its calls in the form that they have in
messages, and whether it tried to call and failed. A reply that fails stays a text: what
that is worth is decided by who trains or judges. Nothing raises, whatever the text.

| format | models | a call |
|---|---|---|
| `hermes` | Qwen 2.5 and 3 | `<tool_call>{"name", "arguments"}</tool_call>` each |
| `llama3` | Llama 3.1 to 3.3 | `{"name", "parameters"}`, separated by `;` |
| `smollm2` | SmolLM2 | `<tool_call>[{"name", "arguments"}, ...]</tool_call>` |

With tags, text before the first call is the content, less the newline that chat
templates write before a call; nothing may stand between or after calls. A thought, from
a leading `<think>` to the first `</think>`, is content whatever it says.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from ragen_jax.host_games.agent.messages import NAME, write_call

Calls = tuple[dict[str, Any], ...]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"
_PYTHON_TAG = "<|python_tag|>"
# How an object that is meant as a call begins; other objects are answers.
_OBJECT_OF_CALL = re.compile(r'\s*\{\s*"(?:name|parameters|type|function)"\s*:')


class Read(Protocol):
    """Reads the calls of a reply."""

    def __call__(self, text: str, first: int = 0) -> tuple[str, Calls, bool]:
        """Content, calls, and whether the reply tried to call and failed.

        Args:
          text: of the reply, without its end-of-turn token.
          first: number of the first call: ids are call_0, call_1, ...
        """


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """One way to write calls.

    Attributes:
      read: see `Read`.
      write: the text of calls, empty for none; reading it gives them back.
    """

    read: Read
    write: Callable[[Sequence[Mapping[str, Any]]], str]


def _make_read(parse: Callable[[str], tuple[str, list[tuple[str, str]]]]) -> Read:
    def read(text: str, first: int = 0) -> tuple[str, Calls, bool]:
        try:
            content, found = parse(text)
        # Also of the standard library's parser: bad JSON, or too deep.
        except (ValueError, RecursionError):
            return text, (), True
        calls = (
            write_call(f"call_{first + i}", name, arguments)
            for i, (name, arguments) in enumerate(found)
        )
        return content, tuple(calls), False

    return read


def _parse_hermes(text: str) -> tuple[str, list[tuple[str, str]]]:
    content, place = _split(text)
    found = []
    while place < len(text):
        place = _expect(text, place, _OPEN)
        value, place = _decode(text, place)
        found.append(_name_and_arguments(value, "arguments"))
        place = _skip(text, _expect(text, place, _CLOSE))
    return content, found


def _parse_smollm2(text: str) -> tuple[str, list[tuple[str, str]]]:
    content, place = _split(text)
    if place == len(text):
        return content, []
    values, place = _decode(text, _expect(text, place, _OPEN))
    if not isinstance(values, list) or not values:
        raise ValueError("the calls are no list")
    if _skip(text, _expect(text, place, _CLOSE)) < len(text):
        raise ValueError("text follows the calls")
    return content, [_name_and_arguments(v, "arguments") for v in values]


def _parse_llama3(text: str) -> tuple[str, list[tuple[str, str]]]:
    rest = text.lstrip()
    has_tag = rest.startswith(_PYTHON_TAG)
    rest = rest.removeprefix(_PYTHON_TAG)
    if not has_tag and not _OBJECT_OF_CALL.match(rest):
        return text, []
    found, place = [], 0
    while True:
        value, place = _decode(rest, place)
        # Some of these models say what else the object is.
        if isinstance(value, dict) and value.get("type") == "function":
            del value["type"]
        found.append(_name_and_arguments(value, "parameters"))
        place = _skip(rest, place)
        if place == len(rest):
            return "", found
        place = _expect(rest, place, ";")


def _split(text: str) -> tuple[str, int]:
    """Content, and where the first call begins: at the end if there is none."""
    start = 0
    if text.lstrip().startswith(_THINK) and _THOUGHT in text:
        start = text.index(_THOUGHT) + len(_THOUGHT)
    place = text.find(_OPEN, start)
    if _CLOSE in text[start : None if place < 0 else place]:
        raise ValueError("a tag closes nothing")
    if place < 0:
        return text, len(text)
    return text[:place].removesuffix("\n"), place


def _skip(text: str, place: int) -> int:
    """Where the next text that is not blank begins."""
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


def _expect(text: str, place: int, word: str) -> int:
    place = _skip(text, place)
    if not text.startswith(word, place):
        raise ValueError(f"{word} is missing")
    return place + len(word)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str, place: int) -> tuple[Any, int]:
    """The JSON value at a place, and where it ends: a tag in a string ends nothing."""
    return _DECODER.raw_decode(text, _skip(text, place))


def _name_and_arguments(value: Any, key: str) -> tuple[str, str]:
    """Name and arguments, as JSON text, of an object that is a call."""
    if not isinstance(value, dict) or value.keys() != {"name", key}:
        raise ValueError("the object is no call")
    name, arguments = value["name"], value[key]
    # Other names could not be sent back in a message.
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError("the name is none")
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are no object")
    written = _dump(arguments)
    # An escape may spell half of a character, which no message can hold.
    written.encode()
    return name, written


def _dump(value: Any) -> str:
    # As chat templates write JSON.
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _object(call: Mapping[str, Any], key: str) -> str:
    function = call["function"]
    return _dump({"name": function["name"], key: json.loads(function["arguments"])})


def _write_hermes(calls: Sequence[Mapping[str, Any]]) -> str:
    blocks = (f"{_OPEN}\n{_object(call, 'arguments')}\n{_CLOSE}" for call in calls)
    return "\n".join(blocks)


def _write_smollm2(calls: Sequence[Mapping[str, Any]]) -> str:
    objects = ", ".join(_object(call, "arguments") for call in calls)
    return f"{_OPEN}[{objects}]{_CLOSE}" if calls else ""


def _write_llama3(calls: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(_object(call, "parameters") for call in calls)


TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": ToolFormat(_make_read(_parse_hermes), _write_hermes),
    "llama3": ToolFormat(_make_read(_parse_llama3), _write_llama3),
    "smollm2": ToolFormat(_make_read(_parse_smollm2), _write_smollm2),
}
