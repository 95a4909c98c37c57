"""Chat completions, asked for by OpenAI's client."""

import asyncio
import concurrent.futures
import dataclasses
import inspect
import json
import threading
from http import HTTPStatus

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.resources.chat.completions import Completions

from ragen_jax.host_games.agent import parameters
from ragen_jax.host_games.agent.calls import CallRefused, ChatAnswer, ChatCall
from ragen_jax.host_games.agent.chat import split_content
from ragen_jax.host_games.agent.messages import write_call
from tests.host_games.agent.serving import (
    HI,
    MODEL,
    TOOL,
    ask,
    complete,
    connected,
    read_answer,
    write_request,
)

USER = {"role": "user", "content": "hi"}
CALLS = (write_call("call_0", "go", '{"to": "ö"}'), write_call("call_1", "go", "{}"))
SAMPLED = ChatAnswer(
    "hi you",
    finish_reason="length",
    prompt_tokens=3,
    completion_tokens=3,
    token_ids=(7, 8, 9),
    prompt_token_ids=(1, 2, 3),
    logprobs=(("hi", -0.5), (" you", -1.25), ("<end>", -0.125)),
)
CALLING = ChatAnswer("", CALLS, "tool_calls", prompt_tokens=3, completion_tokens=9)


def create(client, **parameters):
    return client.chat.completions.create(**HI | parameters)


def test_a_reply(client, model):
    model.answer = ChatAnswer("hello", prompt_tokens=3, completion_tokens=2)
    completion = create(client)
    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "hello")
    assert (choice.finish_reason, choice.index, choice.logprobs) == ("stop", 0, None)
    assert choice.message.tool_calls is None
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (
        (3, 2, 5)
    )
    assert (completion.model, completion.object) == (MODEL, "chat.completion")
    assert completion.id != create(client).id
    assert model.calls[-1] == ChatCall((USER,))
    # Nothing that was not asked for.
    assert completion.model_extra == {}


def test_what_is_asked_for_arrives(client, model):
    create(
        client,
        tools=[TOOL],
        max_completion_tokens=5,
        stop=["a", "b"],
        logprobs=True,
        temperature=0.5,
        top_p=0.25,
        seed=-3,
        extra_body={"return_token_ids": True},
    )
    assert model.calls[-1] == ChatCall(
        (USER,), (TOOL,), 5, ("a", "b"), True, True, 0.5, 0.25, -3
    )
    create(client, tools=[TOOL], tool_choice="none", max_tokens=1, stop="a")
    assert model.calls[-1] == ChatCall((USER,), max_tokens=1, stop=("a",))


def test_logprobs_and_ids(client, model):
    model.answer = SAMPLED
    completion = create(client, logprobs=True, extra_body={"return_token_ids": True})
    (choice,) = completion.choices
    assert [(t.token, t.logprob) for t in choice.logprobs.content] == [
        *SAMPLED.logprobs
    ]
    assert bytes(choice.logprobs.content[1].bytes) == b" you"
    assert choice.finish_reason == "length"
    assert (completion.prompt_token_ids, choice.token_ids) == ([1, 2, 3], [7, 8, 9])
    (choice,) = create(client).choices
    assert choice.logprobs is None
    assert choice.model_extra == {}
    model.answer = ChatAnswer("not known")
    completion = create(client, logprobs=True, extra_body={"return_token_ids": True})
    (choice,) = completion.choices
    assert choice.logprobs is choice.token_ids is completion.prompt_token_ids is None


def test_a_stream(client, model):
    model.answer = SAMPLED
    options = {"include_usage": True}
    *chunks, last = create(client, stream=True, stream_options=options)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [d.content for d in deltas] == ["", "hi", " you", None]
    assert [d.role for d in deltas] == ["assistant", None, None, None]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None, None, None, "length"]
    assert all(chunk.usage is None for chunk in chunks)
    assert (last.choices, last.usage.total_tokens) == ([], 6)
    assert len({chunk.id for chunk in (*chunks, last)}) == 1
    # Without usage the last chunk is the one with the reason.
    assert len(list(create(client, stream=True))) == len(chunks)


