"""BM25 in memory: its ranking, its order of equals, and what it leaves alone."""

import importlib.util
import logging
import math
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.common.bm25 import (
    MAX_QUERY_WORDS,
    UNWANTED,
    BM25Retriever,
    Passage,
)
from ragen_jax.host_games.search.invented import build_world

TEXTS = (
    "the cat sat on the mat",
    "the dog sat",
    "a bird sang to the cat and the dog",
    "",
    "Ünïcode straße 42",
)


def passages_of(texts):
    return [Passage(id=f"p{i}", text=text) for i, text in enumerate(texts)]


def bm25(texts, query, k1=1.5, b=0.75):
    """Scores by Lucene's formula, from the definition."""
    documents = [text.lower().split() for text in texts]
    average = sum(map(len, documents)) / len(documents)
    scores = []
    for words in documents:
        score = 0.0
        for word in query.lower().split():
            holders = sum(word in other for other in documents)
            rarity = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
            count = words.count(word)
            norm = k1 * (1 - b + b * len(words) / average)
            score += rarity * count / (count + norm) if count else 0.0
        scores.append(score)
    return scores


@pytest.mark.parametrize("query", ["cat", "sat dog", "the the bird", "straße 42 cat"])
def test_scores_are_those_of_the_formula(query):
    expected = bm25(TEXTS, query)
    found = BM25Retriever(passages_of(TEXTS)).search(query, len(TEXTS))
    assert {passage.id: passage.score for passage in found} == {
        f"p{i}": pytest.approx(score, rel=1e-5)
        for i, score in enumerate(expected)
        if score > 0
    }
    scores = [passage.score for passage in found]
    assert scores == sorted(scores, reverse=True)


def test_only_passages_that_share_a_word_are_found():
    retriever = BM25Retriever(passages_of(TEXTS))
    assert [passage.id for passage in retriever.search("CAT?", 5)] == ["p0", "p2"]
    assert retriever.search("zebra", 5) == []
    assert retriever.search("", 5) == []
    assert len(retriever.search("the", 1)) == 1
    assert len(retriever) == len(TEXTS)


def test_titles_count():
    retriever = BM25Retriever(
        [Passage(id="1", title="Ada", text="is a town"), Passage(id="2", text="x")]
    )
    (found,) = retriever.search("ada", 3)
    assert (found.id, found.title, found.text) == ("1", "Ada", "is a town")


def test_equals_keep_their_order():
    retriever = BM25Retriever(passages_of(["same words"] * 100))
    found = retriever.search("words", 40)
    assert [passage.id for passage in found] == [f"p{i}" for i in range(40)]


@pytest.mark.parametrize(
    ("passages", "said"),
    [
        ([], "no passages"),
        ([Passage("1", "x"), Passage("1", "y")], "share an id"),
        ([Passage("1", "..."), Passage("2", "")], "no passage has a word"),
    ],
)
def test_what_cannot_be_searched_is_refused(passages, said):
    with pytest.raises(ValueError, match=said):
        BM25Retriever(passages)


RETRIEVER = BM25Retriever(passages_of(TEXTS))


@settings(deadline=None)
@given(query=st.text() | st.text("thecatsdog ?!"), k=st.integers(1, 9))
def test_any_text_is_a_query(query, k):
    found = RETRIEVER.search(query, k)
    assert len(found) <= k
    assert all(passage.score > 0 for passage in found)


def test_a_query_is_cut():
    assert RETRIEVER.search("zebra " * (MAX_QUERY_WORDS - 1) + "cat", 3)
    assert not RETRIEVER.search("zebra " * MAX_QUERY_WORDS + "cat", 3)


def test_the_index_is_built_quickly():
    passages = build_world("training").passages
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        BM25Retriever(passages)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.2


SEARCH_ONCE = """
import logging, sys
logging.basicConfig(level=logging.DEBUG)
from ragen_jax.host_games.search.game import SearchQA
game = SearchQA()
game.reset(0)
assert "bm25s" not in sys.modules
game.step(game.solution()[0])
assert "bm25s" in sys.modules
print(*(name for name in ("jax", "flax", "numba", "scipy") if name in sys.modules))
"""


def test_a_search_starts_neither_jax_nor_a_log():
    """bm25s imports and runs JAX where it finds it, as it does here."""
    assert importlib.util.find_spec("jax")
    done = subprocess.run(
        [sys.executable, "-c", SEARCH_ONCE], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
    assert done.stderr == ""


def test_hidden_packages_come_back(monkeypatch):
    import jax
    import jax.numpy as jnp

    monkeypatch.delitem(sys.modules, "bm25s")
    BM25Retriever(passages_of(TEXTS))
    assert sys.modules["jax"] is jax
    assert int(jnp.arange(3).sum()) == 3
    assert all(sys.modules.get(name, ...) is not None for name in UNWANTED)
    assert logging.getLogger("bm25s").level == logging.WARNING
