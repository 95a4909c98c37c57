"""WebShop's files: what is read, what is refused, how goals and limits are drawn."""

import collections

import pytest

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.webshop.catalogue import (
    Goal,
    Review,
    draw_limit,
    draw_price,
    split_of,
)
from ragen_jax.host_games.webshop.files import (
    build_catalogue,
    load_catalogue,
    read_price,
)
from ragen_jax.host_games.webshop.game import WebShop
from tests.host_games.webshop.records import (
    ATTRIBUTES,
    ITEMS,
    LAMP,
    TEA,
    product,
    write_files,
)


@pytest.fixture
def paths(tmp_path):
    return write_files(tmp_path)


def all_goals(catalogue):
    goals = [goal for split in SPLITS for goal in catalogue.goals[split]]
    return sorted(goals, key=lambda goal: goal.id)


# --- products


def test_products_are_read(paths):
    products = load_catalogue(paths["data"], paths["attributes"]).products
    assert list(products) == ["B00LAMP001", "B00TEA0002", "B00RUG0003"]
    lamp, tea, rug = products.values()
    assert lamp.name == "Oak Desk Lamp with Linen Shade"
    assert lamp.query == "desk lamps"
    assert lamp.attributes == ("dimmable", "easy assemble")
    assert lamp.features == ("Dimmable LED bulb", "Stands on any table")
    assert lamp.options == {
        "color": ("black | white", "walnut"),
        "size": ("12 inch", "18 inch"),
    }
    assert (lamp.rating, lamp.reviews) == ("N.A.", ())
    assert tea.description == ""
    assert tea.features == ("Caffeine free leaves",)
    assert tea.options == rug.options == {}
    assert (tea.rating, tea.reviews) == (
        "4.5",
        (Review("Fresh", "5.0", "Every morning."),),
    )
    prices = [item.price_cents for item in products.values()]
    assert prices == [(1999, 3999), (10000, 10000), (102000, 102000)]


def test_a_search_knows_title_description_first_feature_and_options():
    assert product().search_text() == (
        "Oak Desk Lamp with Linen Shade A quiet light for long evenings. "
        "Dimmable LED bulb color: black | white, walnut size: 12 inch, 18 inch"
    )


@pytest.mark.parametrize(
    ("pricing", "cents"),
    [
        (None, (10000, 10000)),
        ("", (10000, 10000)),
        ("$5", (500, 500)),
        ("$0.29", (29, 29)),
        ("$9.99 - $1,020.00", (999, 102000)),
        ("$30$20", (2000, 3000)),
        ("$1$2$3", (100, 200)),
    ],
)
def test_prices_are_read(pricing, cents):
    assert read_price(pricing) == cents


@pytest.mark.parametrize("pricing", ["free", "$", "12.99", "$-"])
def test_prices_that_cannot_be_read_are_errors(pricing):
    with pytest.raises(ValueError, match="without a number after a"):
        read_price(pricing)


def test_control_characters_do_not_reach_pages():
    lamp = product(name="A\x00 lamp\u202e\n", full_description="a\tb\x1b")
    assert (lamp.name, lamp.description) == ("A lamp", "a b")


def test_products_without_a_usable_asin_are_left_out():
    items = [
        {**LAMP, "asin": asin} for asin in ("nan", "X" * 11, "", "a b", "b1", "B1")
    ]
    shop = build_catalogue(items, {}, None, source="a test")
    assert list(shop.products) == ["B1"]


# --- goals


def test_generated_instructions_ask_for_all_options(paths):
    goals = all_goals(load_catalogue(paths["data"], paths["attributes"]))
    assert [goal.options for goal in goals] == [
        (("color", "black | white"), ("size", "12 inch")),
        (("color", "black | white"), ("size", "18 inch")),
        (("color", "walnut"), ("size", "12 inch")),
        (("color", "walnut"), ("size", "18 inch")),
        (),
    ]
    assert {goal.instruction for goal in goals[:4]} == {"Find me dimmable desk lamps"}
    assert goals[4].instruction == "Find me caffeine free tea"
    assert goals[4].attributes == ("caffeine free",)


def test_instructions_by_people_replace_generated_ones(paths):
    goals = all_goals(load_catalogue(*paths.values()))
    lamp = "i need a dimmable lamp in walnut, twelve inches high"
    assert [(goal.instruction, goal.options) for goal in goals] == [
        (lamp, ((None, "walnut"), (None, "12 inch"))),
        ("i want a handwoven rug", ()),
    ]


def test_no_product_and_no_title_is_in_both_splits():
    names = [f"Lamp {number}" for number in range(100)]
    names += [name.upper() for name in names]
    items = [
        {**TEA, "asin": f"B{number}", "name": names[number]} for number in range(200)
    ]
    records = {item["asin"]: ATTRIBUTES["B00TEA0002"] for item in items}
    shop = build_catalogue(items, records, None, source="a test")
    training, validation = (
        {shop.products[goal.asin].name.lower() for goal in shop.goals[split]}
        for split in SPLITS
    )
    assert len(training) + len(validation) == 100
    assert not training & validation
    assert 15 <= len(validation) <= 35


def test_goals_of_an_empty_split_are_an_error(paths):
    shop = load_catalogue(*paths.values())
    splits = {split_of(shop.products[goal.asin]) for goal in all_goals(shop)}
    for split in set(SPLITS) - splits:
        with pytest.raises(ValueError, match=f"falls into the {split} split"):
            shop.goals_of(split)
    assert len(splits) == 1


# --- prices and limits of a level


