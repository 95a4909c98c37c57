"""Pages of the shop: where clicks lead, and how pages read to the letter."""

import pytest

from ragen_jax.host_games.webshop.catalogue import Goal, Review
from ragen_jax.host_games.webshop.files import build_catalogue
from ragen_jax.host_games.webshop.matching import light_rules
from ragen_jax.host_games.webshop.pages import PAGES, Layout, Page, dollars
from ragen_jax.host_games.webshop.solution import plan_purchase
from tests.host_games.webshop.records import ATTRIBUTES, ITEMS, product

LAMP, TEA, RUG = build_catalogue(
    ITEMS, ATTRIBUTES, None, source="a test"
).products.values()
GOAL = Goal("g", LAMP.asin, "a lamp", ("dimmable",), (("color", "walnut"),))


def layout(pages="short", page_size=10):
    return Layout(page_size, *PAGES[pages])


def show(page, pages="short", page_size=10, limit_cents=5000):
    shop = layout(pages, page_size)
    return shop.show(page, shop.wish(GOAL, limit_cents), lambda _: 2050)


FOUND = (LAMP, TEA, RUG)


def at(product=None, **fields):
    return Page(found=FOUND, product=product, **fields)


def sub_page(name, bought=LAMP):
    return at(bought, sub_page=name)


SEARCH_PAGE = Page()
NOTHING = Page(found=())
RESULTS, SECOND = at(), at(number=2)
ITEM = at(LAMP, chosen={"color": "walnut"})


# --- texts

GOAL_LINE = "Goal: a lamp, color walnut, up to $50\n"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (SEARCH_PAGE, "search[words]"),
        (NOTHING, "Results: none\n[back to search]"),
        (
            RESULTS,
            "Results 1-2 of 3\n"
            "[b00lamp001] Oak Desk Lamp with Linen Shade $20.50\n"
            "[b00tea0002] Mint Tea, 20 Bags $20.50\n"
            "[back to search] [next >]",
        ),
        (
            SECOND,
            "Results 3-3 of 3\n[b00rug0003] Wool Rug $20.50\n[back to search] [< prev]",
        ),
        (
            ITEM,
            "Oak Desk Lamp with Linen Shade $20.50\n"
            "color: [black | white] [walnut]*\n"
            "size: [12 inch] [18 inch]\n"
            "[back to search] [< prev] [description] [features] [reviews] [attributes] "
            "[buy now]",
        ),
        (
            sub_page("description"),
            "A quiet light for long evenings.\n[back to search] [< prev]",
        ),
        (
            sub_page("features"),
            "Dimmable LED bulb\nStands on any table\n[back to search] [< prev]",
        ),
        (sub_page("attributes"), "dimmable\neasy assemble\n[back to search] [< prev]"),
        (sub_page("reviews"), "none\n[back to search] [< prev]"),
        (
            sub_page("reviews", TEA),
            '"Fresh" 5.0 Every morning.\n[back to search] [< prev]',
        ),
        (sub_page("description", TEA), "none\n[back to search] [< prev]"),
        (sub_page("features", RUG), "none\n[back to search] [< prev]"),
    ],
)
def test_short_pages(page, text):
    assert show(page, page_size=2) == GOAL_LINE + text


ORIGINAL_GOAL = (
    "Instruction: [SEP] a lamp with color: walnut, and price lower than 50.00 dollars "
    "[SEP] "
)


