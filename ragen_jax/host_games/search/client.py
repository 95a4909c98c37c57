"""Search on a server, in either of the two dialects that the field speaks.

In: a query. Out: the passages that the server names, best first. Refuses to guess:
what is no answer of one of the dialects is an error that says so.

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

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from ragen_jax.host_games.search.passages import Passage

AUTO = "auto"
RETRIEVE_QUERY, RETRIEVE_QUERIES = SPOKEN = ("retrieve_query", "retrieve_queries")
DIALECTS = (AUTO, *SPOKEN)

# Answers are read up to here: 100 passages of 100 kB.
MAX_ANSWER_BYTES = 10_000_000
# How servers refuse a request of the other dialect: RAGEN's with 400, FastAPI with 422.
REFUSALS = (400, 422)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class RetrievalError(RuntimeError):
    """A server did not answer a search as it should; the message says how."""


class _Refused(RetrievalError):
    """The server does not like the form of the request."""


def write_request(dialect: str, query: str, k: int) -> dict[str, Any]:
    """The request for one query in a dialect of `SPOKEN`."""
    if dialect == RETRIEVE_QUERY:
        return {"query": query, "top_k": k}
    return {"queries": [query], "topk": k, "return_scores": True}


def read_answer(answer: Any) -> list[Passage]:
    """Passages of an answer, whichever dialect it is in.

    rLLM answers a request of its own dialect with documents like those of the other, so
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


def _split_url(url: str) -> urllib.parse.SplitResult:
    """The parts of a URL that a server can have.

    Raises:
      ValueError: it can not.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        # Reading the port checks it.
        is_good = (
            parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        )
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError(
            f"the retriever's URL is {url!r}; use one like http://127.0.0.1:8000"
        )
    return parts


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
          ValueError: the URL, the dialect or the timeout is none.
        """
        parts = _split_url(url)
        if dialect not in DIALECTS:
            raise ValueError(
                f"dialect is {dialect!r}; use one of {', '.join(DIALECTS)}"
            )
        if not timeout_seconds > 0:
            raise ValueError(
                f"timeout_seconds is {timeout_seconds}; use a positive number"
            )
        path = parts.path if parts.path not in ("", "/") else "/retrieve"
        self.url = urllib.parse.urlunsplit(parts._replace(path=path))
        self._dialects = SPOKEN if dialect == AUTO else (dialect,)
        self._timeout_seconds = timeout_seconds
        # A proxy of the environment is for the world outside, not for this machine.
        proxies = {} if parts.hostname in LOOPBACK else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def search(self, query: str, k: int) -> list[Passage]:
        """Up to `k` passages for a query, best first.

        Raises:
          RetrievalError: the server cannot be reached, is late, refuses, or answers in
            neither dialect.
        """
        refusals = []
        for dialect in self._dialects:
            try:
                answer = self._post(write_request(dialect, query, k))
            except _Refused as refused:
                refusals.append(f"{dialect}: {refused}")
                continue
            try:
                passages = read_answer(answer)
            # A score of a thousand digits is an OverflowError.
            except (ValueError, OverflowError) as error:
                shown = json.dumps(answer)[:200]
                raise RetrievalError(
                    f"{self.url} does not answer as a retrieval server: {error}, in "
                    f"{shown}; check that it speaks one of {', '.join(SPOKEN)}"
                ) from error
            self._dialects = (dialect,)
            return passages[:k]
        raise RetrievalError(
            f"{self.url} refuses a search ({'; '.join(refusals)}); "
            f"use another dialect of {', '.join(DIALECTS)} or another server"
        )

    def _post(self, request: Mapping[str, Any]) -> Any:
        """Send a request and read the JSON of the answer."""
        sent = urllib.request.Request(
            self.url,
            data=json.dumps(request).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        try:
            with self._opener.open(sent, timeout=self._timeout_seconds) as response:
                body = response.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(200).decode(errors="replace")
            kind = _Refused if error.code in REFUSALS else RetrievalError
            raise kind(
                f"{self.url} answered a search with status {error.code}: {said}; "
                "see the server's log"
            ) from error
        except TimeoutError as error:
            raise RetrievalError(self._say_late()) from error
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise RetrievalError(self._say_late()) from error
            raise RetrievalError(
                f"no search at {self.url}: {getattr(error, 'reason', error)}; "
                "check that the server runs and that the URL is right"
            ) from error
        if len(body) > MAX_ANSWER_BYTES:
            raise RetrievalError(
                f"{self.url} answered a search with more than {MAX_ANSWER_BYTES} "
                "bytes; use fewer or shorter passages"
            )
        try:
            return json.loads(body)
        # Thousands of nested lists are a RecursionError.
        except (ValueError, RecursionError) as error:
            raise RetrievalError(
                f"{self.url} answered a search with what is not JSON: {body[:200]!r}; "
                "check that the URL is a retrieval server's"
            ) from error

    def _say_late(self) -> str:
        return (
            f"{self.url} did not answer a search within {self._timeout_seconds} s; "
            "raise timeout_seconds or use a faster server"
        )
