"""Search on a server, in either of the two dialects that the field speaks.

In: a query. Out: the passages that the server names, best first. Does not guess:
what is not an answer of one of the dialects is an error.

Both are a POST of JSON to `/retrieve`:

  retrieve_query, of RAGEN and rLLM:
    {"query": q, "top_k": k} -> {"results": [entry, ...], ...}
  retrieve_queries, of Search-R1, verl and SkyRL:
    {"queries": [q], "topk": k, "return_scores": true} -> {"result": [[entry, ...]]}

An entry is a document or, with a score, {"document": document, "score": s}. RAGEN's
documents have `content`, those of the others `contents`: the title, a line break, the
text.

Source: scripts/retrieval/server.py of RAGEN, examples/search/retrieval/server.py of
rLLM, search_r1/search/retrieval_server.py of Search-R1.
"""

import json
from collections.abc import Mapping
from typing import Any

from ragen_jax.host_games.common.bm25 import Passage
from ragen_jax.host_games.common.http import HttpError, check_url, post_json
from ragen_jax.host_games.common.options import check_number, check_one_of

AUTO = "auto"
RETRIEVE_QUERY, RETRIEVE_QUERIES = SPOKEN = ("retrieve_query", "retrieve_queries")
DIALECTS = (AUTO, *SPOKEN)

# Answers are read up to here: 100 passages of 100 kB.
MAX_ANSWER_BYTES = 10_000_000
# How servers refuse a request of the other dialect: RAGEN's with 400, FastAPI with 422.
REFUSALS = (400, 422)


class RetrievalError(RuntimeError):
    """A server did not answer a search as it should; the message says how."""


def write_request(dialect: str, query: str, k: int) -> dict[str, Any]:
    """The request for one query in a dialect of `SPOKEN`."""
    if dialect == RETRIEVE_QUERY:
        return {"query": query, "top_k": k}
    return {"queries": [query], "topk": k, "return_scores": True}


def read_answer(answer: Any) -> list[Passage]:
    """Passages of an answer, whichever dialect it is in.

    rLLM answers a request of its dialect with documents like those of the other, so
    that the form of each entry is read from the entry.

    Raises:
      ValueError: it is in neither dialect.
    """
    if isinstance(answer, Mapping) and isinstance(answer.get("results"), list):
        entries = answer["results"]
    elif isinstance(answer, Mapping) and isinstance(answer.get("result"), list):
        per_query = answer["result"]
        if len(per_query) != 1 or not isinstance(per_query[0], list):
            raise ValueError("`result` is not a list with one list of passages")
        entries = per_query[0]
    else:
        raise ValueError("it has neither a list `results` nor a list `result`")
    return [_read_entry(entry, rank) for rank, entry in enumerate(entries, start=1)]


def _read_entry(entry: Any, rank: int) -> Passage:
    if not isinstance(entry, Mapping):
        raise ValueError(f"passage {rank} is not an object")
    document = entry.get("document", entry)
    if not isinstance(document, Mapping):
        raise ValueError(f"the document of passage {rank} is not an object")
    title = document.get("title")
    if isinstance(document.get("content"), str):
        text = document["content"]
    elif isinstance(document.get("contents"), str):
        text = document["contents"]
        first, line_break, rest = text.partition("\n")
        if line_break:
            title, text = first.strip('"'), rest
    else:
        raise ValueError(f"passage {rank} has no text in `content` or `contents`")
    score = entry.get("score")
    return Passage(
        id=str(document.get("id", rank)),
        text=text,
        title=title if isinstance(title, str) else None,
        score=float(score) if isinstance(score, int | float) else None,
    )


class HttpRetriever:
    """A client of a retrieval server."""

    def __init__(self, url: str, *, dialect: str = AUTO, timeout_seconds: float = 10.0):
        """Note where the server is; nothing is sent before the first search.

        Args:
          url: of the server, `http://host:port`, or of its endpoint; `/retrieve` is
            added where there is no path.
          dialect: one of `DIALECTS`. `auto` tries one and, where the server refuses
            its form, the other, and stays with what worked.
          timeout_seconds: for the server to accept, and between two parts of its
            answer.

        Raises:
          ValueError: the URL, the dialect or the timeout cannot be used.
        """
        parts = check_url("retriever", url)
        check_one_of("dialect", dialect, DIALECTS)
        check_number("timeout_seconds", timeout_seconds, above=0)
        path = parts.path if parts.path not in ("", "/") else "/retrieve"
        self.url = parts._replace(path=path).geturl()
        self._dialects = SPOKEN if dialect == AUTO else (dialect,)
        self.timeout_seconds = timeout_seconds

    def search(self, query: str, k: int) -> list[Passage]:
        """Up to `k` passages for a query, best first.

        Raises:
          RetrievalError: the server cannot be reached, is late, refuses, or answers in
            neither dialect.
        """
        refusals = []
        for dialect in self._dialects:
            try:
                answer = post_json(
                    self.url,
                    write_request(dialect, query, k),
                    timeout_seconds=self.timeout_seconds,
                    max_bytes=MAX_ANSWER_BYTES,
                )
            except HttpError as error:
                if error.status not in REFUSALS:
                    raise RetrievalError(f"no passages: {error}") from error
                refusals.append(f"{dialect}: {error}")
                continue
            try:
                passages = read_answer(answer)
            # A score of a thousand digits is an OverflowError.
            except (ValueError, OverflowError) as error:
                excerpt = json.dumps(answer)[:200]
                raise RetrievalError(
                    f"{self.url} does not answer as a retrieval server: {error}, in "
                    f"{excerpt}; check that it speaks one of {', '.join(SPOKEN)}"
                ) from error
            self._dialects = (dialect,)
            return passages[:k]
        raise RetrievalError(
            f"{self.url} refuses a search ({'; '.join(refusals)}); "
            f"use another dialect of {', '.join(DIALECTS)} or another server"
        )
