"""Calls of tools in text: each format by hand, both ways, and texts that are none."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.agent.messages import MAX_DEPTH, read_call, write_call
from ragen_jax.host_games.agent.tools import TOOL_FORMATS

GO = write_call("call_0", "go", '{"to": "the öst", "n": 2}')
STAY = write_call("call_1", "stay", "{}")
# By hand, from the models' chat templates and cards.
TEXTS = {
    "hermes": '<tool_call>\n{"name": "go", "arguments": {"to": "the öst", "n": 2}}\n'
    '</tool_call>\n<tool_call>\n{"name": "stay", "arguments": {}}\n</tool_call>',
    "llama3": '{"name": "go", "parameters": {"to": "the öst", "n": 2}}; '
    '{"name": "stay", "parameters": {}}',
    "smollm2": '<tool_call>[{"name": "go", "arguments": {"to": "the öst", "n": 2}}, '
    '{"name": "stay", "arguments": {}}]</tool_call>',
}
TAGGED = [name for name in TOOL_FORMATS if name != "llama3"]
each_format = pytest.mark.parametrize("name", TOOL_FORMATS)


def test_the_formats_have_texts():
    assert TEXTS.keys() == TOOL_FORMATS.keys()


@each_format
def test_by_hand(name):
    how = TOOL_FORMATS[name]
    assert how.write([GO, STAY]) == TEXTS[name]
    assert how.read(TEXTS[name]) == ("", (GO, STAY), False)
    assert how.read(f"\n {TEXTS[name]} \n")[1] == (GO, STAY)
    assert how.write([]) == ""
    assert how.read("") == ("", (), False)


@each_format
def test_ids_count_from_a_number(name):
    _, calls, _ = TOOL_FORMATS[name].read(TEXTS[name], 7)
    assert [call["id"] for call in calls] == ["call_7", "call_8"]


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("content", ["I go.", "<think>so</think>\n", "{", "a\n"])
def test_text_before_calls_is_content(name, content):
    read = TOOL_FORMATS[name].read(f"{content}\n{TEXTS[name]}")
    assert read == (content, (GO, STAY), False)


@pytest.mark.parametrize("name", TAGGED)
def test_a_thought_may_speak_of_calls(name):
    thought = "<think>a <tool_call> is due, </tool_call></think>"
    assert TOOL_FORMATS[name].read(thought) == (thought, (), False)
    read = TOOL_FORMATS[name].read(f"{thought}{TEXTS[name]}")
    assert read == (thought, (GO, STAY), False)
    # Only a thought: the tag is no thought's where none has begun.
    assert TOOL_FORMATS[name].read("<tool_call></think>")[2]


def test_llamas_tag_and_type():
    read = TOOL_FORMATS["llama3"].read
    assert read(f"<|python_tag|>{TEXTS['llama3']}") == ("", (GO, STAY), False)
    typed = '{"type": "function", "name": "stay", "parameters": {}}'
    assert read(typed, 1) == ("", (STAY,), False)
    assert read('{"type": "object", "name": "stay", "parameters": {}}')[2]


@pytest.mark.parametrize("text", ['{"answer": 3}', "{", "[1]", "A ; B", '"name"'])
def test_llamas_other_objects_are_answers(text):
    assert TOOL_FORMATS["llama3"].read(text) == (text, (), False)


OBJECTS = [
    "",
    "{",
    "go",
    "[]",
    "[[]]",
    "3",
    "null",
    '{"name": "go"}',
    '{"name": "go", "ARGS": []}',
    '{"name": "go", "ARGS": "{}"}',
    '{"name": "go", "ARGS": null}',
    '{"name": "go", "ARGS": {}, "more": 1}',
    '{"name": "", "ARGS": {}}',
    '{"name": "to go", "ARGS": {}}',
    '{"name": 3, "ARGS": {}}',
    '{"name": "go", "ARGS": {"x": NaN}}',
    '{"name": "go", "ARGS": {"x": 1e999}}',
    '{"name": "go", "ARGS": {"x": "\\ud800"}}',
    '{"name": "go", "ARGS": {"x": 1}',
    '{"name": "go", "ARGS": {"x": 1,}}',
    "{'name': 'go', 'ARGS': {}}",
    '{"name": "go", "ARGS": {"x": %s}}' % ("9" * 5_000),
    '{"name": "go", "ARGS": {"x": %s' % ("[" * 200_000),
    '{"function": "go", "ARGS": {}}',
]


@pytest.mark.parametrize("object_", OBJECTS, ids=range(len(OBJECTS)))
def test_attempts_that_fail_stay_text(object_):
    hermes = object_.replace("ARGS", "arguments")
    texts = {
        "hermes": f"<tool_call>\n{hermes}\n</tool_call>",
        "smollm2": f"<tool_call>[{hermes}]</tool_call>",
        "llama3": f"<|python_tag|>{object_.replace('ARGS', 'parameters')}",
    }
    for name, text in texts.items():
        assert TOOL_FORMATS[name].read(text) == (text, (), True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", TEXTS["hermes"].removesuffix("</tool_call>")),
        ("hermes", TEXTS["hermes"] + " done"),
        ("hermes", TEXTS["hermes"].replace("call>\n<tool", "call> and <tool")),
        ("hermes", TEXTS["hermes"] + "<tool_call>"),
        ("hermes", TEXTS["smollm2"]),
        ("hermes", "</tool_call>"),
        ("hermes", f"</tool_call>{TEXTS['hermes']}"),
        ("smollm2", TEXTS["smollm2"].removesuffix("</tool_call>")),
        ("smollm2", TEXTS["smollm2"] * 2),
        ("smollm2", TEXTS["hermes"]),
        ("llama3", TEXTS["llama3"] + ";"),
        ("llama3", TEXTS["llama3"].replace(";", "")),
        ("llama3", TEXTS["llama3"] + " done"),
        ("llama3", "<|python_tag|>"),
        ("llama3", '<|python_tag|>import os; os.system("ls")'),
    ],
)
def test_forms_that_are_not_of_the_format(name, text):
    assert TOOL_FORMATS[name].read(text) == (text, (), True)


TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["</tool_call>", "<tool_call>", "</think>", "<|python_tag|>", ";", '"}']
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=8,
)
FUNCTIONS = st.tuples(
    st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    st.dictionaries(TEXT, VALUES),
)


@each_format
@settings(deadline=None, max_examples=30)
@given(functions=st.lists(FUNCTIONS), first=st.integers(0, 9))
def test_what_is_written_is_read(name, functions, first):
    calls = tuple(
        write_call(f"call_{first + i}", called, json.dumps(given, ensure_ascii=False))
        for i, (called, given) in enumerate(functions)
    )
    how = TOOL_FORMATS[name]
    assert how.read(how.write(calls), first) == ("", calls, False)


PIECES = st.sampled_from(
    [
        *(TEXTS.values()),
        *OBJECTS[:8],
        '{"name": "go", "arguments": {"x": 1}}',
        '{"name": "go", "parameters": {}}',
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "<think>", "</think>"),
        *(";", "\n", "[", "]", ",", "{", "}", '"', "\\ud800", "\ud800"),
    ]
)


@each_format
@settings(deadline=None, max_examples=100)
@given(st.lists(PIECES | st.text(), max_size=8).map("".join))
@example('{"name": ' * 100_000)
@example("<tool_call>" + "[" * 100_000)
@example('<tool_call>[{"name": "x", "arguments": ' + '{"a":' * 900 + "}" * 902)
def test_any_text_is_read(name, text):
    content, calls, is_malformed = TOOL_FORMATS[name].read(text)
    assert not (calls and is_malformed)
    if not calls:
        assert content == text
    for call in calls:
        # An agent can send it back.
        assert read_call(call, "call") == call


def test_deep_arguments_are_calls():
    """They are text in a message, so that its own depth does not grow."""
    deep = '{"x": ' * (2 * MAX_DEPTH) + "1" + "}" * (2 * MAX_DEPTH)
    text = f'<tool_call>{{"name": "go", "arguments": {deep}}}</tool_call>'
    _, (call,), _ = TOOL_FORMATS["hermes"].read(text)
    assert call["function"]["arguments"] == deep
