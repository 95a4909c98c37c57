"""Our retrieval server: its engines, both dialects, and requests that are none."""

import concurrent.futures
import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.common.bm25 import BM25Retriever, Passage
from ragen_jax.host_games.common.http_server import MAX_BODY_BYTES, RequestError
from ragen_jax.host_games.search.client import DIALECTS, HttpRetriever
from ragen_jax.host_games.search.game import SearchQA
from ragen_jax.host_games.search.invented import build_world
from ragen_jax.serve.retriever import (
    DEFAULT_K,
    MAX_K,
    RetrievalServer,
    answer_request,
    build_retriever,
)
from tests.serve.serving import request, running

PASSAGES = [
    Passage("a", "Ann Lee is a singer.", title="Ann Lee"),
    Passage("b", "Bray is a town."),
    *(Passage(f"c{i}", f"is number {i}") for i in range(30)),
]
RETRIEVER = BM25Retriever(PASSAGES)


def serving(retriever):
    return running(RetrievalServer(retriever, port=0))


@pytest.fixture(scope="module")
def server():
    with serving(RETRIEVER) as server:
        yield server


def send(server, method, path, body=None, headers=None):
    status, kind, text = request(server, method, path, body, **headers or {})
    assert kind == "application/json"
    return status, json.loads(text)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_our_client_reads_it(server, dialect):
    found = HttpRetriever(server.url, dialect=dialect).search("town singer is", 3)
    assert len(found) == 3
    assert found == RETRIEVER.search("town singer is", 3)


def test_what_the_clients_of_the_field_read(server):
    """The look-ups of their published sources."""
    body = json.dumps({"query": "singer", "top_k": 2})
    _, said = send(server, "POST", "/retrieve", body)
    # RAGEN's retrieval_client.py.
    result = said.get("results", [])[0]
    assert result.get("id") == "a"
    assert result.get("content") == '"Ann Lee"\nAnn Lee is a singer.'
    assert f"{result.get('score', 0.0):.3f}" != "0.000"
    # rLLM's local_retrieval_tool.py.
    assert result.get("document", {}).get("contents").endswith("a singer.")
    assert result.get("document", {}).get("id") == "a"
    assert (said["query"], said["num_results"]) == ("singer", 1)
    # verl's search_r1_like_utils.py and SkyRL's search.py.
    request = {"queries": ["singer", "town"], "topk": 3, "return_scores": True}
    _, said = send(server, "POST", "/retrieve", json.dumps(request))
    (singer,), (town,) = said.get("result", [])
    title, text = singer["document"]["contents"].split("\n")
    assert (title, text) == ('"Ann Lee"', "Ann Lee is a singer.")
    assert town["document"]["contents"] == "Bray is a town."
    assert singer["score"] > 0
    # Without scores Search-R1's server gives bare documents.
    _, said = send(server, "POST", "/retrieve", json.dumps({"queries": ["town"]}))
    assert said == {"result": [[{"id": "b", "contents": "Bray is a town."}]]}


def test_the_number_of_passages():
    for name in ("top_k", "topk", "k"):
        assert len(answer_request(RETRIEVER, {"query": "is", name: 4})["results"]) == 4
    assert len(answer_request(RETRIEVER, {"query": "is"})["results"]) == DEFAULT_K
    (found,) = answer_request(RETRIEVER, {"queries": ["is"], "topk": None})["result"]
    assert len(found) == DEFAULT_K


def test_it_is_not_reached_from_elsewhere_by_default(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}"


def test_health(server):
    assert send(server, "GET", "/health") == (200, {"status": "healthy"})


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (None, "a JSON NoneType; send an object"),
        ([], "a JSON list"),
        ("query", "a JSON str"),
        ({}, "no `query` and no `queries`"),
        ({"query": "x", "queries": ["x"]}, "both `query` and `queries`"),
        ({"query": 3}, "`query` is 3; send a string"),
        ({"queries": "x"}, "send a list of strings"),
        ({"queries": ["x", None]}, "send a list of strings"),
        ({"queries": ["x"] * 257}, "send at most 256"),
        ({"queries": ["x"], "return_scores": "yes"}, "send a boolean"),
        ({"query": "x", "top_k": 0}, "`top_k` is 0; send an integer from 1 to 100"),
        ({"query": "x", "topk": MAX_K + 1}, "`topk` is 101"),
        ({"query": "x", "k": True}, "`k` is true"),
        ({"query": "x", "top_k": "3"}, '`top_k` is "3"'),
        ({"query": "x", "top_k": 2.0}, r"`top_k` is 2\.0"),
    ],
)
def test_requests_in_no_dialect_are_refused(server, request_, said):
    with pytest.raises(RequestError, match=said):
        answer_request(RETRIEVER, request_)
    status, answer = send(server, "POST", "/retrieve", json.dumps(request_))
    assert status == 400
    assert list(answer) == ["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"query": "x"} x']
)
def test_bodies_that_are_no_json_are_refused(server, body):
    status, answer = send(server, "POST", "/retrieve", body)
    assert (status, answer["error"]) == (
        400,
        "the body is not JSON; send an object with `query` or `queries`",
    )


