"""Messages and tools of requests: what is read, and what is refused where."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.agent.calls import CallRefused
from ragen_jax.host_games.agent.messages import (
    MAX_DEPTH,
    check_document,
    read_messages,
    read_tools,
    write_call,
)
from tests.host_games.agent.serving import TOOL

CALL = write_call("a", "go", '{"x": 1}')


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
        ({"role": "developer", "content": "d"}, {"role": "system", "content": "d"}),
        (
            {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]},
            {"role": "user", "content": "ab"},
        ),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (
            {"role": "user", "content": "hi", "name": "Ann"},
            {"role": "user", "content": "hi"},
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        # Copies of answers, as clients write them.
        (
            {"role": "assistant", "content": None, "tool_calls": None, "refusal": None},
            {"role": "assistant", "content": ""},
        ),
        (
            {"role": "assistant", "content": "x", "tool_calls": [], "annotations": []},
            {"role": "assistant", "content": "x"},
        ),
        (
            {"role": "tool", "content": "ok", "tool_call_id": "a", "name": "go"},
            {"role": "tool", "content": "ok", "tool_call_id": "a"},
        ),
    ],
)
def test_messages_have_one_form(message, read):
    assert read_messages([message]) == (read,)
    # Which is its own.
    assert read_messages([read]) == (read,)


def call(**fields):
    return [{"role": "assistant", "tool_calls": [CALL | fields]}]


def function(**fields):
    return call(function=CALL["function"] | fields)


@pytest.mark.parametrize(
    ("messages", "param", "said"),
    [
        (None, "messages", "at least one message"),
        ([], "messages", "at least one message"),
        ("hi", "messages", "at least one message"),
        (["hi"], "messages[0]", 'is "hi"; send an object'),
        ([{}], "messages[0].role", "is null; send one of system"),
        ([{"role": "bot"}], "messages[0].role", 'is "bot"'),
        ([{"role": ["user"]}], "messages[0].role", 'is ["user"]'),
        ([{"role": "user"}], "messages[0].content", "is null"),
        ([{"role": "user", "content": 3}], "messages[0].content", "is 3"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0].type",
            "the model reads nothing else",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "is null",
        ),
        ([{"role": "tool", "content": ""}], "messages[0].tool_call_id", "is null"),
        (
            [{"role": "user", "content": "", "tool_calls": [CALL]}],
            "messages[0].tool_calls",
            "no list of an assistant",
        ),
        (
            [{"role": "assistant", "tool_calls": {}}],
            "messages[0].tool_calls",
            "no list of an assistant",
        ),
        (
            [{"role": "assistant", "refusal": "no"}],
            "messages[0].refusal",
            "not known here; leave it out",
        ),
        (call(id=None), "messages[0].tool_calls[0].id", "is null"),
        (call(type="custom"), "messages[0].tool_calls[0].type", 'is "custom"'),
        (call(function=None), "messages[0].tool_calls[0].function", "is null"),
        (
            function(name="to go"),
            "messages[0].tool_calls[0].function.name",
            'is "to go"; send 1 to 64',
        ),
        *(
            (
                function(arguments=arguments),
                "messages[0].tool_calls[0].function.arguments",
                said,
            )
            for arguments, said in (
                ({}, "is {}; send a text"),
                ("", "JSON text of an object"),
                ("[]", "JSON text of an object"),
                ('{"x": NaN}', "JSON text of an object"),
                ("{" * 100_000, "JSON text of an object"),
            )
        ),
    ],
)
def test_other_messages_are_refused_by_place(messages, param, said):
    with pytest.raises(CallRefused) as refused:
        read_messages(messages)
    assert refused.value.param == param
    assert said in str(refused.value)


def test_tools_have_one_form():
    strict = {**TOOL, "function": TOOL["function"] | {"strict": True}}
    assert read_tools([strict, TOOL]) == (TOOL, TOOL)
    bare = {"type": "function", "function": {"name": "go", "parameters": None}}
    assert read_tools([bare]) == ({"type": "function", "function": {"name": "go"}},)
    assert read_tools([]) == ()


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ("go", "tools[0]"),
        ({}, "tools[0].type"),
        ({"type": "custom"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].function"),
        ({"type": "function", "function": {}}, "tools[0].function.name"),
        (
            {"type": "function", "function": {"name": "a", "parameters": []}},
            "tools[0].function.parameters",
        ),
        (
            {"type": "function", "function": {"name": "a", "description": 3}},
            "tools[0].function.description",
        ),
    ],
)
def test_other_tools_are_refused_by_place(tool, param):
    with pytest.raises(CallRefused) as refused:
        read_tools([tool])
    assert refused.value.param == param


def nested(depth):
    return [] if depth == 0 else [nested(depth - 1)]


def test_documents_are_plain():
    check_document({"a": ["é", 1.5, None, True, {"b": nested(MAX_DEPTH - 4)}]})
    check_document(nested(MAX_DEPTH))
    for document, said in (
        (nested(MAX_DEPTH + 1), "nested more than 64 deep"),
        ({"a": [float("nan")]}, "the number nan"),
        ({"a": [float("-inf")]}, "the number -inf"),
        ({"a": ["\ud800"]}, "not Unicode"),
        ({"\udfff": 1}, "not Unicode"),
    ):
        with pytest.raises(CallRefused, match=said):
            check_document(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
FIELDS = ("role", "content", "tool_calls", "tool_call_id", "type", "function", "name")
MESSAGES = st.lists(
    JSON
    | st.dictionaries(
        st.sampled_from(FIELDS),
        JSON | st.sampled_from(["user", "tool", "assistant", [CALL], [{}], "function"]),
    )
)


@settings(deadline=None)
@given(JSON | MESSAGES)
def test_any_json_is_read_or_refused(document):
    for read in (read_messages, read_tools):
        try:
            found, param = read(document), "messages"
        except CallRefused as refused:
            found, param = (), refused.param
        assert param.startswith(("messages", "tools"))
        assert all(isinstance(entry, dict) for entry in found)
