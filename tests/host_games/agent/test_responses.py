"""The Responses API, asked for by OpenAI's client."""

import inspect

import openai
import pytest
from openai.resources.responses import Responses

from ragen_jax.host_games.agent import parameters
from ragen_jax.host_games.agent.calls import CallRefused, ChatAnswer, ChatCall
from ragen_jax.host_games.agent.messages import write_call
from ragen_jax.host_games.agent.responses import Dialogues
from tests.host_games.agent.serving import MODEL, TOOL, ask, respond

FLAT = {"type": "function", **TOOL["function"]}
USER = {"role": "user", "content": "hi"}
CALLS = (write_call("call_0", "go", '{"to": 1}'), write_call("call_1", "go", "{}"))
CALLING = ChatAnswer("so", CALLS, "tool_calls", prompt_tokens=3, completion_tokens=9)
SAMPLED = ChatAnswer(
    "hi you", prompt_tokens=3, logprobs=(("hi", -0.5), (" you", -1.25), ("<end>", -2.0))
)


def create(client, input_="hi", **parameters):
    return client.responses.create(model=MODEL, input=input_, **parameters)


def test_a_response(client, model):
    model.answer = ChatAnswer("hello", prompt_tokens=3, completion_tokens=2)
    response = create(client, metadata={"a": "b"})
    assert response.output_text == "hello"
    assert (response.status, response.incomplete_details) == ("completed", None)
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (3, 2, 5)
    assert (response.model, response.metadata) == (MODEL, {"a": "b"})
    assert model.calls[-1] == ChatCall((USER,))
    model.answer = ChatAnswer("cut", finish_reason="length")
    response = create(client)
    assert response.status == response.output[0].status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    model.answer = ChatAnswer("")
    assert [item.type for item in create(client).output] == ["message"]


def test_what_is_asked_for_arrives(client, model):
    model.answer = SAMPLED
    response = create(
        client,
        instructions="be kind",
        tools=[FLAT | {"strict": True}],
        max_output_tokens=5,
        include=["message.output_text.logprobs"],
        temperature=0.5,
        top_p=0.25,
    )
    system = {"role": "system", "content": "be kind"}
    assert model.calls[-1] == ChatCall(
        (system, USER), (TOOL,), 5, (), True, False, 0.5, 0.25
    )
    (part,) = response.output[0].content
    assert [(t.token, t.logprob) for t in part.logprobs] == [*SAMPLED.logprobs]
    assert (response.instructions, response.max_output_tokens) == ("be kind", 5)
    assert (response.temperature, response.top_p) == (0.5, 0.25)
    create(client, tools=[FLAT], tool_choice="none")
    assert model.calls[-1] == ChatCall((USER,))


SAID = {"role": "assistant", "content": "so", "tool_calls": [*CALLS]}
RESULTS = [
    {"type": "function_call_output", "call_id": "call_0", "output": "one"},
    {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [{"type": "input_text", "text": "two"}],
    },
]
AFTER = (
    USER,
    SAID,
    {"role": "tool", "content": "one", "tool_call_id": "call_0"},
    {"role": "tool", "content": "two", "tool_call_id": "call_1"},
)


def test_calls_of_tools_and_back(client, model):
    model.answer = CALLING
    response = create(client, tools=[FLAT])
    kinds = [item.type for item in response.output]
    assert kinds == ["message", "function_call", "function_call"]
    calls = [(c.call_id, c.name, c.arguments) for c in response.output[1:]]
    assert calls == [("call_0", "go", '{"to": 1}'), ("call_1", "go", "{}")]
    # As objects, as their dictionaries, and by the response's id.
    for items in (response.output, [item.model_dump() for item in response.output]):
        create(client, [USER, *items, *RESULTS])
        assert model.calls[-1].messages == AFTER
    create(client, RESULTS, previous_response_id=response.id)
    assert model.calls[-1].messages == AFTER


def test_calls_alone_are_a_message(client, model):
    model.answer = ChatAnswer("", CALLS, "tool_calls")
    response = create(client, tools=[FLAT])
    assert [item.type for item in response.output] == ["function_call"] * 2
    create(client, [USER, *response.output, *RESULTS])
    assert model.calls[-1].messages[1] == SAID | {"content": ""}


