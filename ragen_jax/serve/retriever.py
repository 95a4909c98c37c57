"""A retrieval server for trainers and players on the same machine.

In: a retriever, and requests in the two dialects that `host_games.search.client`
describes. Out: passages as JSON; a request that cannot be answered gets a status of 400
or more and a sentence.

`POST /retrieve` with `query` answers in `results`, for the clients of RAGEN and of rLLM
at once; with `queries` it answers in `result`, for those of Search-R1, verl and SkyRL.
`GET /health` says that the server runs. There are no passwords and no encryption; the
default address is reached from this machine alone.
"""

import json
import logging
import pathlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.common.bm25 import BM25Retriever, Passage, Retriever
from ragen_jax.host_games.common.http_server import (
    LOCAL_HOST,
    JsonHandler,
    JsonServer,
    RequestError,
)
from ragen_jax.host_games.search.hotpot import load_hotpot
from ragen_jax.host_games.search.invented import build_world

logger = logging.getLogger(__name__)

EMBEDDED = "embedded"
DEFAULT_PORT = 8000

MAX_QUERIES = 256
MAX_K = 100
DEFAULT_K = 10
# Names of the number of passages, in the order in which they count.
COUNTS = ("top_k", "topk", "k")


def build_retriever(source: str) -> BM25Retriever:
    """A search engine over passages.

    Args:
      source: `EMBEDDED` for those of the search game's own questions, of both splits;
        otherwise a file of HotpotQA's, JSON or parquet.

    Raises:
      ValueError: there is no such file, or it is not in that form.
      ImportError: bm25s is not installed.
    """
    if source == EMBEDDED:
        return BM25Retriever(
            [p for split in SPLITS for p in build_world(split).passages]
        )
    if not pathlib.Path(source).is_file():
        raise ValueError(
            f"--retriever={source}: there is no such file; name one of HotpotQA's, or "
            f"use {EMBEDDED}"
        )
    return BM25Retriever(load_hotpot(source).passages)


def answer_request(retriever: Retriever, request: Any) -> dict[str, Any]:
    """The answer to the JSON of a request.

    Raises:
      RequestError: it is in neither dialect; status 400.
    """
    if not isinstance(request, Mapping):
        raise RequestError(
            f"the body is a JSON {type(request).__name__}; send an object with `query` "
            "or `queries`"
        )
    k = _read_count(request)
    query, queries = request.get("query"), request.get("queries")
    if query is not None and queries is not None:
        raise RequestError("both `query` and `queries` are there; send one of them")
    if query is not None:
        if not isinstance(query, str):
            raise RequestError(f"`query` is {_show(query)}; send a string")
        passages = retriever.search(query, k)
        return {
            "query": query,
            "method": type(retriever).__name__,
            "results": [_write_result(passage) for passage in passages],
            "num_results": len(passages),
        }
    if queries is None:
        raise RequestError("there is no `query` and no `queries`; send one of them")
    if not isinstance(queries, list) or not all(isinstance(q, str) for q in queries):
        raise RequestError(f"`queries` is {_show(queries)}; send a list of strings")
    if len(queries) > MAX_QUERIES:
        raise RequestError(
            f"there are {len(queries)} queries; send at most {MAX_QUERIES} at once"
        )
    # Search-R1's server leaves the scores out unless they are asked for.
    with_scores = request.get("return_scores", False)
    if not isinstance(with_scores, bool):
        raise RequestError(f"`return_scores` is {_show(with_scores)}; send a boolean")
    return {
        "result": [
            [_write_entry(passage, with_scores) for passage in retriever.search(q, k)]
            for q in queries
        ]
    }


def _show(value: Any) -> str:
    return json.dumps(value)[:80]


def _read_count(request: Mapping[str, Any]) -> int:
    for name in COUNTS:
        k = request.get(name)
        if k is None:
            continue
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_K:
            raise RequestError(
                f"`{name}` is {_show(k)}; send an integer from 1 to {MAX_K}"
            )
        return k
    return DEFAULT_K


def _write_document(passage: Passage) -> dict[str, Any]:
    """A document of Search-R1: the title in quotes and the text in `contents`."""
    if passage.title is None:
        contents = passage.text
    else:
        contents = f'"{passage.title}"\n{passage.text}'
    return {"id": passage.id, "contents": contents}


def _write_result(passage: Passage) -> dict[str, Any]:
    """An entry that has its text both where RAGEN's and where rLLM's client looks."""
    document = _write_document(passage)
    return {
        "id": passage.id,
        "content": document["contents"],
        "score": passage.score,
        "document": document,
    }


def _write_entry(passage: Passage, with_scores: bool) -> dict[str, Any]:
    document = _write_document(passage)
    return {"document": document, "score": passage.score} if with_scores else document


class _Handler(JsonHandler):
    """One connection; the server it belongs to has the retriever."""

    server: "RetrievalServer"

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(HTTPStatus.OK, {"status": "healthy"})
        elif self.path == "/retrieve":
            self.refuse(HTTPStatus.METHOD_NOT_ALLOWED, "send searches with POST")
        else:
            self._refuse_path()

    def do_POST(self) -> None:
        if self.path != "/retrieve":
            self._refuse_path()
            return
        try:
            request = self.read_json("an object with `query` or `queries`")
            answer = answer_request(self.server.retriever, request)
        except RequestError as error:
            self.refuse(error.status, str(error))
        except Exception:
            # A fault of a retriever must not end the server; the log has the traceback.
            logger.exception("A search failed")
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the search failed")
        else:
            self.answer(HTTPStatus.OK, answer)

    def _refuse_path(self) -> None:
        self.refuse(
            HTTPStatus.NOT_FOUND,
            "there is nothing here; use POST /retrieve or GET /health",
        )


class RetrievalServer(JsonServer):
    """Answers searches; see `JsonServer` for its life."""

    def __init__(
        self, retriever: Retriever, *, host: str = LOCAL_HOST, port: int = DEFAULT_PORT
    ):
        """Bind to an address.

        Args:
          retriever: finds the passages; used from several threads at once.
          host, port: see `JsonServer`.

        Raises:
          OSError: the address is taken or not ours.
        """
        self.retriever = retriever
        super().__init__(host, port, _Handler)
