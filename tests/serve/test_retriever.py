"""The search engine that the command serves."""

import pytest

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.search.invented import build_world
from ragen_jax.serve.retriever import build_retriever


def test_retrievers():
    found = build_retriever("embedded")
    for split in SPLITS:
        first = build_world(split).passages[0]
        assert first.id in {p.id for p in found.search(first.text, 3)}
    with pytest.raises(ValueError, match="--retriever=nothing: there is no such file"):
        build_retriever("nothing")
