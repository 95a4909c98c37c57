"""Products and goals from files in the format of WebShop.

In: paths of JSON files, or their contents. Out: a catalogue. Does not know pages and
rewards.

Three files, by their published names: `items_shuffle*.json`, a list of products (asin,
name, query, product_category, full_description, small_description, pricing,
customization_options); `items_ins_v2*.json`, asin to attributes, instruction and
instruction_attributes; `items_human_ins.json`, asin to a list of instructions by people
(instruction, instruction_attributes, instruction_options). The loader also reads
`Reviews` and `Rating` of a product, which WebShop's list of processed products has.

Source: Yao et al., "WebShop" (arXiv 2207.01206), and its repository. What differs: a
goal without attributes is left out of either kind of instructions, as is a product
whose price or another field cannot be read (`common.files.read_each`), and the splits
share no product.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.common.files import one_line, read_each, read_json
from ragen_jax.host_games.common.splits import stable_hash
from ragen_jax.host_games.webshop.catalogue import (
    Catalogue,
    Goal,
    Product,
    Review,
    split_of,
)

# WebShop's price of products without one.
UNKNOWN_PRICE_CENTS = 10_000
# Amazon's numbers of articles. WebShop leaves out longer ones, and "nan".
ASIN = re.compile(r"[A-Z0-9]{1,10}")
NO_RATING = "N.A."
NUMBER = re.compile(r"\d+(\.\d+)?")
FORM = "correct or remove it, or give a file in WebShop's format"


@functools.lru_cache(maxsize=2)
def load_catalogue(
    items: str, attributes: str, instructions: str | None = None
) -> Catalogue:
    """Reads the files, cached per process; later changes are not seen.

    Args:
      items: path of the products.
      attributes: path of the attributes and generated instructions.
      instructions: path of the instructions by people, which replace the generated
        ones; None: the generated ones are the goals.

    Raises:
      ValueError: a file is not there or not in its form, or gives no goals.
    """
    read = functools.partial(read_json, form="WebShop's file")
    return build_catalogue(
        read(items, list, option="data"),
        read(attributes, dict, option="attributes"),
        read(instructions, dict, option="instructions") if instructions else None,
        source=items,
    )


def build_catalogue(
    items: Sequence[Mapping[str, Any]],
    attributes: Mapping[str, Any],
    instructions: Mapping[str, Any] | None,
    *,
    source: str,
) -> Catalogue:
    """A catalogue from the contents of the files.

    Args:
      items: products; of those with the same asin the first is kept, and those whose
        asin is not up to ten letters and digits are left out.
      attributes: of the products, and generated instructions.
      instructions: by people; None: goals are the generated instructions with all
        combinations of the product's options.
      source: named in errors.

    Raises:
      ValueError: too many records are not in their form.
    """
    products: dict[str, Product] = {}

    def read_item(item: Mapping[str, Any]) -> None:
        asin = str(item["asin"]).upper()
        if ASIN.fullmatch(asin) and asin != "NAN" and asin not in products:
            known = attributes.get(item["asin"], {})
            products[asin] = _read_product(asin, item, known)

    read_each(items, read_item, source, form=FORM, kind="product")
    if instructions is None:
        wishes = _read_goals(products, attributes, _generated_goals, "attributes")
    else:
        wishes = _read_goals(products, instructions, _written_goals, "instructions")
    goals: dict[str, list[Goal]] = {split: [] for split in SPLITS}
    for product, wanted in wishes:
        goals[split_of(product)] += wanted
    for of_split in goals.values():
        of_split.sort(key=lambda goal: stable_hash("webshop order", goal.id))
    by_split = {split: tuple(of_split) for split, of_split in goals.items()}
    return Catalogue(products=products, goals=by_split, source=source)


def _read_goals(
    products: Mapping[str, Product],
    records: Mapping[str, Any],
    read: Callable[[Product, Any], Iterator[Goal]],
    option: str,
) -> list[tuple[Product, list[Goal]]]:
    """The goals of each record whose product there is."""
    known = [
        (product, record)
        for asin, record in records.items()
        if (product := products.get(asin.upper())) is not None
    ]
    names = [f"the record of product {x.asin} in {option}" for x, _ in known]

    def read_record(pair: tuple[Product, Any]) -> tuple[Product, list[Goal]]:
        return pair[0], list(read(*pair))

    return read_each(known, read_record, option, form=FORM, kind="record", names=names)


def _read_product(
    asin: str, item: Mapping[str, Any], known: Mapping[str, Any]
) -> Product:
    features = item["small_description"] or []
    if isinstance(features, str):
        features = [features]
    name = one_line(item["name"])
    if not name:
        raise ValueError("its name is empty")
    return Product(
        asin=asin,
        name=name,
        query=one_line(item["query"]).lower(),
        product_category=one_line(item["product_category"]),
        description=one_line(item["full_description"] or ""),
        features=tuple(one_line(feature) for feature in features if feature),
        attributes=_texts(known.get("attributes", [])),
        price_cents=read_price(item.get("pricing")),
        options=_read_options(item["customization_options"] or {}),
        rating=str(item.get("Rating", NO_RATING)),
        reviews=tuple(_read_review(review) for review in item.get("Reviews", [])),
    )


def read_price(pricing: str | None) -> tuple[int, int]:
    """Lowest and highest price in cents, from a text such as `$9.99 - $1,020.00`.

    Raises:
      ValueError: a dollar sign is not followed by a number.
    """
    if not pricing:
        return UNKNOWN_PRICE_CENTS, UNKNOWN_PRICE_CENTS
    parts = (part.replace(",", "") for part in pricing.split("$")[1:])
    numbers = [match.group() for part in parts if (match := NUMBER.search(part))]
    if not numbers:
        raise ValueError(f"its pricing is {pricing!r}, without a number after a $")
    cents = sorted(round(float(number) * 100) for number in numbers[:2])
    return cents[0], cents[-1]


def _read_options(field: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Values by name, in lower case; WebShop writes `a/b` as `a | b`."""
    options = {}
    for name, contents in field.items():
        values = _texts([item["value"].replace("/", " | ") for item in contents or ()])
        if values:
            options[one_line(name).lower()] = values
    return options