def test_prices_are_drawn_from_the_range_by_the_seed():
    lamp = product()
    prices = [draw_price(lamp, seed) for seed in range(2000)]
    assert min(prices) < 2010
    assert max(prices) > 3990
    assert all(1999 <= price <= 3999 for price in prices)
    assert abs(sum(prices) / len(prices) - 2999) < 50
    assert draw_price(lamp, 7) == prices[7]
    assert draw_price(product(pricing="$5"), 7) == 500


def test_limits_are_the_higher_of_two_of_the_next_four():
    goal = Goal("g", "B1", "", ("a",), ())
    limits = collections.Counter(draw_limit(goal, 1999, seed) for seed in range(3000))
    # Of the six pairs of 20, 30, 40, 50 one has 30 as its higher, two 40, three 50.
    assert set(limits) == {3000, 4000, 5000}
    for limit, pairs in ((3000, 1), (4000, 2), (5000, 3)):
        assert abs(limits[limit] / 3000 - pairs / 6) < 0.04
    # A price that is a multiple of ten is below its limit, too.
    assert min(draw_limit(goal, 2000, seed) for seed in range(99)) == 4000
    assert {draw_limit(goal, 97500, seed) for seed in range(99)} == {99000}
    assert draw_limit(goal, 98500, 0) is None
    assert draw_limit(goal, 150000, 0) is None


# --- playing


def test_goals_of_files_are_played_and_won(paths):
    shop = load_catalogue(paths["data"], paths["attributes"])
    won = 0
    for split in SPLITS:
        if not shop.goals[split]:
            continue
        options = {name: paths[name] for name in ("data", "attributes")}
        for pages in ("short", "original"):
            game = WebShop(split, pages=pages, **options)
            assert not game.is_solvable
            for task in range(game.num_tasks):
                game.reset(3, task)
                replies = game.solution()
                *_, last = [game.step(reply) for reply in replies]
                assert last.info["success"]
                assert last.reward == 1
                won += 1
    assert won == 10


def test_wishes_without_names_of_options_are_met(paths):
    split = split_of(product())
    game = WebShop(split, **paths)
    tasks = [game.reset(0, task).text for task in range(game.num_tasks)]
    (task,) = [number for number, text in enumerate(tasks) if "dimmable" in text]
    game.reset(0, task)
    assert game.solution() == [
        "search[Oak Desk Lamp with Linen Shade]",
        "click[b00lamp001]",
        "click[walnut]",
        "click[12 inch]",
        "click[buy now]",
    ]


def test_goals_that_their_product_does_not_meet_have_no_solution(tmp_path):
    record = {**ATTRIBUTES["B00TEA0002"], "instruction_attributes": ["sugar free"]}
    paths = write_files(tmp_path, attributes={"B00TEA0002": record})
    del paths["instructions"]
    game = WebShop(split_of(product(**TEA)), **paths)
    game.reset(0)
    assert game.solution() == []


# --- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "product 1 of .* its name is empty"),
        ({"name": None}, "product 1 of .* TypeError"),
        ({"pricing": "soon"}, "product 1 of .* its pricing is 'soon'"),
        ({"customization_options": {"size": ["s"]}}, "product 1 of .* TypeError"),
        ({"customization_options": ["s"]}, "product 1 of .* AttributeError"),
    ],
)
def test_products_in_another_form_are_errors(tmp_path, change, message):
    paths = write_files(tmp_path, items=[{**LAMP, **change}])
    with pytest.raises(ValueError, match=message):
        load_catalogue(paths["data"], paths["attributes"])


def test_missing_fields_are_named(tmp_path):
    items = [{key: LAMP[key] for key in LAMP if key != "query"}]
    paths = write_files(tmp_path, items=items)
    with pytest.raises(ValueError, match="KeyError: 'query'; correct or remove it"):
        load_catalogue(paths["data"], paths["attributes"])


def test_instructions_in_another_form_are_errors():
    records = {"B00TEA0002": {"instruction": "tea", "instruction_attributes": "free"}}
    with pytest.raises(
        ValueError, match=r"B00TEA0002 in attributes .* is not a list of text"
    ):
        build_catalogue(ITEMS, records, None, source="a test")
    written = {"B00TEA0002": [{"instruction": "tea"}]}
    with pytest.raises(ValueError, match=r"B00TEA0002 in instructions .* KeyError"):
        build_catalogue(ITEMS, {}, written, source="a test")


def test_a_few_odd_records_are_left_out(caplog):
    items = [{**TEA, "asin": f"B{i}", "name": f"Tea {i}"} for i in range(30)]
    odd = {**TEA, "asin": "ODD", "pricing": "soon"}
    records = {item["asin"]: ATTRIBUTES["B00TEA0002"] for item in items}
    records["B7"] = {"instruction": "tea", "instruction_attributes": "free"}
    shop = build_catalogue([*items[:3], odd, *items[3:]], records, None, source="x")
    assert len(shop.products) == 30
    assert len(all_goals(shop)) == 29
    first, second = caplog.messages
    assert first.startswith("1 of 31 products are left out: product 4 of x is of an")
    assert "1 of 30 records are left out: the record of product B7 in attr" in second


def test_files_that_cannot_be_used_are_errors(tmp_path, paths):
    with pytest.raises(ValueError, match=r"data=.* cannot be read"):
        load_catalogue(str(tmp_path / "gone.json"), paths["attributes"])
    broken = tmp_path / "broken.json"
    broken.write_text("[1,")
    with pytest.raises(ValueError, match="is not JSON"):
        load_catalogue(str(broken), paths["attributes"])
    with pytest.raises(
        ValueError, match="holds a list, but attributes has to be a dict"
    ):
        load_catalogue(paths["data"], paths["data"])
    with pytest.raises(ValueError, match=r"instructions=.* cannot be read"):
        load_catalogue(paths["data"], paths["attributes"], str(tmp_path / "gone.json"))
