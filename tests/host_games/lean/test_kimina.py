"""The client of Kimina servers, against recorded answers and a server of our own.

No Lean runs here: a stub answers on the loopback with what a server has once said.
"""

import json
import pathlib
import time

import pytest

from ragen_jax.host_games.lean import kimina as lean_kimina
from ragen_jax.host_games.lean.kimina import KiminaChecker, KiminaError, read_result
from tests.host_games.stub_server import answering

RECORDED = pathlib.Path(__file__).parents[3].parent / "shared/data/kimina-recorded"
needs_recorded = pytest.mark.skipif(
    not RECORDED.is_dir(),
    reason="needs recorded answers of a Kimina server, which are not part of this "
    f"repository, at {RECORDED}",
)


def recorded() -> list[tuple[str, dict]]:
    found = []
    for path in sorted((RECORDED / "input").glob("*.lean")):
        text = (RECORDED / "output" / f"{path.stem}.json").read_text()
        found.append((path.read_text(), json.loads(text)["results"][0]))
    return found


@needs_recorded
@pytest.mark.parametrize("api", ["check", "verify"])
def test_recorded_answers(api):
    """Sent are the recorded inputs, to the letter; read are the recorded answers."""
    pairs = dict(recorded())
    assert len(pairs) > 90

    def answer(path, headers, body):
        if api == "verify":
            (sent,) = body["codes"]
            assert path == "/verify"
            return 200, {
                "results": [{**pairs[sent["proof"]], "custom_id": sent["custom_id"]}]
            }
        assert path == "/api/check"
        assert body["timeout"] == 60
        (sent,) = body["snippets"]
        result = {**pairs[sent["code"]], "id": sent["id"]}
        del result["custom_id"]
        return 200, {"results": [result]}

    with answering(answer) as (url, _):
        checker = KiminaChecker(url, timeout_seconds=60, api=api)
        results = [(checker.check(code), result) for code, result in pairs.items()]
    timeouts = done = 0
    for result, expected in results:
        if expected["error"] is not None:
            timeouts += 1
            assert (result.error, result.is_timeout) == ("Lean process timed out", True)
            assert not result.is_done
            continue
        messages = expected["response"].get("messages", [])
        assert [m.text for m in result.messages] == [m["data"] for m in messages]
        assert [m.severity for m in result.messages] == [
            m["severity"] for m in messages
        ]
        assert [m.line for m in result.messages] == [m["pos"]["line"] for m in messages]
        done += result.is_done
    # All that Lean came to the end of are proofs: it warns, but there are no errors.
    assert (timeouts, done) == (4, len(pairs) - 4)


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