def test_a_stream_of_tokens(client, model):
    model.answer = SAMPLED
    extra = {"return_token_ids": True}
    first, *chunks, last = create(client, stream=True, logprobs=True, extra_body=extra)
    assert first.prompt_token_ids == [1, 2, 3]
    choices = [chunk.choices[0] for chunk in chunks]
    assert [c.delta.content for c in choices] == ["hi", " you", ""]
    assert [c.token_ids for c in choices] == [[7], [8], [9]]
    said = [(t.token, t.logprob) for c in choices for t in c.logprobs.content]
    assert said == [*SAMPLED.logprobs]
    assert last.choices[0].logprobs is None
    # Ids without texts come at once.
    model.answer = ChatAnswer("hi", token_ids=(7, 8))
    _, chunk, _ = create(client, stream=True, extra_body=extra)
    assert (chunk.choices[0].token_ids, chunk.choices[0].delta.content) == (
        ([7, 8], "hi")
    )


def test_the_clients_own_reader_of_streams(client, model):
    # It raises where a limit cut the reply.
    for answer in (dataclasses.replace(SAMPLED, finish_reason="stop"), CALLING):
        model.answer = answer
        whole = create(client, tools=[TOOL])
        with client.chat.completions.stream(**HI, tools=[TOOL]) as stream:
            read = stream.get_final_completion()
        message = read.choices[0].message
        assert (message.content or "") == answer.content
        assert read.choices[0].finish_reason == answer.finish_reason
        calls = [c.to_dict() for c in whole.choices[0].message.tool_calls or ()]
        assert calls == [*answer.tool_calls]
        functions = [c.function for c in message.tool_calls or ()]
        assert [(f.name, f.arguments) for f in functions] == [
            (c["function"]["name"], c["function"]["arguments"]) for c in calls
        ]


def test_calls_of_tools_and_back(client, model):
    model.answer = CALLING
    message = create(client, tools=[TOOL]).choices[0].message
    assert message.content is None
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": call.function.arguments}
        for call in message.tool_calls
    ]
    # As the client's object and as its dictionary.
    for said in (message, message.model_dump()):
        create(client, tools=[TOOL], messages=[USER, said, *results])
        assert model.calls[-1].messages == (
            USER,
            {"role": "assistant", "content": "", "tool_calls": [*CALLS]},
            {"role": "tool", "content": '{"to": "ö"}', "tool_call_id": "call_0"},
            {"role": "tool", "content": "{}", "tool_call_id": "call_1"},
        )


def test_tools_in_a_stream(client, model):
    model.answer = ChatAnswer("so", CALLS, "tool_calls")
    chunks = list(create(client, stream=True, tools=[TOOL]))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [d.content for d in deltas[:2]] == ["", "so"]
    calls = [d.tool_calls[0] for d in deltas if d.tool_calls]
    assert [(c.index, c.id, c.function.name, c.function.arguments) for c in calls] == [
        (0, "call_0", "go", ""),
        (0, None, None, '{"to": "ö"}'),
        (1, "call_1", "go", ""),
        (1, None, None, "{}"),
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_an_asynchronous_client(server, model):
    model.answer = lambda call: ChatAnswer(call.messages[-1]["content"].upper())

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=server.url, api_key="any") as client:

            async def one(i):
                messages = [{"role": "user", "content": f"n{i}"}]
                said = await create(client, messages=messages)
                stream = await create(client, messages=messages, stream=True)
                pieces = [c.choices[0].delta.content or "" async for c in stream]
                return said.choices[0].message.content, "".join(pieces)

            return await asyncio.gather(*(one(i) for i in range(40)))

    assert asyncio.run(ask_all()) == [(f"N{i}", f"N{i}") for i in range(40)]


