"""The search engine that a command line asks for.

In: the name of a source. Out: an index of its passages. Needs no JAX.
"""

import pathlib

from ragen_jax.worlds.base import SPLITS
from ragen_jax.worlds.search_hotpot import load_hotpot
from ragen_jax.worlds.search_retrieval import BM25Retriever
from ragen_jax.worlds.search_world import build_world

EMBEDDED = "embedded"


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
