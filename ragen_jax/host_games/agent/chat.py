"""Chat completions: requests of that API as calls, answers as its objects.

In: the object of a request, then a `ChatAnswer`. Out: a `ChatCall`, then the response,
whole or as the chunks of a stream. An answer is whole before its stream begins; a
chunk holds the text of one sampled token where these are known. `return_token_ids` is
vLLM's: ids of the prompt in the response or the first chunk, ids of the reply in the
choice, those of each chunk where it holds one token.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ragen_jax.host_games.agent import parameters
from ragen_jax.host_games.agent.calls import ChatAnswer, ChatCall
from ragen_jax.host_games.agent.messages import read_messages, read_tools, refuse


@dataclasses.dataclass(frozen=True)
class Options:
    """How the answer is sent.

    Attributes:
      stream: in chunks.
      include_usage: the stream ends with the numbers of tokens.
    """

    stream: bool
    include_usage: bool


def read_request(body: Any) -> tuple[ChatCall, Options]:
    """The call of a request.

    Raises:
      CallRefused: it cannot be answered.
    """
    given = parameters.read_parameters(body, parameters.CHAT)
    stop = given.get("stop", [])
    call = ChatCall(
        messages=read_messages(given.get("messages")),
        tools=read_given_tools(given),
        max_tokens=_max_tokens(given),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        wants_logprobs=given.get("logprobs", False),
        wants_token_ids=given.get("return_token_ids", False),
        temperature=given.get("temperature"),
        top_p=given.get("top_p"),
        seed=given.get("seed"),
    )
    include_usage = given.get("stream_options", {}).get("include_usage")
    return call, Options(given.get("stream", False), bool(include_usage))


def read_given_tools(given: dict[str, Any], read=read_tools) -> tuple[dict, ...]:
    """The tools that the model may call."""
    tools = read(given.get("tools", []))
    return () if given.get("tool_choice") == "none" else tools


def write_answer(
    answer: ChatAnswer, call: ChatCall, *, answer_id: str, model: str
) -> dict[str, Any]:
    """The response as one object."""
    message: dict[str, Any] = {
        "role": "assistant",
        # As OpenAI writes a reply that is all calls of tools.
        "content": answer.content or (None if answer.tool_calls else ""),
        "refusal": None,
    }
    if answer.tool_calls:
        message["tool_calls"] = list(answer.tool_calls)
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _write_logprobs(answer.logprobs) if call.wants_logprobs else None,
        "finish_reason": answer.finish_reason,
    }
    head = _head("chat.completion", answer_id, model)
    response = head | {"choices": [choice], "usage": _write_usage(answer)}
    if call.wants_token_ids:
        response["prompt_token_ids"] = _ids(answer.prompt_token_ids)
        choice["token_ids"] = _ids(answer.token_ids)
    return response


def write_chunks(
    answer: ChatAnswer,
    call: ChatCall,
    options: Options,
    *,
    answer_id: str,
    model: str,
) -> Iterator[dict[str, Any]]:
    """The response as the chunks of a stream."""
    head = _head("chat.completion.chunk", answer_id, model)
    if options.include_usage:
        head["usage"] = None

    def chunk(delta, **fields):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return head | {"choices": [choice | fields]}

    first = chunk({"role": "assistant", "content": ""})
    if call.wants_token_ids:
        first["prompt_token_ids"] = _ids(answer.prompt_token_ids)
    yield first
    for piece, fields in _pieces(answer, call):
        yield chunk({"content": piece}, **fields)
    for i, tool_call in enumerate(answer.tool_calls):
        function = tool_call["function"]
        begun = {"name": function["name"], "arguments": ""}
        yield chunk({"tool_calls": [{"index": i, **tool_call, "function": begun}]})
        rest = {"arguments": function["arguments"]}
        yield chunk({"tool_calls": [{"index": i, "function": rest}]})
    yield chunk({}, finish_reason=answer.finish_reason)
    if options.include_usage:
        yield head | {"choices": [], "usage": _write_usage(answer)}


def split_content(content: str, texts: Sequence[str]) -> list[str]:
    """Pieces of a content, one for each text of a sampled token.

    Tokens need not spell the content: a stop text or a call of a tool has been taken
    out of it, a character may be spread over several. From the first that departs from
    it, the rest is one piece and the further ones are empty.
    """
    if not texts:
        return [content]
    pieces, place = [], 0
    for text in texts:
        if content.startswith(text, place):
            pieces.append(text)
        else:
            pieces.append(content[place:])
        place += len(pieces[-1])
    # What no token spells.
    pieces[-1] += content[place:]
    return pieces


def _pieces(answer: ChatAnswer, call: ChatCall) -> Iterator[tuple[str, dict[str, Any]]]:
    """Texts of a stream's chunks, and what their choices have besides."""
    sampled = answer.logprobs or ()
    pieces = split_content(answer.content, [text for text, _ in sampled])
    ids = _ids(answer.token_ids) if call.wants_token_ids else None
    for i, piece in enumerate(pieces):
        fields: dict[str, Any] = {}
        if call.wants_logprobs and sampled:
            fields["logprobs"] = _write_logprobs(sampled[i : i + 1])
        if ids is not None and len(ids) == len(pieces):
            fields["token_ids"] = ids[i : i + 1]
        elif ids is not None:
            fields["token_ids"] = ids if i == 0 else []
        if piece or fields:
            yield piece, fields


def _max_tokens(given: dict[str, Any]) -> int | None:
    """The limit, under its old or its new name."""
    old, new = given.get("max_tokens"), given.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        refuse("max_tokens", f"is {old}, but `max_completion_tokens` {new}", "send one")
    return old if new is None else new


def _head(kind: str, answer_id: str, model: str) -> dict[str, Any]:
    created = int(time.time())
    return {"id": answer_id, "object": kind, "created": created, "model": model}


def _write_usage(answer: ChatAnswer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _write_logprobs(
    sampled: Sequence[tuple[str, float]] | None,
) -> dict[str, Any] | None:
    if sampled is None:
        return None
    return {"content": write_tokens(sampled), "refusal": None}


def write_tokens(sampled: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Sampled tokens with their log-probabilities, as both APIs write them."""
    return [
        {
            "token": text,
            "logprob": logprob,
            "bytes": list(text.encode(errors="replace")),
            "top_logprobs": [],
        }
        for text, logprob in sampled
    ]


def _ids(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)
