"""The shopping game: the oracle, replies, pay, seeds, and what it refuses."""

import hashlib
import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.worlds.base import SPLITS
from ragen_jax.worlds.webshop import NOT_OFFERED, WebShop
from ragen_jax.worlds.webshop_catalogue import draw_price
from ragen_jax.worlds.webshop_matching import likely_nouns
from ragen_jax.worlds.webshop_products import (
    ATTRIBUTES,
    DEPARTMENTS,
    generated_records,
    generated_shop,
)
from ragen_jax.worlds.webshop_replies import (
    CLICK,
    MAX_REPLY_CHARS,
    SEARCH,
    read_reply,
    write_search,
)

FULL = {
    "success": True,
    "valid": True,
    "score": 1.0,
    "kind": 1.0,
    "attributes": 1.0,
    "options": 1.0,
    "price": 1.0,
}
NOT_YET = {**dict.fromkeys(FULL, 0.0), "success": False, "valid": True}


def play(game, replies):
    steps = [game.step(reply) for reply in replies]
    assert not any(step.terminated or step.truncated for step in steps[:-1])
    return steps


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


def test_pages_are_short():
    """Of ten results with the whole shop; words, numbers and marks."""
    game = WebShop()
    longest = 0
    for task in range(100):
        game.reset(task, task)
        for step in play(game, game.solution()):
            longest = max(longest, len(step.observation.text))
    assert longest < 480
    assert len(game.instruction) < 300


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


@settings(max_examples=200, deadline=None)
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
    """What a purchase after a search for the title pays."""
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
from ragen_jax.worlds.webshop import WebShop
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
    digests = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", TRANSCRIPT]
        done = subprocess.run(
            command, env=environment, capture_output=True, check=True
        ).stdout
        assert done.count(b"Score: 1.00") == 200
        digests.add(hashlib.sha256(done).hexdigest())
    assert len(digests) == 1


def test_no_jax_is_imported():
    code = (
        "import sys; from ragen_jax.worlds.webshop import WebShop; g = WebShop(); "
        "g.reset(0); g.step('search[hat]'); assert 'bm25s' in sys.modules; "
        "assert not {'jax', 'flax', 'spacy', 'rapidfuzz'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "test"}, "split is 'test'; use one of training, validation"),
        ({"rules": "strict"}, "rules is 'strict'; use one of light, faithful"),
        ({"rules": []}, "use one of light, faithful"),
        ({"pay": None}, "pay is None; use one of raw, success"),
        ({"pages": "html"}, "pages is 'html'; use one of short, original"),
        ({"page_size": 0}, "page_size is 0; use 1 to 50"),
        ({"page_size": 51}, "page_size is 51; use 1 to 50"),
        ({"page_size": True}, "page_size is True; use 1 to 50"),
        ({"page_size": 2.5}, "page_size is 2.5; use 1 to 50"),
        ({"attributes": "a.json"}, "attributes is 'a.json' beside generated products"),
        ({"instructions": "a.json"}, "instructions is 'a.json' beside generated"),
        ({"data": "a.json"}, "data is 'a.json' without attributes"),
        ({"data": "gone.json", "attributes": "a.json"}, "which is no file"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        WebShop(**options)


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
    with pytest.raises(ImportError, match=r"pip install 'ragen_jax\[webshop\]'"):
        WebShop()