@pytest.mark.parametrize(
    ("page", "text", "actions"),
    [
        (NOTHING, "Back to Search [SEP] Page 1 (Total results: 0)", "back to search"),
        (
            RESULTS,
            "Back to Search [SEP] Page 1 (Total results: 3) [SEP] Next > [SEP] "
            "B00LAMP001 [SEP] Oak Desk Lamp with Linen Shade [SEP] $19.99 to $39.99 "
            "[SEP] B00TEA0002 [SEP] Mint Tea, 20 Bags [SEP] $100.0",
            "back to search|next >|b00lamp001|b00tea0002",
        ),
        (
            SECOND,
            "Back to Search [SEP] Page 2 (Total results: 3) [SEP] < Prev [SEP] "
            "B00RUG0003 [SEP] Wool Rug [SEP] $1020.0",
            "back to search|< prev|b00rug0003",
        ),
        (
            ITEM,
            "Back to Search [SEP] < Prev [SEP] color [SEP] black | white [SEP] walnut "
            "[SEP] size [SEP] 12 inch [SEP] 18 inch [SEP] Oak Desk Lamp with Linen "
            "Shade [SEP] Price: $19.99 to $39.99 [SEP] Rating: N.A. [SEP] Description "
            "[SEP] Features [SEP] Reviews [SEP] Buy Now",
            "back to search|< prev|description|features|reviews|buy now|"
            "black / white|walnut|12 inch|18 inch",
        ),
        (
            sub_page("features"),
            "Back to Search [SEP] < Prev [SEP] Dimmable LED bulb [SEP] Stands on any "
            "table",
            "back to search|< prev",
        ),
    ],
)
def test_original_pages(page, text, actions):
    names = (name.replace("/", "|") for name in actions.split("|"))
    listed = ", ".join(f"click[{name}]" for name in names)
    assert show(page, "original", page_size=2) == (
        f"{ORIGINAL_GOAL}{text}.\nYou must choose from these actions: {listed}."
    )


def test_the_original_search_page():
    assert show(SEARCH_PAGE, "original", limit_cents=None) == (
        "WebShop [SEP] Instruction: [SEP] a lamp with color: walnut [SEP] Search.\n"
        "You must choose from these actions: search[<content>]."
    )


def test_without_a_limit_none_is_shown():
    first, _ = show(SEARCH_PAGE, limit_cents=None).split("\n")
    assert first == "Goal: a lamp, color walnut"


@pytest.mark.parametrize(
    ("cents", "text"),
    [(500, "$5"), (505, "$5.05"), (102050, "$1020.50"), (99, "$0.99")],
)
def test_dollars(cents, text):
    assert dollars(cents) == text


# --- clicks


@pytest.mark.parametrize(
    ("page", "name", "following"),
    [
        (RESULTS, "next >", SECOND),
        (SECOND, "< prev", RESULTS),
        (SECOND, "back to search", SEARCH_PAGE),
        (NOTHING, "back to search", SEARCH_PAGE),
        (RESULTS, "b00tea0002", at(TEA)),
        (SECOND, "b00rug0003", at(RUG, number=2)),
        (ITEM, "back to search", SEARCH_PAGE),
        # Leaving a product forgets the options.
        (ITEM, "< prev", RESULTS),
        (ITEM, "12 inch", at(LAMP, chosen={"color": "walnut", "size": "12 inch"})),
        (ITEM, "black | white", at(LAMP, chosen={"color": "black | white"})),
        (ITEM, "walnut", ITEM),
        (ITEM, "features", at(LAMP, sub_page="features", chosen=ITEM.chosen)),
        (sub_page("reviews"), "< prev", at(LAMP)),
        (sub_page("reviews"), "back to search", SEARCH_PAGE),
    ],
)
def test_clicks_lead_to_pages(page, name, following):
    assert layout(page_size=2).click(page, name) == following


@pytest.mark.parametrize(
    ("page", "name"),
    [
        (SEARCH_PAGE, "back to search"),
        (SEARCH_PAGE, "b00lamp001"),
        (NOTHING, "next >"),
        (RESULTS, "< prev"),
        (SECOND, "next >"),
        (RESULTS, "b00rug0003"),
        (RESULTS, "B00LAMP001"),
        (RESULTS, "buy now"),
        (RESULTS, "description"),
        (ITEM, "next >"),
        (ITEM, "b00lamp001"),
        (ITEM, "blue"),
        (ITEM, "color"),
        (sub_page("features"), "buy now"),
        (sub_page("features"), "walnut"),
        (sub_page("features"), "reviews"),
    ],
)
def test_pages_offer_nothing_else(page, name):
    assert layout(page_size=2).click(page, name) is None


def test_original_pages_have_no_attributes():
    assert layout("original").click(ITEM, "attributes") is None
    assert layout("original").click(ITEM, "features") is not None


