"""A shop of three products in the format of WebShop's files, for tests."""

import json

from ragen_jax.host_games.webshop.files import build_catalogue

# As published: a range of prices, options with pictures, a slash in a value.
LAMP = {
    "asin": "B00LAMP001",
    "name": "Oak Desk Lamp with Linen Shade",
    "category": "garden",
    "query": "Desk Lamps",
    "product_category": "Home & Kitchen › Lighting › Lamps",
    "full_description": "A quiet light for long evenings.",
    "small_description": ["Dimmable LED bulb", "Stands on any table"],
    "pricing": "$19.99$39.99",
    "customization_options": {
        "Color": [
            {"value": " Black/White ", "image": "https://example.org/1.jpg"},
            {"value": "Walnut", "image": None},
        ],
        "Size": [{"value": "12 inch"}, {"value": "18 inch"}],
        "Style": None,
    },
    "images": ["https://example.org/lamp.jpg"],
    "list_price": "",
}
# Without options or price, one bullet point as a text; with reviews, as in WebShop's
# list of processed products.
TEA = {
    "asin": "B00TEA0002",
    "name": "Mint Tea, 20 Bags",
    "category": "grocery",
    "query": "tea",
    "product_category": "Grocery › Drinks › Tea",
    "full_description": None,
    "small_description": "Caffeine free leaves",
    "pricing": "",
    "customization_options": "",
    "Rating": 4.5,
    "Reviews": [{"title": "Fresh", "score": "5.0", "body": "Every\nmorning."}],
}
RUG = {
    "asin": "B00RUG0003",
    "name": "Wool Rug",
    "category": "garden",
    "query": "rugs",
    "product_category": "Home & Kitchen › Textiles › Rugs",
    "full_description": "Keeps feet warm.",
    "small_description": [],
    "pricing": "$1,020.00",
    "customization_options": {},
}
ITEMS = [LAMP, TEA, RUG, {**LAMP, "name": "The same asin again"}, {"asin": "nan"}]
ATTRIBUTES = {
    "B00LAMP001": {
        "attributes": ["dimmable", "easy assemble"],
        "instruction": "Find me dimmable desk lamps",
        "instruction_attributes": ["dimmable"],
    },
    "B00TEA0002": {
        "attributes": ["caffeine free"],
        "instruction": "Find me caffeine free tea",
        "instruction_attributes": ["caffeine free"],
    },
    "B00RUG0003": {"attributes": ["handwoven"], "instruction": None},
    "B00GONE004": {"attributes": ["not in the catalogue"]},
}
INSTRUCTIONS = {
    "B00LAMP001": [
        {
            "asin": "B00LAMP001",
            "instruction": "i need a dimmable lamp in walnut, twelve inches high.",
            "attributes": ["dimmable"],
            "options": ["color: walnut", "size: 12 inch"],
            "instruction_attributes": ["dimmable"],
            "instruction_options": ["walnut", "12 inch"],
            "worker_id": "W1",
        },
        {
            "asin": "B00LAMP001",
            "instruction": "a lamp",
            "instruction_attributes": [],
            "instruction_options": [],
        },
    ],
    "B00RUG0003": [
        {
            "instruction": "i want a handwoven rug.",
            "instruction_attributes": ["handwoven"],
            "instruction_options": {},
        }
    ],
    "B00GONE004": [],
}


def write_files(folder, items=ITEMS, attributes=ATTRIBUTES, instructions=INSTRUCTIONS):
    """Paths of the three files, by the options of the game."""
    contents = {"data": items, "attributes": attributes, "instructions": instructions}
    paths = {}
    for option, content in contents.items():
        paths[option] = str(folder / f"{option}.json")
        (folder / f"{option}.json").write_text(json.dumps(content), encoding="utf-8")
    return paths


def product(**changes):
    item = {**LAMP, **changes}
    return build_catalogue([item], ATTRIBUTES, None, source="a test").products[
        item["asin"]
    ]


# `Step.info` of a purchase that is all right, and of any step before it.
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