def test_other_requests_are_refused(server):
    assert send(server, "GET", "/retrieve")[0] == 405
    assert send(server, "GET", "/")[0] == 404
    assert send(server, "POST", "/search", b"{}")[0] == 404
    for length in ("-1", "x", "²", ""):
        headers = {"Content-Length": length.encode()}
        assert send(server, "POST", "/retrieve", None, headers)[0] == 411


@pytest.mark.parametrize("num_bytes", [MAX_BODY_BYTES + 1, 12_000_000])
def test_large_bodies_are_refused(server, num_bytes):
    """The client has to be able to send all of it, or it never reads why."""
    status, answer = send(server, "POST", "/retrieve", b" " * num_bytes)
    assert (status, answer["error"]) == (
        413,
        f"the body has {num_bytes} bytes; send at most 1000000",
    )


def test_lengths_beyond_all_measure_are_refused(server):
    with socket.create_connection(server.server_address, timeout=10) as client:
        length = b"9" * 5_000
        client.sendall(
            b"POST /retrieve HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n"
        )
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1_000).split(b" ")[1] == b"413"


def test_a_client_that_leaves_or_stammers_harms_nobody(server):
    for said in (
        b"",
        b"POST /retrieve HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
        b"\x00\xff\r\n\r\n",
        b"POST /retrieve HTTP/1.1\r\n" + b"x: y\r\n" * 1_000 + b"\r\n",
    ):
        with socket.create_connection(server.server_address, timeout=10) as client:
            client.sendall(said)
    assert send(server, "GET", "/health")[0] == 200


def test_a_search_that_fails_is_an_error_of_the_server(caplog):
    class Broken:
        def search(self, query, k):
            raise RuntimeError("the index is gone")

    with serving(Broken()) as broken:
        body = json.dumps({"query": "x"})
        status, answer = send(broken, "POST", "/retrieve", body)
    assert (status, answer) == (500, {"error": "the search failed"})
    assert "the index is gone" in caplog.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
FIELDS = st.sampled_from(["query", "queries", "top_k", "topk", "k", "return_scores"])


@settings(deadline=None)
@given(JSON | st.dictionaries(FIELDS, JSON | st.just("town") | st.just(["town"])))
def test_any_json_is_answered_or_refused(request):
    try:
        answer = answer_request(RETRIEVER, request)
    except RequestError as error:
        answer = {"error": str(error)}
    (kind,) = {"results", "result", "error"} & set(answer)
    assert kind != "error" or answer["error"].count(" ") > 3
    json.dumps(answer)


def test_many_clients_at_once(server):
    def search(i):
        return HttpRetriever(server.url).search(f"number {i % 30}", 1)[0].id

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        found = list(pool.map(search, range(320)))
    assert found == [f"c{i % 30}" for i in range(320)]


def test_retrievers_by_name():
    found = build_retriever("embedded")
    for split in SPLITS:
        first = build_world(split).passages[0]
        assert first.id in {p.id for p in found.search(first.text, 3)}
    with pytest.raises(ValueError, match="--retriever=nothing: there is no such file"):
        build_retriever("nothing")


def test_the_oracle_wins_on_the_server():
    """The same texts as in memory, up to what a server may do."""
    with serving(BM25Retriever(build_world("validation").passages)) as server:
        remote = SearchQA("validation", retriever=server.url)
        local = SearchQA("validation")
        for seed in range(50):
            assert remote.reset(seed) == local.reset(seed)
            assert remote.solution() == local.solution()
            for reply in local.solution():
                step = remote.step(reply)
                assert step == local.step(reply)
            assert step.info["success"]
