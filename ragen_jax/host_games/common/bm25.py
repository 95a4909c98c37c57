"""Search over passages in memory, with the BM25 ranking of the package bm25s.

In: passages. Out: for a query, the passages that share a word with it, best first.
Does not know questions and answers.

Source: Lu, "BM25S" (arXiv 2407.03618), in Lucene's variant with k1 = 1.5, b = 0.75.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Protocol

import numpy as np

from ragen_jax import install_command
from ragen_jax.host_games.common.texts import compose

WORD = re.compile(r"\w+")
# Words of a query that are looked up; a reply may be a megabyte. Lucene's limit on the
# clauses of a query is 1,024.
MAX_QUERY_WORDS = 256
# Packages that bm25s imports where it finds them, for what is not used here. It even
# runs JAX at import, which would reserve the accelerator in every worker.
UNWANTED = ("jax", "numba", "scipy")


@dataclasses.dataclass(frozen=True)
class Passage:
    """A short text that a search can find.

    Attributes:
      id: names it within its collection; from a server that gives none, its rank.
      text: what it says.
      title: what it is about; None where `text` says so.
      score: how well it fits the query, higher is better; None before a search and
        from a server that does not say.
    """

    id: str
    text: str
    title: str | None = None
    score: float | None = None


class Retriever(Protocol):
    """Anything that finds passages."""

    def search(self, query: str, k: int) -> list[Passage]:
        """Up to `k` passages for a query, best first, with scores where known."""


def words(text: str) -> list[str]:
    """Runs of letters and digits, composed, in lower case; no stems, no stop words."""
    return WORD.findall(compose(text).lower())


def refuse_without_bm25s(otherwise: str = "") -> None:
    """Looks for bm25s without importing it.

    Args:
      otherwise: what else helps, to end the error with.

    Raises:
      ImportError: it is not installed; says how to install it.
    """
    if "bm25s" not in sys.modules and importlib.util.find_spec("bm25s") is None:
        raise ImportError(
            "searching texts needs the package bm25s, which is not installed; "
            f"run: {install_command('search')}{otherwise}"
        )


@contextlib.contextmanager
def _hidden(names: Sequence[str]) -> Iterator[None]:
    """Make imports of packages fail, then restore what was there."""
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    # An entry of None is an ImportError by the rules of the import system.
    sys.modules.update(dict.fromkeys(names))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


def _import_bm25s() -> ModuleType:
    refuse_without_bm25s()
    if "bm25s" not in sys.modules:
        with _hidden(UNWANTED):
            importlib.import_module("bm25s")
        # It sets itself to report each index it builds to the root's handlers.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
    return sys.modules["bm25s"]


class BM25Retriever:
    """BM25 over passages in memory; the title counts as text.

    Passages that share no word with the query are not found, and equal scores are
    ordered as the passages are given, so that results are the same on every machine.
    """

    def __init__(self, passages: Sequence[Passage]):
        """Build the index: 0.03 s for 1,000 short passages.

        Args:
          passages: at least one, with different ids.

        Raises:
          ImportError: bm25s is not installed.
          ValueError: there are no passages, or two share an id.
        """
        if not passages:
            raise ValueError("there are no passages to search; give at least one")
        if len({passage.id for passage in passages}) < len(passages):
            raise ValueError("two passages share an id; give each its own")
        bm25s = _import_bm25s()
        self._passages = tuple(passages)
        # Numbered here, in order of appearance: bm25s would number a set, in an order
        # that differs per process.
        vocabulary: dict[str, int] = {}
        numbered = [
            [vocabulary.setdefault(word, len(vocabulary)) for word in words(text)]
            for text in (f"{item.title or ''} {item.text}" for item in passages)
        ]
        if not vocabulary:
            raise ValueError("no passage has a word; give at least one that has")
        self._index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        self._index.index((numbered, vocabulary), show_progress=False)
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, query: str, k: int) -> list[Passage]:
        """Up to `k` passages that share a word with the query, best first."""
        known = [
            self._vocabulary[word]
            for word in words(query)[:MAX_QUERY_WORDS]
            if word in self._vocabulary
        ]
        if not known:
            return []
        scores = self._index.get_scores_from_ids(known)
        # Not the selection of bm25s, which orders equal scores as the processor likes.
        best = np.argsort(-scores, kind="stable")[:k]
        return [
            dataclasses.replace(self._passages[i], score=float(scores[i]))
            for i in best
            if scores[i] > 0
        ]