def _read_review(field: Mapping[str, Any]) -> Review:
    texts = (one_line(str(field.get(part, ""))) for part in ("title", "score", "body"))
    return Review(*texts)


def _texts(field: Any) -> tuple[str, ...]:
    """Texts in lower case, each once and without empty ones, in order."""
    if not isinstance(field, list) or not all(isinstance(text, str) for text in field):
        raise ValueError(f"{field!r} is not a list of texts")
    return tuple(
        dict.fromkeys(filter(None, (one_line(text).lower() for text in field)))
    )


def _generated_goals(product: Product, record: Mapping[str, Any]) -> Iterator[Goal]:
    """One goal per combination of the product's options."""
    instruction = record.get("instruction")
    wanted = _texts(record.get("instruction_attributes") or [])
    if not instruction or not wanted:
        return
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        yield Goal(
            id=f"{product.asin} {' / '.join(values)}",
            asin=product.asin,
            instruction=one_line(instruction),
            attributes=wanted,
            options=tuple(zip(names, values, strict=True)),
        )


def _written_goals(
    product: Product, records: Sequence[Mapping[str, Any]]
) -> Iterator[Goal]:
    """One goal per instruction; its options are part of its words."""
    for number, record in enumerate(records):
        options = record["instruction_options"]
        if isinstance(options, dict):
            options = list(options.values())
        wanted = _texts(record["instruction_attributes"])
        if wanted:
            yield Goal(
                id=f"{product.asin} {number}",
                asin=product.asin,
                instruction=one_line(record["instruction"]).strip("."),
                attributes=wanted,
                options=tuple((None, value) for value in _texts(options)),
            )