def test_a_value_of_two_options_is_for_each_in_turn():
    values = [{"value": "oak"}, {"value": "pine"}]
    desk = product(customization_options={"top": values, "legs": values})
    page = Page(found=(desk,), product=desk)
    page = layout().click(page, "oak")
    assert page.chosen == {"top": "oak"}
    page = layout().click(page, "oak")
    assert page.chosen == {"top": "oak", "legs": "oak"}
    assert layout().click(page, "oak") == page
    assert layout().click(page, "pine").chosen == {"top": "pine", "legs": "oak"}


# --- the shopper


def plan(page, wanted=LAMP, goal=GOAL, found=FOUND, page_size=2):
    return plan_purchase(
        light_rules(), layout(page_size=page_size), goal, wanted, page, lambda _: found
    )


BUY_LAMP = ["click[walnut]", "click[buy now]"]
FIND_LAMP = ["search[Oak Desk Lamp with Linen Shade]", "click[b00lamp001]", *BUY_LAMP]


@pytest.mark.parametrize(
    ("page", "replies"),
    [
        (SEARCH_PAGE, FIND_LAMP),
        (NOTHING, ["click[back to search]", *FIND_LAMP]),
        (RESULTS, FIND_LAMP[1:]),
        (SECOND, ["click[back to search]", *FIND_LAMP]),
        (ITEM, ["click[buy now]"]),
        (sub_page("features"), ["click[< prev]", *BUY_LAMP]),
        (sub_page("features", TEA), ["click[< prev]"] * 2 + FIND_LAMP[1:]),
        (at(TEA), ["click[< prev]", *FIND_LAMP[1:]]),
        (
            at(RUG, number=2, sub_page="features"),
            ["click[back to search]", *FIND_LAMP],
        ),
        (at(LAMP, chosen={"color": "black | white"}), BUY_LAMP),
    ],
)
def test_the_shopper_goes_on_from_any_page(page, replies):
    assert plan(page) == replies


def test_the_shopper_turns_pages():
    replies = plan(SEARCH_PAGE, found=(TEA, RUG, LAMP))
    assert replies[1:3] == ["click[next >]", "click[b00lamp001]"]


def test_the_shopper_gives_up_what_cannot_be_had():
    assert plan(SEARCH_PAGE, found=(TEA,)) == []
    blue = Goal("g", LAMP.asin, "a lamp", ("dimmable",), (("color", "blue"),))
    assert plan(SEARCH_PAGE, goal=blue) == []
    hidden = product(customization_options={"color": [{"value": "Reviews"}]})
    goal = Goal("g", LAMP.asin, "a lamp", ("dimmable",), (("color", "reviews"),))
    assert plan(SEARCH_PAGE, wanted=hidden, goal=goal, found=(hidden,)) == []


def test_values_that_read_like_buttons_are_not_offered():
    values = [{"value": "Reviews"}, {"value": "Next >"}, {"value": "oak"}]
    lamp = product(customization_options={"color": values})
    page = Page(found=(lamp,), product=lamp)
    assert layout().links(page) == ["oak"]
    assert layout().click(page, "next >") is None
    assert layout().click(page, "reviews").sub_page == "reviews"


def test_the_shopper_finds_options_for_wishes_without_names():
    goal = Goal(
        "g", LAMP.asin, "", ("dimmable",), ((None, "18 inch"), (None, "walnut wood"))
    )
    clicks = ["click[18 inch]", "click[walnut]", "click[buy now]"]
    assert plan(at(LAMP), goal=goal) == clicks


def test_the_shopper_uses_an_option_for_one_wish():
    """Oak fits both wishes, bark only the second one."""
    options = {"legs": [{"value": "oak"}], "top": [{"value": "bark"}]}
    desk = product(customization_options=options)
    goal = Goal("g", LAMP.asin, "", ("dimmable",), ((None, "oak"), (None, "oak bark")))
    clicks = ["click[oak]", "click[bark]", "click[buy now]"]
    page = Page(found=(desk,), product=desk)
    assert plan(page, wanted=desk, goal=goal) == clicks


def test_reviews_are_shown_without_empty_parts():
    review = Review("Fine", "4", "")
    tea = product(Reviews=[{"title": "Fine", "score": 4}])
    assert tea.reviews == (review,)
    assert '"Fine" 4\n' in show(sub_page("reviews", tea))
