"""The pay of a purchase: every branch with its value computed by hand."""

import dataclasses
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.webshop.catalogue import Goal
from ragen_jax.host_games.webshop.matching import (
    PUBLISHED_COLORS,
    faithful_rules,
    light_rules,
    token_set_ratio,
)
from ragen_jax.host_games.webshop.score import (
    Score,
    count_attributes,
    count_options,
    kind_factor,
    score_purchase,
)
from tests.host_games.webshop import oracle
from tests.host_games.webshop.packages import fake_rapidfuzz, fake_spacy
from tests.host_games.webshop.records import product

RULES = light_rules()


@pytest.fixture
def published(monkeypatch):
    """The published rules, for which every word of a title is a noun."""
    monkeypatch.setitem(sys.modules, "spacy", fake_spacy())
    monkeypatch.setitem(sys.modules, "rapidfuzz", fake_rapidfuzz())
    yield faithful_rules()
    faithful_rules.cache_clear()


# Ten nouns: the share of one is 0.1, of two 0.2, of three 0.3.
TEN = "lamp desk shade bulb cord plug switch base stand clip"
# One noun more: the share of one is below 0.1.
ELEVEN = f"{TEN} hook"


def kind(wanted_name, bought_name, *, query="other", category="a › b"):
    wanted = product(name=wanted_name, query="lamps", product_category="x › y › z")
    bought = product(name=bought_name, query=query, product_category=category)
    return kind_factor(RULES, wanted, bought)


# --- the factor for the kind of product


@pytest.mark.parametrize(
    ("title", "factor"),
    [
        (TEN, 1.0),
        ("lamp desk shade chair", 1.0),
        ("lamp desk chair", 0.5),
        ("lamp chair", 0.5),
        ("chair", 0.0),
    ],
)
def test_titles_alone(title, factor):
    assert kind(TEN, title) == factor


def test_a_share_below_a_tenth_is_hardly_the_kind():
    assert kind(ELEVEN, "lamp chair") == 0.1
    assert kind(ELEVEN, "lamp desk chair") == 0.5


@pytest.mark.parametrize(
    "same", [{"query": "lamps"}, {"category": "z › a › x"}, {"category": "x›y"}]
)
def test_the_query_or_two_categories_make_it_the_kind(same):
    assert kind(TEN, "lamp chair", **same) == 1.0
    # But not where titles share less than a tenth of the nouns, or nothing.
    assert kind(ELEVEN, "lamp chair", **same) == 0.1
    assert kind(TEN, "chair", **same) == 0.0


@pytest.mark.parametrize("category", ["x › a", "x › x › a", "", "xyz"])
def test_one_category_is_not_enough(category):
    assert kind(TEN, "lamp chair", category=category) == 0.5


def test_a_title_without_nouns_counts_as_a_fifth():
    assert kind("20 red", "chair") == 0.5
    assert kind("20 red", "chair", query="lamps") == 1.0


def test_repeated_nouns_count_once():
    """For WebShop this title shares a twelfth with itself."""
    assert kind("lamp " * 12, "lamp " * 12) == 1.0
    every_word = dataclasses.replace(RULES, nouns=str.split)
    lamps = product(name="lamp " * 12)
    assert kind_factor(every_word, lamps, lamps) == 0.1


# --- attributes


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (["dimmable"], 1),
        (["easy assemble", "dimmable"], 2),
        # Similar: one word of one is the other.
        (["assemble"], 1),
        # Similar: 2 * 8 of 17 letters, 94.
        (["dimmables"], 1),
        # Not: 2 * 5 of 15 letters, 67, and in no text.
        (["movable"], 0),
        # In the title, a feature, the description.
        (["linen shade"], 1),
        (["led bulb"], 1),
        (["long evenings"], 1),
        (["linen shades"], 0),
        (["plastic", "dimmable"], 1),
    ],
)
def test_attributes_are_counted(wanted, count):
    assert count_attributes(RULES, wanted, product()) == count


