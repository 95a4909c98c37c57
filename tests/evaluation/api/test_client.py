"""The HTTP client against a local server: what it waits out, refuses, hides."""

import asyncio
import datetime
import email.utils
import sys
import time

import pytest

from ragen_jax.evaluation.api.client import (
    Endpoint,
    EndpointError,
    check_url,
    read_extra_body,
    retry_after_seconds,
)
from tests.evaluation.api.server import Answer, completion, serve

KEY = "sk-very/secret-0123456789"
HELLO = [{"role": "user", "content": "hello"}]
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 8},
}


def ask(url, *, key=None, conversation=0, **changes):
    """One reply, and how often it was asked again."""
    settings = {
        "key_env": "SOME_KEY",
        "body": {"model": "m", "temperature": 0.5},
        "timeout_seconds": 5.0,
        "max_retries": 3,
        "retry_seconds": 0.01,
    }

    async def run():
        async with Endpoint(url, key=key, **settings | changes) as endpoint:
            reply = await endpoint.reply(HELLO, conversation)
            return reply, endpoint.num_retries

    return asyncio.run(run())


def scripted(*answers):
    """The answers one after the other, the last one for ever."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def test_a_request_and_its_reply():
    with serve(scripted(completion("hi", usage=USAGE))) as server:
        reply, retries = ask(f"{server.url}/", key=KEY)
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.body == {"messages": HELLO, "model": "m", "temperature": 0.5}
    assert (reply.text, reply.finish_reason, reply.model) == ("hi", "stop", "scripted")
    assert (reply.prompt_tokens, reply.cached_tokens, reply.reply_tokens) == (11, 8, 3)
    assert retries == 0


def test_no_key_no_header():
    with serve(scripted(completion("hi"))) as server:
        reply, _ = ask(server.url)
    assert "Authorization" not in server.requests[0].headers
    assert reply.prompt_tokens is reply.reply_tokens is None


@pytest.mark.parametrize("charset", ["hex", "rot13", "utf-16", "nonsense", "idna"])
def test_a_reply_is_utf_8_whatever_the_header_says(charset):
    answer = completion("hé")
    answer.headers["Content-Type"] = f"application/json; charset={charset}"
    with serve(scripted(answer)) as server:
        assert ask(server.url)[0].text == "hé"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ValueError, match=r"pip install .*\[api\]"):
        ask("http://localhost/v1")


def test_keys_of_the_environment_are_not_sent(monkeypatch):
    """`key_env` names the only variable; `openai` would look for others."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, KEY)
    with serve(scripted(completion("hi"))) as server:
        ask(server.url)
    assert KEY not in str(server.requests[0].headers)


def test_no_content_is_an_empty_reply():
    with serve(scripted(completion(None, finish="content_filter"))) as server:
        reply, _ = ask(server.url)
    assert (reply.text, reply.finish_reason) == ("", "content_filter")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "C", "reasoning_content": "T"}, "<think>T</think>C"),
        ({"content": "C", "reasoning": "T"}, "<think>T</think>C"),
        ({"content": None, "reasoning_content": "T"}, "<think>T</think>"),
        ({"content": "C", "reasoning_content": None, "reasoning": ""}, "C"),
        ({"content": "C", "reasoning": {"effort": "low"}}, "C"),
        ({"content": "<think>T</think>C", "reasoning": "T"}, "<think>T</think>C"),
        ({"content": [{"type": "text", "text": "a"}, {"text": "b"}]}, "ab"),
        ({"content": [{"type": "image_url"}, {"type": "text", "text": "b"}]}, "b"),
        ({"content": []}, ""),
        ({"content": [{"type": "output_text", "text": "C"}]}, "C"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "T"}]},
                    {"type": "text", "text": "C"},
                ]
            },
            "<think>T</think>C",
        ),
        (
            {"content": [{"type": "thinking", "thinking": "T"}, {"text": "C"}]},
            "<think>T</think>C",
        ),
    ],
)
def test_a_reply_is_thought_and_content_in_any_layout(message, text):
    answer = Answer({"choices": [{"message": message, "finish_reason": "stop"}]})
    with serve(scripted(answer)) as server:
        assert ask(server.url)[0].text == text


