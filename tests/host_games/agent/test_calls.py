"""Calls and answers as JSON, and what neither can be."""

import dataclasses
import json
import pickle
from http import HTTPStatus

import pytest

from ragen_jax.host_games.agent.calls import CallRefused, ChatAnswer, ChatCall
from ragen_jax.host_games.agent.messages import write_call
from tests.host_games.agent.serving import TOOL

CALL = write_call("call_0", "go", "{}")
FULL = [
    ChatCall(
        messages=(
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "ok", "tool_call_id": "call_0"},
        ),
        tools=(TOOL,),
        max_tokens=5,
        stop=("a", "b"),
        wants_logprobs=True,
        wants_token_ids=True,
        temperature=0.5,
        top_p=0.9,
        seed=3,
    ),
    ChatAnswer(
        content="so",
        tool_calls=(CALL,),
        finish_reason="tool_calls",
        prompt_tokens=2,
        completion_tokens=1,
        token_ids=(7,),
        prompt_token_ids=(1, 2),
        logprobs=(("so", -0.5),),
    ),
]
BARE = [ChatCall(({"role": "user", "content": ""},)), ChatAnswer("")]


@pytest.mark.parametrize("data", FULL + BARE, ids=lambda d: type(d).__name__)
def test_they_travel_as_json(data):
    document = json.loads(json.dumps(data.to_json(), allow_nan=False))
    assert type(data).from_json(document) == data
    assert document.keys() == {f.name for f in dataclasses.fields(data)}


@pytest.mark.parametrize(("full", "bare"), list(zip(FULL, BARE, strict=True)))
def test_every_field_is_tried(full, bare):
    for field in dataclasses.fields(full):
        assert getattr(full, field.name) != getattr(bare, field.name)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"finish_reason": "eos"}, "finish_reason is 'eos'; use one of"),
        ({"finish_reason": "tool_calls"}, "there are no tool_calls"),
        ({"logprobs": (("a", -1.0), ("b", float("-inf")))}, "is -inf; give finite"),
        ({"logprobs": (("a", float("nan")),)}, "is nan; give finite"),
    ],
)
def test_answers_that_cannot_be_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        ChatAnswer("", **fields)


def test_a_refusal_is_plain_and_travels():
    refused = CallRefused("it is long; shorten it")
    assert (refused.status, refused.param) == (HTTPStatus.BAD_REQUEST, None)
    refused = CallRefused("none left; stop", HTTPStatus.TOO_MANY_REQUESTS, "spent", "x")
    again = pickle.loads(pickle.dumps(refused))
    assert isinstance(again, ValueError)
    assert (str(again), again.status, again.code, again.param) == (
        ("none left; stop", HTTPStatus.TOO_MANY_REQUESTS, "spent", "x")
    )