# --- options


@pytest.mark.parametrize(
    ("wanted", "chosen", "count"),
    [
        ([], {}, 0),
        ([], {"color": "red"}, 0),
        (["red"], {}, 0),
        (["red"], {"color": "red"}, 1),
        (["red", "l"], {"color": "red", "size": "l"}, 2),
        (["red", "l"], {"color": "red", "size": "xl"}, 1),
        # Similar is enough, other than for sizes.
        (["oak wood"], {"style": "oak"}, 1),
        (["12 inch"], {"size": "12"}, 0),
        (["12 inch"], {"length": "12"}, 1),
        # Colours count as such.
        (["light blue"], {"color": "blue sky"}, 1),
        (["blue"], {"color": "navy"}, 0),
        (["shredded"], {"style": "red"}, 0),
        # One chosen option is for one wish, and one wish is met once.
        (["red", "red stripes"], {"color": "red"}, 1),
        (["red"], {"color": "red", "trim": "dark red"}, 1),
        # The first wish could take both, the second one only the first.
        (["oak pine", "oak"], {"top": "oak", "legs": "pine"}, 2),
        (["oak", "oak pine"], {"top": "oak", "legs": "pine"}, 2),
    ],
)
def test_options_are_counted(wanted, chosen, count):
    assert count_options(RULES, wanted, chosen) == count


@pytest.mark.parametrize(
    ("wanted", "chosen", "count"),
    [
        ([], {"color": "red"}, 0),
        (["red", "l"], {"color": "red"}, 1),
        # Sizes are compared as all else: words of one that are all in the other.
        (["12 inch"], {"size": "12"}, 1),
        (["small"], {"size": "x small"}, 1),
        (["x small"], {"size": "large"}, 0),
        # Two kinds of walnut are one colour, and so are two that are dark.
        (["walnut veneer"], {"color": "solid walnut"}, 1),
        (["dark walnut"], {"color": "dark gray"}, 1),
        # 2 * 2 of 5 letters, 80.
        (["xl"], {"size": "xxl"}, 0),
        # One that is chosen meets every wish that it is similar to.
        (["oak pine", "oak"], {"top": "oak"}, 2),
        # A wish is met once, so that nothing pays more than what is wanted.
        (["red"], {"color": "red", "trim": "dark red"}, 1),
        # A colour may be inside a word, and the first by the alphabet counts.
        (["shredded"], {"style": "red"}, 1),
        (["white and black"], {"color": "black"}, 1),
        (["white and black"], {"color": "white"}, 0),
        # Letters of Latin-1 do not count: "caf noir" and "caf".
        (["café noir"], {"style": "caf"}, 1),
    ],
)
def test_options_are_counted_as_published(published, wanted, chosen, count):
    assert count_options(published, wanted, chosen) == count


def test_options_that_texts_mention_are_not_paid(published):
    """The lamp's title has the oak."""
    for rules in (RULES, published):
        assert count_options(rules, ["walnut"], {"color": "oak"}) == 0


# --- all together


def purchase(rules=RULES, **changes):
    """The lamp bought for $25, two attributes and two options wanted."""
    goal = Goal(
        id="g",
        asin="B00LAMP001",
        instruction="a lamp",
        attributes=("dimmable", "linen shade"),
        options=(("color", "walnut"), ("size", "12 inch")),
    )
    given = {
        "bought": product(),
        "chosen": {"color": "walnut", "size": "12 inch"},
        "price_cents": 2500,
        "limit_cents": 3000,
        **changes,
    }
    return score_purchase(rules, goal, product(), **given)