def test_a_thought_that_was_cut_stays_open():
    message = {"content": "", "reasoning_content": "Maybe <answer>Up</answer>?"}
    answer = Answer({"choices": [{"message": message, "finish_reason": "length"}]})
    with serve(scripted(answer)) as server:
        assert ask(server.url)[0].text == "<think>Maybe <answer>Up</answer>?"


PASSING = {
    "rate limit": Answer({"error": "slow down"}, 429, {"Retry-After": "0"}),
    "server error": Answer("<html>oops</html>", 500),
    "gateway": Answer("", 503),
    "no JSON": Answer("{]"),
    "no choices": Answer({"error": {"message": "upstream failed"}}),
    "an array": Answer([1]),
    "choices of another kind": Answer({"choices": "none"}),
    "a number for a text": Answer({"choices": [{"message": {"content": 3}}]}),
    "numbers for parts": Answer({"choices": [{"message": {"content": [3]}}]}),
    "counts that are none": completion("hi", usage={"prompt_tokens": "many"}),
    "endless nesting": Answer("[" * 100_000),
    "a number too long": Answer('{"choices": ' + "9" * 5_000 + "}"),
    "a count too large": completion("hi", usage={"prompt_tokens": 10**400}),
    "a negative count": completion("hi", usage={"completion_tokens": -1}),
    "no UTF-8": Answer(b"\xff\xfe{"),
    "an unknown charset": Answer("x", 500, {"Content-Type": "text/plain; charset=no"}),
    "a charset of bytes": Answer("x", 500, {"Content-Type": "text/x; charset=hex"}),
    "a foreign compression": Answer("x", 200, {"Content-Encoding": "gzip"}),
    "a date beyond all years": Answer("", 503, {"Retry-After": f"1 Jan {10**30}"}),
    "a wait without end": Answer("", 503, {"Retry-After": "1e999"}),
}


@pytest.mark.parametrize("case", PASSING)
def test_failures_that_pass_are_waited_out(case):
    with serve(scripted(PASSING[case], PASSING[case], completion("hi"))) as server:
        reply, retries = ask(server.url)
    assert reply.text == "hi"
    assert retries == 2 == len(server.requests) - 1


def test_an_answer_that_takes_too_long_is_asked_for_again():
    answers = scripted(True, completion("hi"))

    def slow(request):
        answer = answers(request)
        if answer is True:
            time.sleep(0.5)
            return completion("too late")
        return answer

    with serve(slow) as server:
        reply, retries = ask(server.url, timeout_seconds=0.2)
    assert (reply.text, retries) == ("hi", 1)


def test_the_last_failure_is_told():
    with serve(scripted(Answer("busy as\nalways", 529))) as server:
        with pytest.raises(
            EndpointError, match=r"failed 4 times .*529, 'busy as always'"
        ):
            ask(server.url)
        assert len(server.requests) == 4


def test_nobody_there():
    with serve(scripted(completion("hi"))) as server:
        url = server.url
    with pytest.raises(EndpointError, match=r"failed 2 times .* no connection"):
        ask(url, max_retries=1)


@pytest.mark.parametrize(
    ("status", "cure"),
    [
        (400, "--api.model"),
        (401, r"\$SOME_KEY is not set"),
        (403, r"\$SOME_KEY"),
        (404, "--api.base_url"),
        (307, "--api.base_url"),
        (422, "--api.extra_body"),
    ],
)
def test_failures_that_do_not_pass_are_told_at_once(status, cure):
    elsewhere = {"Location": "http://127.0.0.1:9/"}
    with serve(scripted(Answer({"error": "no such"}, status, elsewhere))) as server:
        with pytest.raises(EndpointError, match=f"status {status}.*no such.*{cure}"):
            ask(server.url)
        assert len(server.requests) == 1