def test_dialogues_go_on(client, model):
    model.answer = lambda call: ChatAnswer(f"{len(call.messages)}")
    first = create(client, instructions="be kind")
    second = create(client, "and you", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    # Instructions hold for one response.
    said = ["hi", "2", "and you"]
    assert [m["content"] for m in model.calls[-1].messages] == said
    # Two ways on from the same response.
    for _ in range(2):
        create(client, "x", previous_response_id=second.id)
        contents = [m["content"] for m in model.calls[-1].messages]
        assert contents == [*said, "3", "x"]
    forgotten = create(client, store=False)
    for unknown in (forgotten.id, "resp_1"):
        with pytest.raises(openai.BadRequestError, match="there is no resp") as refused:
            create(client, previous_response_id=unknown)
        assert refused.value.code == "previous_response_not_found"


def test_of_many_dialogues_the_last_are_held():
    dialogues = Dialogues(2)
    for name in "abc":
        dialogues.keep(name, ({"role": "user", "content": name},))
    assert [dialogues.find(name)[0]["content"] for name in "bc"] == ["b", "c"]
    with pytest.raises(CallRefused, match="the last 2 are held"):
        dialogues.find("a")


def test_a_stream(client, model):
    model.answer = SAMPLED
    include = ["message.output_text.logprobs"]
    events = list(create(client, stream=True, include=include))
    delta = "response.output_text.delta"
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *([delta] * 3),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == delta]
    assert [event.delta for event in deltas] == ["hi", " you", ""]
    assert [t.token for e in deltas for t in e.logprobs] == ["hi", " you", "<end>"]
    assert events[-1].response.output_text == "hi you"
    # What is not asked for does not come.
    assert len(list(create(client, stream=True))) == len(events) - 1
    model.answer = ChatAnswer("cut", finish_reason="length")
    *_, last = create(client, stream=True)
    assert last.type == "response.incomplete"
    # A stream's dialogue goes on, too.
    create(client, "and", previous_response_id=last.response.id)
    assert [m["content"] for m in model.calls[-1].messages] == ["hi", "cut", "and"]


def test_tools_in_a_stream(client, model):
    model.answer = CALLING
    with client.responses.stream(model=MODEL, input="hi", tools=[FLAT]) as stream:
        events = list(stream)
        response = stream.get_final_response()
    kinds = [event.type.removeprefix("response.") for event in events]
    assert (
        kinds[-9:-1]
        == [
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        ]
        * 2
    )
    done = [e for e in events if e.type.endswith("arguments.done")]
    assert [e.arguments for e in done] == ['{"to": 1}', "{}"]
    assert [e.output_index for e in done] == [1, 2]
    create(client, [USER, *response.output, *RESULTS])
    assert model.calls[-1].messages == AFTER


REFUSED = {
    "access_programs",
    "background_options",
    "context_management",
    "conversation",
    "image",
    "moderation",
    "prompt",
}
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def test_every_parameter_of_the_client_has_a_place():
    known = set(inspect.signature(Responses.create).parameters) - OF_THE_CLIENT
    assert known - set(parameters.RESPONSES) == REFUSED


@pytest.mark.parametrize(
    "given",
    [
        {"store": True, "truncation": "disabled", "background": False, "user": "a"},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "reasoning": {}},
        {"reasoning": {"effort": None}, "max_tool_calls": 3, "include": []},
        {"include": ["reasoning.encrypted_content"], "parallel_tool_calls": True},
        dict.fromkeys(parameters.RESPONSES.keys() - {"input"}, None),
    ],
)
def test_what_changes_nothing_is_accepted(server, model, given):
    model.answer = ChatAnswer("hello")
    status, said = respond(server, **given)
    assert status == 200, said


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"role": "bot", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "reasoning"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call"}]}, "input[0].call_id"),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "go"}]},
            "input[0].arguments",
        ),
        ({"input": [{"type": "function_call_output"}]}, "input[0].call_id"),
        (
            {"input": [{"type": "function_call_output", "call_id": "a"}]},
            "input[0].output",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL]}, "tools[0].name"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"include": "all"}, "include"),
        ({"include": [[]]}, "include"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"instructions": 3}, "instructions"),
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"messages": []}, "messages"),
        ({"return_token_ids": True}, "return_token_ids"),
    ],
)
def test_what_would_change_the_reply_is_refused_by_name(server, model, given, param):
    num_calls = len(model.calls)
    status, said = respond(server, **given)
    assert (status, said["error"]["param"]) == (400, param)
    assert len(model.calls) == num_calls


def test_a_refusal_is_not_kept(server, model):
    def refuse(call):
        raise CallRefused("too long; shorten it", code="context_length_exceeded")

    model.answer = refuse
    status, _, said = ask(server, "/v1/responses", {"input": "hi", "stream": True})
    assert (status, said["error"]["code"]) == (400, "context_length_exceeded")
