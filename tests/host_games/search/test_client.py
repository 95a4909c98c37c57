"""The client of retrieval servers, against stubs that answer as the published ones.

Each stub is written from the published source that `search.client` names, with its own
refusals, so that the client is not only tested against our own server.
"""

import pytest

from ragen_jax.host_games.common.bm25 import Passage
from ragen_jax.host_games.search.client import (
    DIALECTS,
    MAX_ANSWER_BYTES,
    RETRIEVE_QUERIES,
    RETRIEVE_QUERY,
    HttpRetriever,
    RetrievalError,
    read_answer,
)
from ragen_jax.host_games.search.game import SearchQA
from tests.host_games.stub_server import answering

CORPUS = ['"Ann Lee"\nAnn Lee is a singer.', '"Bray"\nBray is a town.', '"Cy"\nCy.']


def answer_as_ragen(path, headers, request):
    """A Flask server; `k` defaults to 10, ids are ranks, 400 without a query."""
    if "query" not in request:
        return 400, {"error": "Missing 'query' in request"}
    k = request.get("top_k", request.get("k", 10))
    results = [
        {"id": f"doc_{rank}", "content": content, "score": 1 / rank}
        for rank, content in enumerate(CORPUS[:k], start=1)
    ]
    return 200, {
        "query": request["query"],
        "method": "dense",
        "results": results,
        "num_results": len(results),
    }


def documents(k):
    return [{"id": str(i), "contents": text} for i, text in enumerate(CORPUS[:k])]


def answer_as_search_r1(path, headers, request):
    """A FastAPI server: 422 without queries; scores only where they are asked for."""
    if "queries" not in request:
        missing = {"type": "missing", "loc": ["body", "queries"]}
        return 422, {"detail": [missing | {"msg": "Field required"}]}
    found = documents(request.get("topk") or 10)
    if request.get("return_scores", False):
        found = [{"document": document, "score": 0.5} for document in found]
    return 200, {"result": [found for _ in request["queries"]]}


def answer_as_rllm(path, headers, request):
    """Takes both requests; the documents of a single query are wrapped, too."""
    k = request.get("topk") or request.get("top_k") or request.get("k") or 10
    found = [{"document": document, "score": 0.5} for document in documents(k)]
    if request.get("query") is not None:
        return 200, {
            "query": request["query"],
            "method": "e5",
            "results": found,
            "num_results": len(found),
        }
    if request.get("queries") is None:
        return 200, {"error": "Missing 'query' or 'queries' in request"}
    batch = [found for _ in request["queries"]]
    return 200, {"method": "e5", "batch_size": len(batch), "result": batch}


STUBS = {
    "ragen": answer_as_ragen,
    "search_r1": answer_as_search_r1,
    "rllm": answer_as_rllm,
}


@pytest.mark.parametrize(
    ("stub", "dialect"),
    [
        ("ragen", RETRIEVE_QUERY),
        ("search_r1", RETRIEVE_QUERIES),
        ("rllm", RETRIEVE_QUERY),
        ("rllm", RETRIEVE_QUERIES),
        ("ragen", "auto"),
        ("search_r1", "auto"),
        ("rllm", "auto"),
    ],
)
def test_published_servers(stub, dialect):
    with answering(STUBS[stub]) as (url, _):
        found = HttpRetriever(url, dialect=dialect).search("singer", 2)
    assert len(found) == 2
    assert all(isinstance(passage.score, float) for passage in found)
    shown = [f"{p.title}\n{p.text}" if p.title else p.text for p in found]
    # RAGEN's `content` is shown as it is, the title of `contents` is told apart.
    assert [text.replace('"', "") for text in shown] == [
        "Ann Lee\nAnn Lee is a singer.",
        "Bray\nBray is a town.",
    ]
    assert (found[0].title is None) == (stub == "ragen")


def test_requests_are_those_of_the_dialects():
    with answering(answer_as_rllm) as (url, requests):
        HttpRetriever(url, dialect=RETRIEVE_QUERY).search("a b", 3)
        HttpRetriever(url + "/", dialect=RETRIEVE_QUERIES).search("a b", 3)
        HttpRetriever(url + "/my/search", dialect=RETRIEVE_QUERY).search("c", 1)
    assert requests == [
        ("/retrieve", {"query": "a b", "top_k": 3}),
        ("/retrieve", {"queries": ["a b"], "topk": 3, "return_scores": True}),
        ("/my/search", {"query": "c", "top_k": 1}),
    ]


