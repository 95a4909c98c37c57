"""The generated shop, and the oracle that wins each of its goals."""

import hashlib
import random

import pytest

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.webshop.game import WebShop
from ragen_jax.host_games.webshop.generated import (
    ATTRIBUTES,
    DEPARTMENTS,
    generated_records,
    generated_shop,
)
from ragen_jax.host_games.webshop.matching import likely_nouns
from ragen_jax.host_games.webshop.pages import CLICK, SEARCH
from tests.host_games.episodes import play
from tests.host_games.webshop.records import FULL, NOT_YET

# --- the generated shop


def test_the_shop_has_two_hundred_products():
    shop = generated_shop()
    assert len(shop.products) == 200
    titles = {product.name for product in shop.products.values()}
    assert len(titles) == 160
    sizes = {split: len(shop.goals[split]) for split in SPLITS}
    assert sizes == {"training": 611, "validation": 179}
    bought = [{goal.asin for goal in shop.goals[split]} for split in SPLITS]
    assert not bought[0] & bought[1]
    assert len(bought[0] | bought[1]) == 200
    training, validation = (
        {shop.products[asin].name for asin in asins} for asins in bought
    )
    assert not training & validation


def test_the_shop_is_the_same_in_every_version():
    digest = hashlib.sha256(repr(generated_records()).encode()).hexdigest()
    assert digest[:16] == "f23f24984fc42ea3"


def test_only_products_with_an_attribute_mention_it():
    for product in generated_shop().products.values():
        texts = f"{product.name} {product.description} {' '.join(product.features)}"
        mentioned = {word for word in ATTRIBUTES if word in texts}
        assert mentioned == set(product.attributes)


def test_nouns_are_what_is_sold():
    for _, nouns in DEPARTMENTS.values():
        for noun in nouns:
            assert likely_nouns(f"{' '.join(ATTRIBUTES)} {noun}") == {noun}


def test_what_is_sold_twice_differs_in_price_alone():
    """The dear one costs more than any limit for the other."""
    by_title = {}
    for product in generated_shop().products.values():
        by_title.setdefault(product.name, []).append(product)
    twice = [pair for pair in by_title.values() if len(pair) == 2]
    assert len(twice) == 40
    for pair in twice:
        cheap, dear = sorted(pair, key=lambda product: product.price_cents)
        assert cheap.options == dear.options
        assert cheap.features == dear.features
        assert cheap.price_cents[1] < 40_00
        assert dear.price_cents[0] > 70_00


# --- the oracle


@pytest.mark.parametrize("pages", ["short", "original"])
@pytest.mark.parametrize("split", SPLITS)
def test_the_oracle_wins_every_goal(split, pages):
    """And finds the product on the first page of results."""
    game = WebShop(split, pages=pages)
    assert game.is_solvable
    for task in range(game.num_tasks):
        game.reset(seed=task + 11, task=task)
        replies = game.solution()
        *before, last = play(game, replies)
        assert [reply.partition("[")[0] for reply in replies[:2]] == [SEARCH, CLICK]
        assert 3 <= len(replies) <= 5
        assert not any("next" in reply for reply in replies)
        assert all(step.reward == 0 and step.info == NOT_YET for step in before)
        assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
        assert last.info == FULL
        assert game.solution() == ()


def test_the_oracle_wins_from_wherever_a_walk_has_led():
    shopper = random.Random(3)
    game = WebShop(page_size=3)
    for seed in range(300):
        game.reset(seed)
        for _ in range(shopper.randrange(8)):
            names = [*game._layout.buttons(game._page), *game._layout.links(game._page)]
            names = [name for name in names if name != "buy now"]
            if names:
                step = game.step(f"click[{shopper.choice(names)}]")
            else:
                step = game.step(f"search[{shopper.choice(ATTRIBUTES)} hat]")
            assert step.info["valid"]
        assert play(game, game.solution())[-1].reward == 1


def test_the_first_result_is_not_always_the_right_one():
    """Else the price on the page would not have to be read."""
    game = WebShop("validation")
    scores = []
    for task in range(game.num_tasks):
        game.reset(0, task)
        search, _, *rest = game.solution()
        asins = game.step(search).observation.text.split("[")
        first = asins[1].partition("]")[0]
        *_, last = play(game, [f"click[{first}]", *rest])
        scores.append(last.reward)
    assert 0.75 < scores.count(1.0) / len(scores) < 0.95
    assert {round(score, 3) for score in scores if score < 1} <= {0.75, 0.8}
