"""What every game keeps to, whatever it is about: episodes, tasks, packages."""

import sys

import pytest

from ragen_jax.host_games.adapters.gymnasium import GymnasiumGame
from ragen_jax.host_games.adapters.ragen import RagenGame
from ragen_jax.host_games.alfworld.game import Alfworld
from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.coding.game import Coding
from ragen_jax.host_games.common.bm25 import refuse_without_bm25s
from ragen_jax.host_games.lean.game import LeanGame
from ragen_jax.host_games.mathqa.game import MathQA
from ragen_jax.host_games.search.game import SearchQA
from ragen_jax.host_games.webshop.game import WebShop
from tests.host_games.adapters.games import LAKE, LINE, SUM, TAXI
from tests.host_games.episodes import PROGRAM, play, printed

# So that programs end by themselves however busy the machine is.
PATIENT = {"test_seconds": 100.0, "total_seconds": 500.0, "max_tests": 1}
# A game, its options in turn, replies before its solution, seeds, and what has to be
# printed how often at least.
WALKS = [
    (Alfworld, [{}], ("look", "?"), 30, b"terminated=True", 60),
    (Coding, [PATIENT], (), 3, b"'success': True", 6),
    (LeanGame, [{}], ("cases h1", "intro", "apply h1", "exact h2"), 12, b"Step(", 96),
    (MathQA, [{"attempts": 3}], ("?",), 20, b"Correct.", 40),
    (SearchQA, [{}], ("search[born in]", "?"), 50, b"Right.", 100),
    (
        WebShop,
        [{"pages": "short"}, {"pages": "original"}],
        ("?", "search[warm soft hat]", "click[p1]", "click[next >]"),
        50,
        b"Score: 1.00",
        200,
    ),
    (
        GymnasiumGame,
        [{"id": LAKE["id"]}, {"id": TAXI}, {"id": "Blackjack-v1"}],
        tuple("01?101"),
        10,
        b"Step(",
        100,
    ),
    (RagenGame, [LINE, SUM], ("left", "?", "3"), 30, b"Step(", 100),
]


@pytest.mark.parametrize(
    ("game", "options", "replies", "num_seeds", "words", "count"),
    [pytest.param(*WALKS[0], marks=pytest.mark.slow), *WALKS[1:]],
)
def test_episodes_are_the_same_in_every_process_and_when_begun_anew(
    game, options, replies, num_seeds, words, count
):
    """And no JAX is imported, nor another package of ours."""
    program = PROGRAM.format(
        module=game.__module__,
        name=game.__name__,
        options=options,
        replies=replies,
        splits=SPLITS,
        num_seeds=num_seeds,
    )
    assert printed(program).count(words) >= count


@pytest.mark.parametrize(
    ("make", "most_instruction", "most_text"),
    [
        (Alfworld, 250, 330),
        (SearchQA, 200, 200),
        # With pages of ten results.
        (WebShop, 300, 480),
    ],
)
def test_texts_are_short(make, most_instruction, most_text):
    game = make()
    assert len(game.instruction) < most_instruction
    assert not game.instruction.endswith("\n")
    for seed in range(100):
        shown = [game.reset(seed).text]
        shown += [step.observation.text for step in play(game, game.solution())]
        assert max(map(len, shown)) < most_text


@pytest.mark.parametrize("make", [Alfworld, LeanGame, MathQA])
def test_a_task_stands_for_a_seed_where_problems_are_as_many(make):
    game = make()
    assert game.num_tasks is None
    assert game.reset(3, task=8) == game.reset(8) == game.reset(9, task=8)
    assert game.reset(8) != game.reset(3)


@pytest.mark.parametrize("make", [Coding, SearchQA, WebShop])
def test_a_task_that_is_not_there_is_refused(make):
    game = make()
    for task in (-1, game.num_tasks):
        with pytest.raises(ValueError, match=f"use 0 to {game.num_tasks - 1}"):
            game.reset(0, task=task)
    game.close()


@pytest.mark.parametrize(
    ("make", "extra"),
    [
        (refuse_without_bm25s, "search"),
        (SearchQA, "search"),
        (WebShop, "search"),
        (lambda: MathQA(judge="math"), "math"),
    ],
)
def test_a_missing_package_is_said(monkeypatch, make, extra):
    monkeypatch.delitem(sys.modules, "bm25s", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"pip install .*\[{extra}\]"):
        make()
    # A server has its own index.
    SearchQA(retriever="http://127.0.0.1:1")