PLAIN = {"name": "Oak Desk Lamp", "full_description": "", "small_description": []}


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        ({}, 5 / 5),
        ({"price_cents": 3000}, 5 / 5),
        ({"price_cents": 3001}, 4 / 5),
        ({"price_cents": 3001, "limit_cents": None}, 5 / 5),
        ({"chosen": {"color": "walnut"}}, 4 / 5),
        ({"chosen": {}}, 3 / 5),
        ({"chosen": {}, "price_cents": 9900}, 2 / 5),
        ({"bought": product(**PLAIN)}, 4 / 5),
        ({"bought": product(name="Wool Rug")}, 0.0),
        # Nouns oak, desk, lamp, linen, shade: one of five, and nothing else.
        (
            {"bought": product(name="Floor Lamp", query="", product_category="")},
            # The title lacks the linen shade.
            0.5 * 4 / 5,
        ),
        # All of it, of the wrong kind.
        ({"bought": product(name="Rug", full_description="linen shade")}, 0.0),
    ],
)
def test_totals(changes, total):
    assert purchase(**changes).total == pytest.approx(total, abs=1e-12)


def test_a_full_score_is_exactly_one():
    for wishes in range(1, 40):
        assert Score(1.0, wishes - 1, 0, True, wishes).total == 1


@pytest.mark.parametrize("is_published", [False, True])
def test_no_purchase_is_worth_more_than_one(published, is_published):
    """Options beyond those wanted add nothing."""
    rules = published if is_published else RULES
    chosen = {"color": "walnut", "size": "12 inch", "style": "oak", "trim": "walnut"}
    score = purchase(rules, chosen=chosen)
    assert score == Score(kind=1.0, attributes=2, options=2, in_limit=True, wishes=5)
    lacking = purchase(rules, chosen=chosen, bought=product(**PLAIN))
    assert dataclasses.replace(score, attributes=1) == lacking
    assert lacking.total == 4 / 5


# --- the published rules, against an oracle

VALUES = st.lists(
    st.sampled_from(["oak", "shredded", "blue", "12", "x", "small", "café", "linen®"]),
    min_size=1,
    max_size=3,
).map(" ".join)
TITLES = st.lists(st.sampled_from(TEN.split()[:4]), max_size=12).map(" ".join)
CATEGORIES = st.sampled_from(["", "a › b", "a › b › c", "b › c", "c"])


@st.composite
def purchases(draw):
    def article():
        return dataclasses.replace(
            product(),
            name=draw(TITLES) or "Lamp",
            query=draw(st.sampled_from(["lamps", "rugs"])),
            product_category=draw(CATEGORIES),
            description=draw(VALUES),
            attributes=tuple(draw(st.lists(VALUES, max_size=2))),
        )

    goal = Goal(
        id="g",
        asin="B00LAMP001",
        instruction="a lamp",
        attributes=tuple(draw(st.lists(VALUES, min_size=1, max_size=3))),
        options=tuple((None, draw(VALUES)) for _ in range(draw(st.integers(0, 3)))),
    )
    names = st.sampled_from(["color", "size", "style"])
    chosen = draw(st.dictionaries(names, VALUES))
    return goal, article(), article(), chosen, draw(st.integers(1, 3))


@settings(deadline=None)
@given(purchases())
def test_the_published_rules_pay_what_the_oracle_pays(bought):
    goal, wanted, article, chosen, price = bought
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(sys.modules, "spacy", fake_spacy())
        monkeypatch.setitem(sys.modules, "rapidfuzz", fake_rapidfuzz())
        faithful_rules.cache_clear()
        rules = faithful_rules()
    faithful_rules.cache_clear()
    score = score_purchase(
        rules,
        goal,
        wanted,
        article,
        chosen=chosen,
        price_cents=price,
        limit_cents=2,
    )
    expected = oracle.pays(
        goal,
        wanted,
        article,
        chosen=chosen,
        price=price,
        limit=2,
        nouns=lambda title: title.lower().split(),
        ratio=token_set_ratio,
        colors=PUBLISHED_COLORS,
    )
    assert score.total == pytest.approx(expected, abs=1e-12)
    assert score.total <= 1
