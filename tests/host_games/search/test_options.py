"""What the search game is made of: options, their refusals, and HotpotQA's files."""

import itertools
import sys

import pytest

from ragen_jax.host_games.base import SPLITS, TRAINING
from ragen_jax.host_games.search.game import SearchQA
from ragen_jax.host_games.search.hotpot import split_of
from tests.host_games.search.test_game import play
from tests.host_games.search.test_hotpot import ROWS, write_json


def hotpot_of(folder, split):
    ids = (f"id{i}" for i in itertools.count())
    mine = (name for name in ids if split_of(name) == split)
    rows = [row | {"_id": name} for row, name in zip(ROWS, mine, strict=False)]
    return write_json(folder, rows)


@pytest.mark.parametrize("split", SPLITS)
def test_the_oracle_wins_hotpot(tmp_path, split):
    game = SearchQA(split, data=hotpot_of(tmp_path, split))
    assert game.num_tasks == len(ROWS)
    for task, row in enumerate(ROWS):
        assert row["question"] in game.reset(0, task).text
        *searches, last = play(game, game.solution())
        assert searches
        assert last.info["success"]
        assert last.reward == 1


def test_hotpot_passages_and_partial_pay(tmp_path):
    game = SearchQA(data=hotpot_of(tmp_path, TRAINING))
    game.reset(0, task=0)
    (found,) = play(game, ["search[Ann Lee born]"])
    assert found.observation.text.startswith(
        "1. Ann Lee: Ann Lee is a singer. She was born in Bray.\n"
    )
    (last,) = play(game, ["finish[Wicklow]"])
    # One of the words county, wicklow, ireland: 2 / (1 + 3).
    assert last.reward == last.info["f1"] == pytest.approx(0.5)
    assert last.info["success"] is False


def test_only_the_first_questions_of_hotpot(tmp_path):
    data = hotpot_of(tmp_path, TRAINING)
    game = SearchQA(data=data, max_questions=2)
    assert game.num_tasks == 2
    game.reset(0)
    assert "novel" not in game.step("search[novel]").observation.text
    game = SearchQA(data=data)
    game.reset(0)
    assert "novel" in game.step("search[novel]").observation.text


def test_without_bm25s_the_game_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "bm25s", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"ragen_jax\[search\]"):
        SearchQA(TRAINING)
    # A server has its own index.
    SearchQA(TRAINING, retriever="http://127.0.0.1:1")