def test_calls_at_once(server, client, model):
    """Eight wait for each other: none of them queues behind another."""
    meeting = threading.Barrier(8, timeout=20)

    def answer(call):
        meeting.wait()
        return ChatAnswer(call.messages[0]["content"])

    model.answer = answer

    def one(i):
        message = {"role": "user", "content": str(i)}
        return create(client, messages=[message]).choices[0].message.content

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(64))) == [str(i) for i in range(64)]


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (HTTPStatus.BAD_REQUEST, openai.BadRequestError, "invalid_request_error"),
        (HTTPStatus.TOO_MANY_REQUESTS, openai.RateLimitError, "rate_limit_error"),
        (HTTPStatus.SERVICE_UNAVAILABLE, openai.InternalServerError, "server_error"),
    ],
)
def test_refusals_reach_the_agent(server, model, status, error, kind):
    def refuse(call):
        raise CallRefused("no more; stop", status, "budget_exhausted", "messages")

    model.answer = refuse
    num_calls = len(model.calls)
    with (
        openai.OpenAI(base_url=server.url, api_key="any", max_retries=0) as client,
        pytest.raises(error) as refused,
    ):
        create(client, stream=True)
    assert refused.value.body == {
        "message": "no more; stop",
        "type": kind,
        "param": "messages",
        "code": "budget_exhausted",
    }
    assert len(model.calls) == num_calls + 1


@pytest.mark.parametrize(
    "fault", [ValueError("x"), OSError("x"), TimeoutError("x"), KeyError("x")]
)
def test_a_fault_of_the_model_is_not_repeated(client, model, caplog, fault):
    def fail(call):
        raise fault

    model.answer = fail
    num_calls = len(model.calls)
    with pytest.raises(openai.InternalServerError, match="could not be completed"):
        create(client)
    # The client repeats other errors of this status.
    assert len(model.calls) == num_calls + 1
    assert type(fault).__name__ in caplog.text


def test_an_answer_of_another_type_is_a_fault(client, model, caplog):
    model.answer = lambda call: "hello"
    with pytest.raises(openai.InternalServerError):
        create(client)
    assert "a call was completed by a str" in caplog.text


def test_texts_of_any_kind_arrive(client, model):
    text = '\n\ndata: [DONE]\n\n\x00é\u2028\U0001f600"\\ \r\nx'
    model.answer = ChatAnswer(text)
    assert create(client).choices[0].message.content == text
    pieces = [c.choices[0].delta.content or "" for c in create(client, stream=True)]
    assert "".join(pieces) == text
    create(client, messages=[{"role": "user", "content": text}])
    assert model.calls[-1].messages[0]["content"] == text


# What OpenAI's client can send and is refused whatever its value.
REFUSED = {"audio", "moderation", "reasoning_effort", "web_search_options"}
# Not parameters of a request's body.
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def test_every_parameter_of_the_client_has_a_place():
    known = set(inspect.signature(Completions.create).parameters) - OF_THE_CLIENT
    assert known - set(parameters.CHAT) == REFUSED


