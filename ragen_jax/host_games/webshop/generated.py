"""A small shop of generated products, which needs no download.

In: nothing. Out: 200 products and their goals, in the format of WebShop's files, always
the same ones.

A title is two attributes and a noun, as is what customers ask for, so that a small
model can learn to search by copying. Of 160 titles, 40 are sold twice, with all the
same but for a price above every limit that is drawn for the other: then the price on
the page decides.
"""

import functools
import itertools
from typing import Any

from ragen_jax.host_games.common.splits import stable_hash
from ragen_jax.host_games.webshop.catalogue import Catalogue
from ragen_jax.host_games.webshop.files import build_catalogue

ATTRIBUTES = (
    "soft",
    "warm",
    "strong",
    "thin",
    "smooth",
    "compact",
    "foldable",
    "washable",
    "handmade",
    "waterproof",
)
COLORS = ("red", "blue", "green", "black", "white", "yellow", "brown", "gray")
SIZES = ("s", "m", "l", "xl")
MATERIALS = ("wool", "cotton", "wood", "steel", "glass", "paper")
# Department -> its options and its nouns.
DEPARTMENTS = {
    "clothes": (
        ("color", "size"),
        ("hat", "scarf", "coat", "shirt", "glove", "belt", "boot", "vest"),
    ),
    "home": (
        ("color",),
        ("mug", "lamp", "rug", "towel", "pillow", "clock", "vase", "chair"),
    ),
    "outdoor": (("size",), ("tent", "bag", "rope", "sail")),
}
VALUES = {"color": COLORS, "size": SIZES}
TITLES_PER_NOUN, DEAR_PER_NOUN = 8, 2
# Values on offer per option.
NUM_VALUES = (2, 3)
# In dollars, lowest and highest. The highest limit for a price below 40 is 70.
CHEAP, RANGE, DEAR = (5, 25), (5, 14), (75, 95)
# One in this many cheap products has a range of prices.
RANGE_SHARE = 3


@functools.cache
def generated_shop() -> Catalogue:
    """The catalogue, once per process."""
    items, attributes = generated_records()
    return build_catalogue(items, attributes, None, source="the generated shop")


def generated_records() -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Contents of `items_shuffle.json` and `items_ins_v2.json`."""
    titles = [
        (department, noun, pair, copy)
        for department, (_, nouns) in DEPARTMENTS.items()
        for noun in nouns
        for number, pair in enumerate(_attribute_pairs(noun))
        for copy in range(2 if number < DEAR_PER_NOUN else 1)
    ]
    # Shuffled, so that neither place nor asin says what is sold, or at what price.
    titles.sort(key=lambda title: stable_hash("webshop shuffle", *map(str, title)))
    items, attributes = [], {}
    for number, (department, noun, pair, copy) in enumerate(titles, start=1):
        asin = f"P{number}"
        items.append(_item(asin, department, noun, pair, dear=copy == 1))
        attributes[asin] = {
            "attributes": list(pair),
            "instruction": f"{' '.join(pair)} {noun}",
            "instruction_attributes": list(pair),
        }
    return items, attributes


def _attribute_pairs(noun: str) -> list[tuple[str, str]]:
    pairs = list(itertools.combinations(ATTRIBUTES, 2))
    pairs.sort(key=lambda pair: stable_hash("webshop pair", noun, *pair))
    return pairs[:TITLES_PER_NOUN]


def _item(
    asin: str, department: str, noun: str, pair: tuple[str, str], *, dear: bool
) -> dict[str, Any]:
    title = f"{' '.join(pair)} {noun}"
    options, _ = DEPARTMENTS[department]
    material = MATERIALS[_draw("material", title, len(MATERIALS))]
    return {
        "asin": asin,
        "name": title,
        "category": department,
        "query": noun,
        "product_category": f"shop › {department} › {noun}",
        "full_description": f"This {noun} is {pair[0]} and {pair[1]}.",
        "small_description": [f"{pair[0]}, {pair[1]}", f"made of {material}"],
        "pricing": _pricing(asin, title, dear),
        "customization_options": {
            name: [{"value": value} for value in _values(name, title)]
            for name in options
        },
        "Rating": f"{3 + _draw('rating', asin, 20) / 10}",
        "Reviews": [{"title": f"good {noun}", "score": "4", "body": "as described"}],
    }


def _draw(what: str, of: str, below: int) -> int:
    return stable_hash(f"webshop {what}", of) % below


def _pricing(asin: str, title: str, dear: bool) -> str:
    low, high = DEAR if dear else CHEAP
    price = low + _draw("dollars", asin, high - low + 1)
    if dear or _draw("range", title, RANGE_SHARE):
        return f"${price}"
    low, high = RANGE
    return f"${price} - ${price + low + _draw('width', asin, high - low + 1)}"


def _values(name: str, title: str) -> list[str]:
    fewest, most = NUM_VALUES
    count = fewest + _draw(f"count {name}", title, most - fewest + 1)
    drawn = sorted(
        VALUES[name], key=lambda value: _draw(f"value {value}", title, 2**64)
    )
    return [value for value in VALUES[name] if value in drawn[:count]]
