"""OpenEnv's messages over WebSocket, version 0.10.

In: texts from a client. Out: the requests in them, or errors by the published codes;
and the texts of answers. Knows no games and no sockets.

    reset, {seed?, episode_id?, split?, task?}  -> observation
    step, {answer}                              -> observation
    state                                       -> state
    mcp, a JSON-RPC request                     -> mcp
    close

Source: `core/env_server/types.py` and `http_server.py` of OpenEnv 0.10.
"""

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

from envs.base import SPLITS, TRAINING
from ragen_jax.host_games.common.files import parse_json

# Largest seed of a `HostGame`.
MAX_SEED = 2**31 - 1
MAX_EPISODE_ID = 255


class Code(enum.StrEnum):
    """What went wrong, as clients read it."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    SESSION_ERROR = "SESSION_ERROR"


class MessageError(ValueError):
    """A message that cannot be answered.

    Attributes:
      code: what kind of mistake it is.
      details: further entries of the error's data.
    """

    def __init__(self, code: Code, message: str, **details: Any):
        super().__init__(message)
        self.code, self.details = code, details


@dataclasses.dataclass(frozen=True)
class Reset:
    """Begin an episode.

    Attributes:
      seed: None: the server draws one.
      episode_id: None: the server makes one.
      split: part of the game's problems.
      task: number of a problem; None: the seed chooses it.
      ignored: names in the request that mean nothing here. The protocol allows them,
        since what a reset takes differs from server to server.
    """

    seed: int | None = None
    episode_id: str | None = None
    split: str = TRAINING
    task: int | None = None
    ignored: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Step:
    """Answer: what a reply has between its tags, or the whole reply with them."""

    answer: str


@dataclasses.dataclass(frozen=True)
class GetState:
    """Where the episode stands."""


@dataclasses.dataclass(frozen=True)
class Mcp:
    """A JSON-RPC request about tools."""

    request: Any


@dataclasses.dataclass(frozen=True)
class Close:
    """End the session."""


Request = Reset | Step | GetState | Mcp | Close


def read_message(raw: str | bytes) -> Request:
    """The request in a message.

    Raises:
      MessageError: the text is not a message.
    """
    if isinstance(raw, bytes):
        raise MessageError(
            Code.INVALID_JSON, "Invalid JSON: the message is binary; send it as text"
        )
    try:
        message = parse_json(raw, allow_nan=False)
    except ValueError as error:
        raise MessageError(Code.INVALID_JSON, f"Invalid JSON: {error}") from None
    if not isinstance(message, dict):
        raise _invalid([], f"a message is an object, not {_kind(message)}")
    kind = message.get("type", "")
    if not isinstance(kind, str) or kind not in _READERS:
        raise MessageError(
            Code.UNKNOWN_TYPE,
            f"Unknown message type: {_show(kind)}; use one of {', '.join(_READERS)}",
        )
    takes_data = kind in ("reset", "step", "mcp")
    for name in message:
        if name != "type" and not (name == "data" and takes_data):
            raise _invalid([name], f"a message of type {kind} has no such entry")
    data = message.get("data", {} if kind == "reset" else None)
    if takes_data and not isinstance(data, dict):
        raise _invalid(["data"], f"it must be an object, not {_kind(data)}")
    return _READERS[kind](data)


def read_reset(data: Mapping[str, Any]) -> Reset:
    """What a reset asks for.

    Raises:
      MessageError: a value cannot be used.
    """
    seed, task = data.get("seed"), data.get("task")
    if seed is not None and not _is_whole(seed, MAX_SEED):
        raise _invalid(["seed"], f"it is {_show(seed)}; use 0 to {MAX_SEED}")
    if task is not None and not _is_whole(task, MAX_SEED):
        raise _invalid(["task"], f"it is {_show(task)}; use a whole number from 0")
    episode_id = data.get("episode_id")
    if episode_id is not None and not (
        isinstance(episode_id, str) and len(episode_id) <= MAX_EPISODE_ID
    ):
        raise _invalid(
            ["episode_id"], f"use a string of up to {MAX_EPISODE_ID} characters"
        )
    split = data.get("split")
    if split is not None and split not in SPLITS:
        raise _invalid(["split"], f"it is {_show(split)}; use {' or '.join(SPLITS)}")
    known = ("seed", "episode_id", "split", "task")
    ignored = tuple(name for name in data if name not in known)
    return Reset(seed, episode_id, split or TRAINING, task, ignored)


def read_step(data: Mapping[str, Any]) -> Step:
    """The answer in a step request.

    Raises:
      MessageError: it is not of the action's schema.
    """
    if "answer" not in data:
        raise _invalid(["answer"], "the action lacks it", kind="missing")
    if not isinstance(data["answer"], str):
        raise _invalid(["answer"], f"it must be text, not {_kind(data['answer'])}")
    if not isinstance(data.get("metadata", {}), dict):
        raise _invalid(["metadata"], "it must be an object")
    for name in data:
        if name not in ("answer", "metadata"):
            raise _invalid([name], "the action has no such entry", "extra_forbidden")
    return Step(data["answer"])


_READERS = {
    "reset": read_reset,
    "step": read_step,
    "state": lambda data: GetState(),
    "mcp": Mcp,
    "close": lambda data: Close(),
}


def error_data(error: MessageError) -> dict[str, Any]:
    """The data of an error message."""
    return {"message": str(error), "code": str(error.code), **error.details}


def write(kind: str, data: Mapping[str, Any]) -> str:
    """The text of an answer: `observation`, `state`, `mcp` or `error`."""
    return json.dumps({"type": kind, "data": data}, allow_nan=False)


def answer_mcp(request: Any) -> dict[str, Any]:
    """The answer to a JSON-RPC request: a game of text has no tools."""
    is_object = isinstance(request, dict)
    request_id = request.get("id") if is_object else None
    if not isinstance(request_id, str | int | None) or isinstance(request_id, bool):
        request_id = None
    answer = {"jsonrpc": "2.0", "id": request_id}
    method = request.get("method") if is_object else None
    if not isinstance(method, str) or request.get("jsonrpc") != "2.0":
        message = "Invalid request: send jsonrpc, id and method"
        return answer | {"error": {"code": -32600, "message": message}}
    if method == "tools/list":
        return answer | {"result": {"tools": []}}
    message = "This server has no tools; play over the WebSocket at /ws"
    return answer | {"error": {"code": -32601, "message": message}}


def _invalid(
    place: Sequence[str], message: str, kind: str = "value_error"
) -> MessageError:
    where = ".".join(place) or "message"
    error = {"type": kind, "loc": list(place), "msg": message}
    return MessageError(
        Code.VALIDATION_ERROR, f"Invalid message: {where}: {message}", errors=[error]
    )


def _is_whole(value: Any, limit: int) -> bool:
    return (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
    )


def _show(value: Any) -> str:
    return json.dumps(value)[:80]


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a JSON {type(value).__name__}"
