"""What a shop sells and what its customers want.

In: nothing. Out: what the parts of the shopping game hand each other. Prices are whole
cents, so that limits compare exactly.
"""

import dataclasses
import itertools
from collections.abc import Mapping

from ragen_jax.host_games.common.splits import split_of_hash, stable_hash

# One title in four belongs to validation, as with levels of the games on the device.
VALIDATION_ONE_IN = 4
# Limits are multiples of 10 dollars below 1,000; of the next four above the price two
# are drawn, and the higher one is the limit. WebShop's numbers.
LIMIT_CENTS = range(1_000, 100_000, 1_000)
NEXT_LIMITS = 4


@dataclasses.dataclass(frozen=True)
class Review:
    """What a customer wrote.

    Attributes:
      title: a few words.
      score: stars, as text.
      body: the rest; may be empty.
    """

    title: str
    score: str
    body: str


@dataclasses.dataclass(frozen=True)
class Product:
    """An article of the shop.

    Attributes:
      asin: names it, in upper case; what is clicked, in lower case.
      name: its title.
      query: words with which it was found when the catalogue was collected, lower case;
        products of one kind share them.
      product_category: path of categories, separated by `›`.
      description: a text; may be empty.
      features: its bullet points.
      attributes: properties in lower case; pages show them only when asked for.
      price_cents: lowest and highest price, often the same.
      options: values that can be chosen, in lower case, by the option's name.
      rating: of its reviews.
      reviews: by customers.
    """

    asin: str
    name: str
    query: str
    product_category: str
    description: str
    features: tuple[str, ...]
    attributes: tuple[str, ...]
    price_cents: tuple[int, int]
    options: Mapping[str, tuple[str, ...]]
    rating: str
    reviews: tuple[Review, ...]

    def search_text(self) -> str:
        """What the search engine knows: title, description, first feature, options."""
        options = (f"{name}: {', '.join(self.options[name])}" for name in self.options)
        first_feature = self.features[0] if self.features else ""
        return " ".join([self.name, self.description, first_feature, *options])


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a customer wants.

    Attributes:
      id: names it, the same in every process.
      asin: of a product that has it all.
      instruction: what is wanted, in words.
      attributes: properties wanted, in lower case; at least one.
      options: values wanted, in lower case, with the names of their options; the name
        is None where the instruction has them in words.
    """

    id: str
    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str | None, str], ...]


# Compared by identity: it is large, and one per file and process.
@dataclasses.dataclass(frozen=True, eq=False)
class Catalogue:
    """A shop with its customers.

    Attributes:
      products: by asin, in the order of the file.
      goals: of each split, in an order that looks random.
      source: where it is from, for messages.
    """

    products: Mapping[str, Product]
    goals: Mapping[str, tuple[Goal, ...]]
    source: str

    def goals_of(self, split: str) -> tuple[Goal, ...]:
        """Goals of a split.

        Raises:
          ValueError: the split has no goals.
        """
        if not self.goals[split]:
            raise ValueError(
                f"no goal of {self.source} falls into the {split} split; use files "
                "with more instructions"
            )
        return self.goals[split]


def split_of(product: Product) -> str:
    """The split of a product's goals; products of one title are in the same."""
    title = stable_hash("webshop split", product.name.lower())
    return split_of_hash(title, VALIDATION_ONE_IN)


def draw_price(product: Product, seed: int) -> int:
    """The price in cents in the level of a seed, evenly from the product's range."""
    low, high = product.price_cents
    return low + stable_hash("webshop price", seed, product.asin) % (high - low + 1)


def draw_limit(goal: Goal, price_cents: int, seed: int) -> int | None:
    """The most that may be paid in the level of a seed, in cents; above the price.

    None if the price is too high for a limit.
    """
    above = [limit for limit in LIMIT_CENTS if limit > price_cents][:NEXT_LIMITS]
    pairs = list(itertools.combinations(above, 2))
    if not pairs:
        return None
    return pairs[stable_hash("webshop limit", seed, goal.id) % len(pairs)][1]
