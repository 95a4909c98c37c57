"""A shopper that knows the goal's product: replies with which everything is right.

In: a goal, its product and the page. Out: replies; none where the product is not found
or does not have what the goal asks for. Does not know prices and pay.
"""

from collections.abc import Callable

from ragen_jax.host_games.webshop.catalogue import Goal, Product
from ragen_jax.host_games.webshop.matching import Rules
from ragen_jax.host_games.webshop.pages import (
    BACK,
    BUY,
    NEXT,
    PREVIOUS,
    Layout,
    Page,
    write_click,
    write_search,
)
from ragen_jax.host_games.webshop.score import (
    count_attributes,
    count_options,
    option_fits,
)


class Shopper:
    """Writes replies and follows them from page to page.

    Attributes:
      page: where the replies so far lead.
      replies: so far.
    """

    def __init__(self, layout: Layout, page: Page):
        self.page, self.replies = page, []
        self._layout = layout

    def click(self, name: str) -> None:
        """Click on a name of the page."""
        self.page = self._layout.click(self.page, name)
        self.replies.append(write_click(name))

    def open(
        self, wanted: Product, search: Callable[[str], tuple[Product, ...]]
    ) -> bool:
        """Go to a product's page; False if its title does not find it."""
        if self.page.product == wanted:
            if self.page.sub_page is not None:
                self.click(PREVIOUS)
            return True
        if self.page.found is None or wanted not in self._layout.on_page(self.page):
            if self.page.found is not None:
                self.click(BACK)
            self.page = Page(found=search(wanted.name))
            self.replies.append(write_search(wanted.name))
        while self.page.product is not None:
            self.click(PREVIOUS)
        if wanted not in self.page.found:
            return False
        while wanted not in self._layout.on_page(self.page):
            self.click(NEXT)
        self.click(wanted.asin.lower())
        return True

    def choose(self, choice: dict[str, str]) -> None:
        """Click on values until the product's options have them, where they can be."""
        for name, value in choice.items():
            # A value that several options have is for each of them in turn.
            for _ in self.page.product.options:
                if self.page.chosen.get(name) == value:
                    break
                if value in self._layout.links(self.page):
                    self.click(value)


def plan_purchase(
    rules: Rules,
    layout: Layout,
    goal: Goal,
    wanted: Product,
    page: Page,
    search: Callable[[str], tuple[Product, ...]],
) -> list[str]:
    """Replies that buy the goal's product, with the options wanted, from a page on.

    Empty if no purchase of it is all that the goal asks for, or it is not found.

    Args:
      rules: by which the purchase is judged.
      layout: of the pages.
      goal: to be met.
      wanted: the goal's product.
      page: where the player is.
      search: products that a query finds.
    """
    shopper = Shopper(layout, page)
    if not shopper.open(wanted, search):
        return []
    shopper.choose(_choice(rules, goal, wanted))
    options = [value for _, value in goal.options]
    has_options = count_options(rules, options, shopper.page.chosen) == len(options)
    has_attributes = count_attributes(rules, goal.attributes, wanted)
    if not has_options or has_attributes < len(goal.attributes):
        return []
    return [*shopper.replies, write_click(BUY)]


def _choice(rules: Rules, goal: Goal, wanted: Product) -> dict[str, str]:
    """Values that the goal asks for, by options of its product, each once."""
    choice: dict[str, str] = {}
    for wish_name, wish in goal.options:
        fitting = [
            (value != wish, name, value)
            for name, values in wanted.options.items()
            for value in values
            if name not in choice and wish_name in (None, name)
            if option_fits(rules, name, value, wish)
        ]
        if fitting:
            # The very value rather than a similar one.
            _, name, value = min(fitting)
            choice[name] = value
    return choice
