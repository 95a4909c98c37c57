"""The HTTP client of games: what it sends, when it asks again, what it says."""

import threading
import time

import pytest

from ragen_jax.host_games.common.http import (
    HttpError,
    check_url,
    get_json,
    is_loopback,
    post_json,
)
from tests.host_games.stub_server import answering


def post(url, **options):
    return post_json(url, {"a": 1}, **{"timeout_seconds": 10, **options})


def test_documents_go_there_and_back(monkeypatch):
    # A proxy of the environment is not asked for this machine.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    seen = []

    def answer(path, headers, document):
        seen.append(headers["X-Key"])
        return 200, [path, document]

    with answering(answer) as (url, _):
        assert post(f"{url}/x", headers={"X-Key": "k"}) == ["/x", {"a": 1}]
        found = get_json(f"{url}/y", timeout_seconds=10, max_bytes=100)
    assert found == ["/y", None]
    assert seen == ["k", None]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>", "not JSON: b'<html>'"),
        (200, b"", "not JSON"),
        (200, b"[" * 100_000, "not JSON"),
        (200, b"\xff", "not JSON"),
        (200, b" " * 200_001, "more than 200000 bytes"),
        (500, {"error": "no memory"}, 'status 500: {"error": "no memory"}; see the'),
        (404, b"gone", "status 404: gone"),
        (422, b"", "status 422: Unprocessable"),
    ],
)
def test_answers_that_cannot_be_used(status, body, words):
    with (
        answering(lambda *request: (status, body)) as (url, requests),
        pytest.raises(HttpError) as raised,
    ):
        post(url, max_bytes=200_000)
    assert words in str(raised.value)
    assert url in str(raised.value)
    assert raised.value.status == (None if status == 200 else status)
    assert len(requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(status):
    answers = iter([(status, {})] * 2)
    with answering(lambda *request: next(answers, (200, 7))) as (url, requests):
        assert post(url, tries=3, wait_seconds=0.01) == 7
        assert len(requests) == 3


@pytest.mark.parametrize(("status", "num_requests"), [(429, 3), (401, 1), (422, 1)])
def test_a_server_is_given_up(status, num_requests):
    with answering(lambda *request: (status, {})) as (url, requests):
        with pytest.raises(HttpError, match=f"status {status}"):
            post(url, tries=3, wait_seconds=0.01)
        assert len(requests) == num_requests


def test_waits_double():
    with answering(lambda *request: (429, {})) as (url, _):
        begin = time.perf_counter()
        with pytest.raises(HttpError):
            post(url, tries=4, wait_seconds=0.05)
        assert time.perf_counter() - begin > 0.05 + 0.1 + 0.2


def test_a_late_server_is_asked_once():
    enough = threading.Event()

    def wait(*request):
        assert enough.wait(60)
        return 200, {}

    with answering(wait) as (url, requests):
        begin = time.perf_counter()
        with pytest.raises(HttpError, match=r"within 0\.1 s; raise timeout_seconds"):
            post(url, timeout_seconds=0.1, tries=3)
        assert time.perf_counter() - begin < 20
        enough.set()
        assert len(requests) == 1


def test_no_server_and_one_that_starts():
    with answering(lambda *request: (200, {})) as (url, _):
        pass
    with pytest.raises(HttpError, match="refused; check that the server runs") as left:
        post(url)
    assert left.value.may_pass


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8000", "file:///x", "http://", "http://h:99999", "http://[h"),
        *(8000, b"http://h", ["http://h"]),
    ],
)
def test_bad_addresses_are_refused(url):
    with pytest.raises(ValueError, match=r"url is .*; use one like http://127"):
        check_url("url", url)


@pytest.mark.parametrize("url", ["http://127.0.0..1:8000", "http://127.0.0.1:9/é"])
def test_an_address_that_cannot_be_asked_is_an_error(url):
    with pytest.raises(HttpError, match="no answer from"):
        post(url)


def test_this_machine():
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "::1", "127.1.2.3"]))
    assert not any(map(is_loopback, ["example.com", "10.0.0.1", "", None]))
