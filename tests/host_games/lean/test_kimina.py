"""The client of Kimina servers, against a server of our own.

No Lean runs here: a stub answers on the loopback as the protocol has it.
"""

import json
import time

import pytest

from ragen_jax.host_games.lean import kimina as lean_kimina
from ragen_jax.host_games.lean.kimina import KiminaChecker, KiminaError, read_result
from tests.host_games.lean import kimina_answers
from tests.host_games.stub_server import answering

PAIRS = {**dict(kimina_answers.recorded()), **kimina_answers.WRITTEN}


@pytest.mark.parametrize("api", ["check", "verify"])
def test_answers_of_the_protocol(api):
    """Scripts are sent to the letter; messages are those of the answers."""

    def answer(path, headers, body):
        if api == "verify":
            (sent,) = body["codes"]
            assert path == "/verify"
            named = {"custom_id": sent["custom_id"]}
            return 200, {"results": [{**PAIRS[sent["proof"]], **named}]}
        assert path == "/api/check"
        assert body["timeout"] == 60
        (sent,) = body["snippets"]
        result = {**PAIRS[sent["code"]], "id": sent["id"]}
        return 200, {"results": [result]}

    with answering(answer) as (url, _):
        checker = KiminaChecker(url, timeout_seconds=60, api=api)
        results = {code: checker.check(code) for code in PAIRS}
    for code, result in results.items():
        answered = PAIRS[code]
        if answered["error"] is not None:
            assert result.error == answered["error"]
            assert result.is_timeout == ("timed out" in answered["error"])
            continue
        if "message" in answered["response"]:
            assert (result.error, result.is_timeout) == ("Unknown environment.", False)
            continue
        messages = answered["response"].get("messages", [])
        said = [
            (m["severity"], m["pos"]["line"], m["pos"]["column"], m["data"])
            for m in messages
        ]
        assert [(m.severity, m.line, m.column, m.text) for m in result.messages][
            : len(said)
        ] == said
        # A `sorry` is an error at its place.
        sorries = answered["response"].get("sorries", [])
        assert [m.severity for m in result.messages[len(said) :]] == ["error"] * len(
            sorries
        )
    proved = [code for code in kimina_answers.WRITTEN if results[code].is_done]
    assert proved == list(kimina_answers.WRITTEN)[:3]


def reply_of(*messages, **more) -> dict:
    return {"id": "a", "time": 0.1, "response": {"messages": list(messages), **more}}


def message(severity: str, text: str) -> dict:
    pos = {"line": 3, "column": 4}
    return {"severity": severity, "pos": pos, "endPos": None, "data": text}


@pytest.mark.parametrize(
    ("result", "is_done"),
    [
        ({"id": "a", "response": {"env": 0}}, True),
        (reply_of(message("warning", "unused variable `h`")), True),
        (reply_of(message("info", "Try this: ring_nf")), True),
        (reply_of(message("error", "linarith failed")), False),
        (reply_of(message("error", "unsolved goals\n⊢ p")), False),
        (reply_of(message("warning", "declaration uses 'sorry'")), False),
        (reply_of(message("warning", "declaration uses `sorry`")), False),
        (reply_of(sorries=[{"pos": {"line": 1, "column": 2}, "goal": "⊢ p"}]), False),
        (reply_of(sorries=[{"goal": "⊢ p"}]), False),
        ({"id": "a", "response": {"message": "Unknown environment."}}, False),
        ({"id": "a", "error": "Lean REPL command timed out in 3 seconds"}, False),
        ({"id": "a", "error": "Lean process broken pipe"}, False),
    ],
)
def test_what_is_a_proof(result, is_done):
    read = read_result(result)
    assert read.is_done == is_done
    assert read.is_timeout == ("timed out" in json.dumps(result))
    assert (read.error is None) == ("messages" in json.dumps(result) or is_done)


def test_a_server_that_has_not_come_to_the_script_is_an_error():
    """It fails the row; a rejected proof would be paid -1."""
    late = {"error": "Lean REPL header command timed out in 30 seconds"}
    with (
        answering(lambda path, headers, body: answer_to(body, late)) as (url, _),
        pytest.raises(KiminaError, match="did not import Mathlib in time"),
    ):
        checker_of(url).check("x")


def test_a_process_that_died_is_asked_again():
    died, left = {"error": "Lean process broken pipe"}, [1]

    def die_once(path, headers, body):
        return answer_to(body, died) if left and left.pop() else good(path, {}, body)

    with answering(die_once) as (url, requests):
        assert checker_of(url).check("x").is_done
        assert len(requests) == 2
    # A script that always kills it is no proof.
    with answering(lambda path, headers, body: answer_to(body, died)) as (url, _):
        result = checker_of(url).check("x")
    assert (result.is_done, result.error) == (False, died["error"])


def checker_of(url: str, **options) -> KiminaChecker:
    return KiminaChecker(url, **{"wait_seconds": 0.01, "tries": 3, **options})


def answer_to(body, result):
    """A server's answer to a request about one script."""
    return 200, {"results": [{**result, "id": body["snippets"][0]["id"]}]}


def good(path, headers, body):
    return answer_to(body, {"response": {"env": 0}})


def test_a_busy_server_is_asked_again_until_it_is_given_up():
    with answering(lambda *request: (429, {"detail": "so it is"})) as (url, requests):
        with pytest.raises(KiminaError, match=r"status 429: .*so it is.*REPLs"):
            checker_of(url).check("x")
        assert len(requests) == 3


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"",
        [],
        {},
        {"results": []},
        {"results": [{"id": "another", "response": {"env": 0}}]},
        {"results": [None]},
        {"results": "x"},
    ],
    ids=str,
)
def test_garbage_is_no_verdict(body):
    with (
        answering(lambda *request: (200, body)) as (url, _),
        pytest.raises(KiminaError, match="answered"),
    ):
        checker_of(url).check("x")


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"response": None},
        {"response": 3},
        {"error": 7},
        {"response": {"messages": [{}]}},
        {"response": {"messages": [{"severity": "error", "data": "", "pos": None}]}},
    ],
    ids=str,
)
def test_a_garbled_result_is_no_verdict(result):
    def answer(path, headers, body):
        return answer_to(body, result)

    with answering(answer) as (url, _), pytest.raises(KiminaError, match="protocol"):
        checker_of(url).check("x")


def test_a_silent_server_and_none_at_all(monkeypatch):
    monkeypatch.setattr(lean_kimina, "_GRACE_SECONDS", -0.8)

    def answer(*request):
        time.sleep(0.5)
        return good(*request)

    with answering(answer) as (url, requests):
        with pytest.raises(KiminaError, match="did not answer within"):
            checker_of(url, timeout_seconds=1).check("x")
        assert len(requests) == 1
    with pytest.raises(KiminaError, match="refused"):
        checker_of(url).check("x")


def test_key_and_proxies(monkeypatch):
    monkeypatch.setenv("OUR_KEY", "secret")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    seen = []

    def answer(path, headers, body):
        seen.append(headers["Authorization"])
        return good(path, headers, body)

    with answering(answer) as (url, _):
        checker_of(url, key_variable="OUR_KEY").check("x")
        checker_of(url).check("x")
    assert seen == ["Bearer secret", None]
    with pytest.raises(ValueError, match=r"NO_SUCH_KEY.*not set in the environment"):
        checker_of(url, key_variable="NO_SUCH_KEY")
