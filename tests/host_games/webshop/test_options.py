"""The shopping game: tasks, seeds, processes, and options that are refused."""

import subprocess
import sys

import pytest

from ragen_jax.host_games.webshop.catalogue import draw_price
from ragen_jax.host_games.webshop.game import WebShop
from ragen_jax.host_games.webshop.generated import generated_shop
from tests.host_games.fresh_processes import printed
from tests.host_games.webshop.records import play

# --- tasks and seeds


def test_seeds_go_through_all_goals():
    game = WebShop("validation")
    goals = {(game.reset(seed), game._goal.id)[1] for seed in range(game.num_tasks)}
    assert len(goals) == game.num_tasks
    game.reset(game.num_tasks + 5)
    again = game._goal
    game.reset(0, task=5)
    assert game._goal == again
    for task in (-1, game.num_tasks):
        with pytest.raises(ValueError, match=f"use 0 to {game.num_tasks - 1}"):
            game.reset(0, task=task)


def test_the_seed_draws_prices_and_limits():
    game = WebShop()
    shown = {game.reset(seed, task=0).text for seed in range(50)}
    assert len(shown) >= 3
    assert len({game.reset(9, task=0).text for _ in range(3)}) == 1
    products = generated_shop().products.values()
    ranged = [product for product in products if len(set(product.price_cents)) == 2]
    assert len(ranged) > 40
    assert len({draw_price(ranged[0], seed) for seed in range(50)}) > 40


def test_a_new_episode_forgets_the_last_one():
    game = WebShop()
    first = game.reset(1).text
    solution = game.solution()
    play(game, solution[:-1])
    assert game.reset(1).text == first
    assert game.solution() == solution
    play(game, solution)
    game.reset(1)
    assert play(game, solution)[-1].reward == 1


TRANSCRIPT = """
from ragen_jax.host_games.webshop.game import WebShop
for split in ("training", "validation"):
    for pages in ("short", "original"):
        game = WebShop(split, pages=pages)
        for seed in range(50):
            print(game.reset(seed))
            for reply in ("?", "search[warm soft hat]", "click[p1]", "click[next >]"):
                print(game.step(reply))
            for reply in game.solution():
                print(game.step(reply))
            assert not game.solution()
"""


def test_episodes_are_the_same_in_every_process():
    assert printed(TRANSCRIPT).count(b"Score: 1.00") == 200


def test_no_jax_is_imported():
    code = (
        "import sys; from ragen_jax.host_games.webshop.game import WebShop; "
        "g = WebShop(); g.reset(0); g.step('search[hat]'); "
        "assert 'bm25s' in sys.modules; "
        "assert not {'jax', 'flax', 'spacy', 'rapidfuzz'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- options


def test_the_page_size_is_that_of_results():
    for size in (1, 3, 50):
        game = WebShop(page_size=size)
        game.reset(0)
        text = game.step("search[warm soft]").observation.text
        assert f"Results 1-{size} of 50" in text
        assert text.count("$") == size + 1


def test_without_bm25s_the_install_line_is_given(monkeypatch):
    monkeypatch.delitem(sys.modules, "bm25s", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'ragen_jax\[search\]'"):
        WebShop()
