"""What a purchase is worth to the customer.

In: a goal with its limit, the product bought with its price and options. Out: a score
from 0 to 1 and its parts.

Source: WebShop (arXiv 2207.01206), section 3 and appendix, and its code (d149d0d,
web_agent_site/engine/goal.py): the share of the wishes that are met, of attributes,
options and price, times a factor for the kind of product. The code counts the options
wanted that are similar to any one chosen, each once; `matching.Rules` say how texts are
compared and where "light" is stricter. Neither can pay more than 1.
"""

import dataclasses
from collections.abc import Collection, Mapping

from ragen_jax.host_games.webshop.catalogue import Goal, Product
from ragen_jax.host_games.webshop.matching import Rules

# The option whose values have to be equal if rules are strict.
EXACT_OPTION = "size"
CATEGORY_MARK = "›"
CATEGORIES_OF_A_KIND = 2
# Share of the goal's nouns in the title: of a title with at most the first, nothing but
# query or categories makes it the right kind; below the second it is hardly one.
SAME_KIND_ABOVE, OTHER_KIND_BELOW = 0.2, 0.1
RIGHT_KIND, SIMILAR_KIND, OTHER_KIND, WRONG_KIND = 1.0, 0.5, 0.1, 0.0


@dataclasses.dataclass(frozen=True)
class Score:
    """What a purchase is worth.

    Attributes:
      kind: factor for the kind of product, one of the four above.
      attributes: how many of those wanted the product has.
      options: how many of those wanted have been chosen.
      in_limit: it costs no more than it may.
      wishes: attributes and options wanted, and the price.
    """

    kind: float
    attributes: int
    options: int
    in_limit: bool
    wishes: int

    @property
    def total(self) -> float:
        """From 0 to 1; exactly 1 if everything is right."""
        return (
            self.kind * (self.attributes + self.options + self.in_limit) / self.wishes
        )


def score_purchase(
    rules: Rules,
    goal: Goal,
    wanted: Product,
    bought: Product,
    *,
    chosen: Mapping[str, str],
    price_cents: int,
    limit_cents: int | None,
) -> Score:
    """Compare a purchase with a goal.

    Args:
      rules: how texts are compared.
      goal: of the customer.
      wanted: the goal's product.
      bought: the product bought.
      chosen: values by names of options.
      price_cents: of the product bought.
      limit_cents: the most it may cost; None: anything.
    """
    return Score(
        kind=kind_factor(rules, wanted, bought),
        attributes=count_attributes(rules, goal.attributes, bought),
        options=count_options(rules, [value for _, value in goal.options], chosen),
        in_limit=limit_cents is None or price_cents <= limit_cents,
        wishes=len(goal.attributes) + len(goal.options) + 1,
    )


def kind_factor(rules: Rules, wanted: Product, bought: Product) -> float:
    """1 for the same kind of product, and 0.5, 0.1 or 0 the farther it is from it."""
    nouns = rules.nouns(wanted.name)
    shared = len(set(nouns) & set(rules.nouns(bought.name)))
    # WebShop's value for a title without nouns. By its rules a noun that a title
    # repeats lowers the share, also of that very title.
    share = shared / len(nouns) if nouns else SAME_KIND_ABOVE
    if share == 0:
        return WRONG_KIND
    if share < OTHER_KIND_BELOW:
        return OTHER_KIND
    same_categories = _categories(wanted) & _categories(bought)
    if (
        wanted.query == bought.query
        or len(same_categories) >= CATEGORIES_OF_A_KIND
        or share > SAME_KIND_ABOVE
    ):
        return RIGHT_KIND
    return SIMILAR_KIND


def _categories(product: Product) -> set[str]:
    return {part.strip() for part in product.product_category.split(CATEGORY_MARK)}


def count_attributes(rules: Rules, wanted: Collection[str], bought: Product) -> int:
    """Attributes that a product has, or that its texts mention."""
    features = " ".join(bought.features)
    texts = [text.lower() for text in (bought.name, features, bought.description)]
    return sum(
        any(rules.similar(known, attribute) for known in bought.attributes)
        or any(attribute in text for text in texts)
        for attribute in wanted
    )


def count_options(
    rules: Rules, wanted: Collection[str], chosen: Mapping[str, str]
) -> int:
    """The options wanted that are met, by one chosen option each if rules are strict.

    Then it is the most that can be paired so.
    """
    fitting = [
        [
            name
            for name, value in chosen.items()
            if option_fits(rules, name, value, wish)
        ]
        for wish in wanted
    ]
    if not rules.is_strict:
        return sum(map(bool, fitting))
    wish_of: dict[str, int] = {}
    return sum(_pair(wish, fitting, wish_of, set()) for wish in range(len(fitting)))


def option_fits(rules: Rules, name: str, value: str, wish: str) -> bool:
    """Whether a value chosen is the one wanted, or one much like it."""
    value, wish = rules.color_of(value), rules.color_of(wish)
    if rules.is_strict and name == EXACT_OPTION:
        return value == wish
    return rules.similar(wish, value)


def _pair(
    wish: int, fitting: list[list[str]], wish_of: dict[str, int], tried: set[str]
) -> bool:
    """Give a wish an option, moving other wishes to other options if need be."""
    for name in fitting[wish]:
        if name not in tried:
            tried.add(name)
            if name not in wish_of or _pair(wish_of[name], fitting, wish_of, tried):
                wish_of[name] = wish
                return True
    return False