def test_what_worked_is_kept():
    with answering(answer_as_search_r1) as (url, requests):
        retriever = HttpRetriever(url)
        for _ in range(3):
            assert len(retriever.search("x", 1)) == 1
    assert ["queries" in request for _, request in requests] == [
        False,
        True,
        True,
        True,
    ]


def test_more_passages_than_asked_for_are_left_out():
    def answer(*request):
        return answer_as_ragen(None, None, {"query": "x"})

    with answering(answer) as (url, _):
        assert len(HttpRetriever(url).search("x", 2)) == 2


ANSWERS = [
    ({"results": []}, []),
    ({"result": [[]]}, []),
    (
        {"results": [{"content": "no id, no score"}]},
        [Passage("1", "no id, no score")],
    ),
    # Search-R1 without scores.
    (
        {"result": [[{"id": 7, "contents": '"T"\nt', "title": "T"}]]},
        [Passage("7", "t", title="T")],
    ),
    (
        {"result": [[{"document": {"contents": "one line", "title": "T"}}]]},
        [Passage("1", "one line", title="T")],
    ),
]


@pytest.mark.parametrize(("answer", "passages"), ANSWERS)
def test_answers(answer, passages):
    assert read_answer(answer) == passages


@pytest.mark.parametrize(
    ("status", "said", "message"),
    [
        (200, b"<html>", "not JSON"),
        (200, [], "neither a list `results` nor a list `result`"),
        (200, {"error": "no"}, 'nor a list `result`, in {"error": "no"}'),
        (200, {"results": {}}, "neither a list"),
        (200, {"result": []}, "not a list with one list"),
        (200, {"result": [[], []]}, "not a list with one list"),
        (200, {"result": [{}]}, "not a list with one list"),
        (200, {"results": ["text"]}, "passage 1 is not an object"),
        (200, {"results": [{"document": "text"}]}, "the document of passage 1"),
        (200, {"results": [{"content": 3}]}, "passage 1 has no text"),
        (200, {"results": [{"content": "x", "score": 10**400}]}, "too large"),
        (200, b" " * (MAX_ANSWER_BYTES + 1), "more than 10000000 bytes"),
        (500, {"error": "no memory"}, "status 500: .*no memory"),
        (
            400,
            {"error": "bad"},
            "refuses a search .*retrieve_query: .*bad.*; retrieve_q",
        ),
        (422, b"", "refuses a search"),
    ],
)
def test_answers_that_are_none(status, said, message):
    with (
        answering(lambda *request: (status, said)) as (url, _),
        pytest.raises(RetrievalError, match=message) as raised,
    ):
        HttpRetriever(url).search("x", 3)
    assert url in str(raised.value)


def test_queries_may_have_any_characters():
    with answering(answer_as_ragen) as (url, requests):
        retriever = HttpRetriever(url)
        for query in ('"\\\n', "東京", "\ud800", "\x00"):
            retriever.search(query, 1)
    assert [request["query"] for _, request in requests] == [
        '"\\\n',
        "東京",
        "\ud800",
        "\x00",
    ]


@pytest.mark.parametrize("stub", STUBS)
@pytest.mark.parametrize("dialect", [None, *DIALECTS])
def test_a_game_on_a_server(stub, dialect):
    with answering(STUBS[stub]) as (url, requests):
        game = SearchQA(retriever=url, dialect=dialect, top_k=1)
        game.reset(0)
        speaks = {"ragen": RETRIEVE_QUERY, "search_r1": RETRIEVE_QUERIES}.get(stub)
        if dialect in (None, "auto", speaks) or speaks is None:
            text = game.step("search[Ann Lee]").observation.text
            assert text.replace('"', "").startswith("1. Ann Lee")
            assert text.endswith("is a singer.\n4 searches left.")
            # The server's ids are not those of the world: what was asked counts.
            first, second, finish = game.solution()
            game.step(first)
            assert game.solution() == (second, finish)
            for reply in (second, finish):
                step = game.step(reply)
            assert step.info["success"]
        else:
            with pytest.raises(RetrievalError, match="use another dialect"):
                game.step("search[Ann Lee]")
    assert requests
