"""Messages of OpenEnv: what is read, what is refused and how."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_jax.serve import protocol
from ragen_jax.serve.protocol import Code, MessageError, read_message


def message(kind, **data):
    return json.dumps({"type": kind, "data": data})


def test_requests_are_read():
    assert read_message('{"type": "reset"}') == protocol.Reset()
    asked = read_message(
        message("reset", seed=7, episode_id="a", split="validation", task=2, level=3)
    )
    assert asked == protocol.Reset(7, "a", "validation", 2, ("level",))
    assert read_message(message("step", answer="Up")) == protocol.Step("Up")
    with_metadata = message("step", answer="", metadata={"a": 1})
    assert read_message(with_metadata) == protocol.Step("")
    assert read_message('{"type": "state"}') == protocol.GetState()
    assert read_message('{"type": "close"}') == protocol.Close()
    assert read_message(message("mcp", id=1)) == protocol.Mcp({"id": 1})


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        ("", "INVALID_JSON", "Invalid JSON"),
        ("{", "INVALID_JSON", "Invalid JSON"),
        ('{"type": "reset", "data": {"seed": NaN}}', "INVALID_JSON", "NaN is not JSON"),
        ("[" * 100_000, "INVALID_JSON", "Invalid JSON"),
        (b'{"type": "state"}', "INVALID_JSON", "binary; send it as text"),
        ("[]", "VALIDATION_ERROR", "a message is an object, not a JSON list"),
        ("{}", "UNKNOWN_TYPE", "use one of reset, step, state, mcp, close"),
        ('{"type": "jump"}', "UNKNOWN_TYPE", '"jump"'),
        ('{"type": ["reset"]}', "UNKNOWN_TYPE", "use one of"),
        ('{"type": "state", "data": {}}', "VALIDATION_ERROR", "no such entry"),
        ('{"type": "reset", "seed": 1}', "VALIDATION_ERROR", "seed: a message"),
        ('{"type": "step"}', "VALIDATION_ERROR", "data: it must be an object"),
        ('{"type": "reset", "data": 1}', "VALIDATION_ERROR", "not a JSON int"),
        (message("reset", seed=-1), "VALIDATION_ERROR", "use 0 to 2147483647"),
        (message("reset", seed=2**31), "VALIDATION_ERROR", "use 0 to 2147483647"),
        (message("reset", seed=True), "VALIDATION_ERROR", "seed: it is true"),
        (message("reset", seed=1.0), "VALIDATION_ERROR", "seed: it is 1.0"),
        (message("reset", task=-1), "VALIDATION_ERROR", "whole number from 0"),
        (message("reset", episode_id=3), "VALIDATION_ERROR", "up to 255"),
        (message("reset", episode_id="x" * 256), "VALIDATION_ERROR", "up to 255"),
        (message("reset", split="test"), "VALIDATION_ERROR", "training or validation"),
        (message("reset", split=[]), "VALIDATION_ERROR", "training or validation"),
        (message("step"), "VALIDATION_ERROR", "answer: the action lacks it"),
        (message("step", answer=None), "VALIDATION_ERROR", "must be text, not nothing"),
        (message("step", answer="", x=1), "VALIDATION_ERROR", "x: the action has no"),
        (message("step", answer="", metadata=1), "VALIDATION_ERROR", "metadata: it"),
    ],
)
def test_what_is_no_request_has_a_code_and_a_sentence(raw, code, words):
    with pytest.raises(MessageError) as caught:
        read_message(raw)
    data = protocol.error_data(caught.value)
    assert data["code"] == code
    assert words in data["message"]
    assert ("errors" in data) == (code == "VALIDATION_ERROR")


def test_every_code_is_published():
    """Those of `WSErrorCode` in OpenEnv 0.10; its FACTORY_ERROR has no case here."""
    published = {
        "INVALID_JSON",
        "UNKNOWN_TYPE",
        "VALIDATION_ERROR",
        "EXECUTION_ERROR",
        "CAPACITY_REACHED",
        "SESSION_ERROR",
    }
    assert {str(code) for code in Code} == published


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
NAMES = st.sampled_from(["seed", "episode_id", "split", "task", "answer", "metadata"])
KINDS = st.sampled_from(["reset", "step", "state", "mcp", "close", "jump"])
MESSAGES = st.fixed_dictionaries(
    {"type": KINDS | JSON}, optional={"data": st.dictionaries(NAMES, JSON) | JSON}
)


@given(st.text() | st.binary() | (MESSAGES | JSON).map(json.dumps))
def test_no_message_is_more_than_an_error(raw):
    try:
        request = read_message(raw)
    except MessageError as error:
        text = protocol.write("error", protocol.error_data(error))
        assert json.loads(text)["data"]["code"] in {code.value for code in Code}
    else:
        assert isinstance(request, protocol.Request)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, {"id": None, "code": -32600}),
        ([], {"id": None, "code": -32600}),
        (
            {"jsonrpc": "2.0", "id": 4, "method": "initialize"},
            {"id": 4, "code": -32601},
        ),
        ({"jsonrpc": "1.0", "id": [], "method": "a"}, {"id": None, "code": -32600}),
    ],
)
def test_json_rpc_is_answered_by_an_error(request_, expected):
    answer = protocol.answer_mcp(request_)
    assert answer["jsonrpc"] == "2.0"
    assert {"id": answer["id"], "code": answer["error"]["code"]} == expected


def test_there_are_no_tools():
    asked = {"jsonrpc": "2.0", "id": "a", "method": "tools/list"}
    expected = {"jsonrpc": "2.0", "id": "a", "result": {"tools": []}}
    assert protocol.answer_mcp(asked) == expected