def test_waits_double_and_are_spread():
    endpoint = Endpoint(
        "http://localhost/v1",
        key=None,
        key_env="K",
        body={},
        timeout_seconds=1.0,
        max_retries=9,
        retry_seconds=1.0,
    )
    for attempt, longest in enumerate([1, 2, 4, 8, 16, 32, 60, 60]):
        waits = [endpoint.wait_seconds(attempt, c, 0.0) for c in range(64)]
        assert longest / 2 <= min(waits)
        assert max(waits) < longest
        assert len({round(wait / longest, 3) for wait in waits}) == 64
        asked = [endpoint.wait_seconds(attempt, c, 100.0) for c in range(64)]
        assert min(asked) >= 100
        assert max(asked) <= 101
    with pytest.raises(EndpointError, match="asks to wait 3600 seconds"):
        endpoint.wait_seconds(0, 0, 3600.0)


def test_the_server_says_how_long_to_wait():
    busy = Answer("", 429, {"Retry-After": "0.4"})
    with serve(scripted(busy, completion("hi"))) as server:
        began = time.monotonic()
        ask(server.url)
    assert time.monotonic() - began >= 0.4


def test_both_forms_of_retry_after():
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=30)
    assert 25 < retry_after_seconds(email.utils.format_datetime(soon)) <= 30
    assert retry_after_seconds(" 2.5 ") == 2.5
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    dates = ("Mon, 99 Foo 2015", "1 Jan 0001 00:00:00 +2359")
    for useless in (None, "soon", "-3", "nan", "inf", "", "9" * 5_000, *dates):
        assert retry_after_seconds(useless) == 0


def test_the_key_leaves_no_trace():
    """Servers that repeat it, in errors or in replies."""
    for status in (401, 500, 200):
        answer = Answer({"error": f"wrong key {KEY}!"}, status)
        wrong = pytest.raises(EndpointError, match=r"wrong key \[key\]!")
        with serve(scripted(answer)) as server, wrong as raised:
            ask(server.url, key=KEY, max_retries=0)
        assert KEY not in str(raised.value)
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__ or not raised.value.__context__
    with serve(scripted(completion(f"your key is {KEY}"))) as server:
        reply, _ = ask(server.url, key=KEY)
    assert reply.text == "your key is [key]"


def test_half_characters_can_be_written_down():
    with serve(scripted(Answer(_half_character()))) as server:
        reply, _ = ask(server.url)
    assert reply.text.encode() == b"a?b"


def _half_character() -> str:
    return (
        '{"choices": [{"message": {"content": "a\\ud800b"}, "finish_reason": "stop"}]}'
    )


@pytest.mark.parametrize("key", ["sk secret", "sk-sécret", "sk-secret\n", "\tsk"])
def test_a_key_that_http_refuses_is_not_repeated(key):
    with pytest.raises(ValueError, match=r"\$SOME_KEY contains white space") as raised:
        ask("http://localhost/v1", key=key)
    assert key.strip() not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@localhost/v1",
        "http://secret@localhost/v1",
        "http://localhost/v1?key=secret",
        "http://secret:secret/v1",
    ],
)
def test_an_address_with_a_secret_is_not_repeated(url):
    with pytest.raises(ValueError, match=r"api\.base_url") as raised:
        check_url(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "v1"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match=r"http://localhost:8000/v1"):
        check_url(url)


def test_extra_body():
    assert read_extra_body("") == {}
    assert read_extra_body('{"top_p": 0.5, "max_tokens": null}') == {
        "top_p": 0.5,
        "max_tokens": None,
    }
    for text in ("{", "[]", '{"messages": []}', '{"stream": true}'):
        with pytest.raises(ValueError, match=r"--api\.extra_body"):
            read_extra_body(text)
