"""The shopping game: the oracle, replies, pay, seeds, and what it refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.webshop.catalogue import draw_price
from ragen_jax.host_games.webshop.game import NOT_OFFERED, WebShop
from ragen_jax.host_games.webshop.generated import generated_shop
from ragen_jax.host_games.webshop.pages import (
    CLICK,
    MAX_REPLY_CHARS,
    SEARCH,
    read_reply,
    write_search,
)
from tests.host_games.episodes import play
from tests.host_games.webshop.records import FULL, NOT_YET

# --- episodes to the letter

WISH = "Goal: warm waterproof belt, color white, size s, up to $40\n"
BUTTONS = (
    "[back to search] [< prev] [description] [features] [reviews] [attributes] "
    "[buy now]"
)
# A goal whose product is sold at a higher price, too, which comes first.
SEED = 6
GOLDEN = [
    (
        "search[warm waterproof belt]",
        "Results 1-3 of 50\n"
        "[p25] warm waterproof belt $85\n"
        "[p134] warm waterproof belt $8\n"
        "[p96] smooth waterproof belt $16\n"
        "[back to search] [next >]",
    ),
    (
        "click[p134]",
        "warm waterproof belt $8\n"
        "color: [blue] [white] [gray]\n"
        f"size: [s] [m] [xl]\n{BUTTONS}",
    ),
    (
        "click[white]",
        "warm waterproof belt $8\n"
        "color: [blue] [white]* [gray]\n"
        f"size: [s] [m] [xl]\n{BUTTONS}",
    ),
    (
        "click[s]",
        "warm waterproof belt $8\n"
        "color: [blue] [white]* [gray]\n"
        f"size: [s]* [m] [xl]\n{BUTTONS}",
    ),
]


def test_an_episode_as_it_is_read():
    game = WebShop(page_size=3)
    assert game.reset(SEED).text == f"{WISH}search[words]"
    replies = game.solution()
    *pages, last = [step.observation.text for step in play(game, replies)]
    golden = [(reply, WISH + text) for reply, text in GOLDEN]
    assert list(zip(replies, pages, strict=False)) == golden
    assert (replies[-1], last) == ("click[buy now]", "Bought for $8. Score: 1.00")


# --- replies


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("search[Red  hat]", (SEARCH, "red hat")),
        (" SEARCH [ hat\n]\t", (SEARCH, "hat")),
        ("click[Buy Now]", (CLICK, "buy now")),
        ("Click[< Prev]", (CLICK, "< prev")),
        ("click[a [b]]", (CLICK, "a [b]")),
        ("search[ñandú 東京]", (SEARCH, "ñandú 東京")),
        ("search[!]", (SEARCH, "!")),
    ],
)
def test_replies_that_are_read(reply, read):
    assert read_reply(reply) == read


UNREADABLE = [
    "",
    " ",
    "hat",
    "search",
    "search[]",
    "click[ \n]",
    "search[hat",
    "search hat]",
    "search[a] click[b]",
    "search[[a]",
    "I search[hat]",
    "search[hat].",
    "[hat]",
    "buy[hat]",
    "\x00search[hat]",
    f"search[{'x' * MAX_REPLY_CHARS}]",
]


@pytest.mark.parametrize("reply", UNREADABLE)
def test_replies_that_are_not_read(reply):
    assert read_reply(reply) is None
    game = WebShop()
    first = game.reset(0).text
    step = game.step(reply)
    assert step.info == {**NOT_YET, "valid": False}
    assert step.observation.text == f"{NOT_OFFERED}\n{first}"


def test_what_a_page_does_not_offer_changes_nothing():
    game = WebShop()
    game.reset(SEED)
    search, item, white, small, buy_now = game.solution()
    wrong = [item, buy_now, "click[search]", "click[next >]"]
    assert not any(game.step(reply).info["valid"] for reply in wrong)
    results = game.step(search).observation.text
    # The original searches from any page.
    for reply in ("search[hat]", "click[< prev]", "click[p1]", white, buy_now):
        step = game.step(reply)
        assert not step.info["valid"]
        assert step.observation.text == f"{NOT_OFFERED}\n{results}"
    replies = [item, "click[black]", "search[hat]", white, small, buy_now]
    steps = play(game, replies)
    valid = [step.info["valid"] for step in steps]
    assert valid == [True, False, False, True, True, True]
    assert steps[-1].reward == 1


def test_a_search_that_finds_nothing():
    game = WebShop()
    game.reset(0)
    for query in ("zebra", "!", "東京"):
        step = game.step(f"search[{query}]")
        assert step.info["valid"]
        assert step.observation.text.endswith("Results: none\n[back to search]")
        game.step("click[back to search]")


def test_no_more_than_fifty_are_found():
    game = WebShop()
    game.reset(0)
    assert "Results 1-10 of 50" in game.step("search[warm soft]").observation.text
    *_, last = play(game, ["click[next >]"] * 4)
    assert "Results 41-50 of 50" in last.observation.text
    assert not game.step("click[next >]").info["valid"]


FRAGMENTS = st.sampled_from(
    ["search[", "click[", "]", "[", "hat", "buy now", "< prev", "p1", "\x00", "\ud800"]
)
HOSTILE = st.text(max_size=60) | st.lists(FRAGMENTS, max_size=6).map("".join)


@settings(deadline=None)
@given(st.lists(HOSTILE, max_size=6), st.integers(0, 2**31 - 1))
def test_hostile_replies_are_steps(replies, seed):
    game = WebShop()
    game.reset(seed)
    for reply in replies:
        before = game._page
        step = game.step(reply)
        assert isinstance(step.info["valid"], bool)
        assert set(step.info) == set(FULL)
        assert step.info["valid"] or game._page is before
        assert step.reward == 0
    assert play(game, game.solution())[-1].reward == 1


@settings(deadline=None)
@given(st.text(max_size=1500))
def test_written_searches_are_read(words):
    read = read_reply(write_search(words))
    has_words = words.replace("[", " ").replace("]", " ")[:1000].split()
    assert (read is not None) == bool(has_words)


# --- pay


def buy(*clicks, pay="raw"):
    game = WebShop(pay=pay)
    game.reset(SEED)
    names = [*clicks, "buy now"]
    replies = [f"click[{name}]" for name in names]
    return play(game, ["search[warm waterproof belt]", *replies])[-1]


def test_purchases_without_options_are_worth_less():
    """Of two attributes, two options and the price."""
    for clicks, options in (
        (["p134"], 0),
        (["p134", "white"], 1),
        (["p134", "white", "m"], 1),
        (["p134", "gray", "m"], 0),
        (["p134", "s", "gray", "m", "s"], 1),
    ):
        step = buy(*clicks)
        assert step.reward == (3 + options) / 5
        assert step.terminated
        score = {"score": step.reward, "options": options / 2}
        assert step.info == {**FULL, "success": False, **score}
        assert step.observation.text == f"Bought for $8. Score: {step.reward:.2f}"


def test_pay_for_success_alone():
    step = buy("p134", pay="success")
    assert (step.reward, step.info["score"], step.info["success"]) == (0, 0.6, False)
    step = buy("p134", "white", "s", pay="success")
    assert (step.reward, step.info) == (1, FULL)


def test_too_dear_a_purchase_lacks_the_price():
    step = buy("p25", "white", "s")
    assert step.info == {**FULL, "success": False, "score": 0.8, "price": 0.0}


def test_another_kind_of_product_is_worth_nothing():
    step = buy("p53")
    assert step.info["kind"] == step.reward == 0
    assert step.info["attributes"] == step.info["price"] == 1


# --- tasks, seeds and pages of results


def test_seeds_go_through_all_goals():
    game = WebShop("validation")
    goals = {(game.reset(seed), game._goal.id)[1] for seed in range(game.num_tasks)}
    assert len(goals) == game.num_tasks
    game.reset(game.num_tasks + 5)
    again = game._goal
    game.reset(0, task=5)
    assert game._goal == again


def test_the_seed_draws_prices_and_limits():
    game = WebShop()
    shown = {game.reset(seed, task=0).text for seed in range(50)}
    assert len(shown) >= 3
    assert len({game.reset(9, task=0).text for _ in range(3)}) == 1
    products = generated_shop().products.values()
    ranged = [product for product in products if len(set(product.price_cents)) == 2]
    assert len(ranged) > 40
    assert len({draw_price(ranged[0], seed) for seed in range(50)}) > 40


def test_the_page_size_is_that_of_results():
    for size in (1, 3, 50):
        game = WebShop(page_size=size)
        game.reset(0)
        text = game.step("search[warm soft]").observation.text
        assert f"Results 1-{size} of 50" in text
        assert text.count("$") == size + 1
        for task in range(game.num_tasks):
            game.reset(0, task)
            assert len(game.solution()) <= game.longest_solution