@pytest.mark.parametrize(
    "given",
    [
        {"n": 1, "user": "a", "metadata": {"a": "b"}, "store": False},
        {"service_tier": "auto", "safety_identifier": "x", "prompt_cache_key": "y"},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}},
        {"parallel_tool_calls": True, "tool_choice": "auto", "top_logprobs": 0},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"max_tokens": 3, "max_completion_tokens": 3, "functions": []},
        {"temperature": 0, "top_p": 1, "seed": 0, "verbosity": "medium"},
        {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
        {"stream_options": {"include_obfuscation": False, "include_usage": None}},
        dict.fromkeys((*parameters.CHAT.keys() - {"messages"}, "unheard_of"), None),
    ],
)
def test_what_changes_nothing_is_accepted(server, model, given):
    model.answer = ChatAnswer("hello")
    status, said = complete(server, **given)
    assert status == 200, said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("n", 2, "`n` is 2, which is not supported here; use 1, or leave it out"),
        ("n", True, "`n` is true"),
        ("response_format", {"type": "json_object"}, 'use {"type": "text"}'),
        ("logit_bias", {"5": 1}, "use {}"),
        ("audio", {"voice": "x"}, "`audio` is not supported here; leave it out"),
        ("functions", [{"name": "go"}], "use []"),
        ("function_call", {"name": "go"}, 'use "auto" or "none"'),
        ("top_logprobs", 1, "use 0"),
        ("tool_choice", "required", 'use "auto" or "none"'),
        ("tool_choice", {"type": "function"}, 'use "auto" or "none"'),
        ("parallel_tool_calls", False, "use true"),
        ("presence_penalty", 0.1, "use 0"),
        ("reasoning_effort", "low", "leave it out"),
        ("unheard_of", 0, "`unheard_of` is not supported here"),
        ("max_tokens", 0, "send an integer from 1"),
        ("max_tokens", 1.0, "send an integer from 1"),
        ("max_completion_tokens", "5", "send an integer from 1"),
        ("temperature", 2.1, "send a number from 0 to 2"),
        ("temperature", "hot", "send a number from 0 to 2"),
        ("temperature", True, "send a number from 0 to 2"),
        ("top_p", 0, "send a number above 0, up to 1"),
        ("top_p", 1.1, "send a number above 0, up to 1"),
        ("seed", 2**63, "send an integer from"),
        ("seed", 1.5, "send an integer from"),
        ("stop", "", "send a text or up to 4, none empty"),
        ("stop", list("abcde"), "send a text or up to 4"),
        ("stop", [1], "send a text or up to 4"),
        ("stream", "yes", "send true or false"),
        ("logprobs", 1, "send true or false"),
        ("return_token_ids", "x", "send true or false"),
        ("stream_options", True, "send an object"),
        ("model", 3, "send a text"),
    ],
)
def test_what_would_change_the_reply_is_refused_by_name(
    server, model, name, value, said
):
    num_calls = len(model.calls)
    status, answer = complete(server, **{name: value})
    error = answer["error"]
    assert (status, error["param"], error["type"]) == (
        (400, name, "invalid_request_error")
    )
    assert said in error["message"]
    assert len(model.calls) == num_calls


def test_two_limits_that_differ_are_refused(server):
    status, said = complete(server, max_tokens=3, max_completion_tokens=4)
    assert (status, said["error"]["param"]) == (400, "max_tokens")
    status, said = complete(server, stream_options={"include_usage": 1})
    assert (status, said["error"]["param"]) == (400, "stream_options.include_usage")
    status, said = complete(server, stream_options={"x": 1})
    assert (status, said["error"]["param"]) == (400, "stream_options.x")


def test_other_models_are_not_there(server, client):
    with pytest.raises(openai.NotFoundError, match="ask for 'org/policy'") as refused:
        create(client, model="gpt-5")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    # There is only one, so that it need not be named.
    status, _, _ = ask(server, "/v1/chat/completions", {"messages": HI["messages"]})
    assert status == 200


def test_the_list_of_models(client):
    (found,) = client.models.list()
    assert (found.id, found.object) == (MODEL, "model")
    assert client.models.retrieve(MODEL) == found
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


TEXTS = st.lists(st.text(max_size=3), max_size=5)


@given(TEXTS, st.text(max_size=6))
def test_pieces_spell_the_content(texts, other):
    spelled = "".join(texts)
    for content in (spelled, other, spelled[:-1], spelled + other, other + spelled):
        pieces = split_content(content, texts)
        assert "".join(pieces) == content
        assert len(pieces) == max(1, len(texts))
    if texts:
        assert split_content(spelled, texts) == texts


def test_pieces_by_hand():
    assert split_content("a b", ["a", " b", "<end>"]) == ["a", " b", ""]
    assert split_content("a", ["a", "\n<tool", "_call>"]) == ["a", "", ""]
    assert split_content("aé", ["a", "\ufffd", "\ufffd"]) == ["a", "é", ""]
    assert split_content("abc", ["a"]) == ["abc"]


def test_streams_are_events(server, model):
    """What a client reads that knows nothing but server-sent events."""
    model.answer = SAMPLED
    with connected(server) as connection:
        body = HI | {"stream": True}
        connection.sendall(write_request("/v1/chat/completions", body))
        status, headers, page = read_answer(connection)
    assert (status, headers["content-type"]) == (
        (200, "text/event-stream; charset=utf-8")
    )
    *events, done, end = page.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    for event in events:
        assert event.startswith("data: {")
        json.loads(event.removeprefix("data: "))
