"""Pages of the shop: what can be done on them, where it leads, how they read.

In: a page and a name that is clicked. Out: the next page; texts. Does not know
replies, searching and rewards.

Source: WebShop's pages and their text form (web_agent_site/templates). "short" texts
are our own: a name in brackets can be clicked, prices are those of the level, options
chosen are marked with a star. "original" texts have WebShop's layout, with parts joined
by ` [SEP] `, prices of the catalogue (a range where it has one), and RAGEN's list of
actions; RAGEN's nine tips for shopping are left out.
"""

import dataclasses
from collections.abc import Callable, Mapping

from ragen_jax.host_games.common.texts import compose
from ragen_jax.host_games.webshop.catalogue import Goal, Product

SEARCH, CLICK = KEYWORDS = ("search", "click")
# Longer replies are not read; queries are cut to fit.
MAX_REPLY_CHARS = 2_000
MAX_QUERY_CHARS = 1_000


def read_reply(reply: str) -> tuple[str, str] | None:
    """The keyword of a reply and what is in its brackets, in lower case with single
    blanks; None if it is neither a search nor a click.

    A query has no brackets, so that `search[a] click[b]` is not one; names that can be
    clicked may have some.
    """
    if len(reply) > MAX_REPLY_CHARS:
        return None
    keyword, _, rest = reply.strip().partition("[")
    keyword = keyword.strip().lower()
    content = " ".join(compose(rest[:-1]).lower().split())
    if keyword not in KEYWORDS or not rest.endswith("]") or not content:
        return None
    if keyword == SEARCH and ("[" in content or "]" in content):
        return None
    return keyword, content


def write_search(words: str) -> str:
    """A search that `read_reply` reads, if the words are more than brackets."""
    bare = words.replace("[", " ").replace("]", " ")
    return f"{SEARCH}[{bare[:MAX_QUERY_CHARS].strip()}]"


def write_click(name: str) -> str:
    """A click that `read_reply` reads, on a name of a page."""
    return f"{CLICK}[{name}]"


BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"
DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES = SUB_PAGES = (
    "description",
    "features",
    "reviews",
    "attributes",
)
# WebShop's site shows attributes only with a separate option.
ORIGINAL_SUB_PAGES = SUB_PAGES[:-1]
SEPARATOR = " [SEP] "
EMPTY_PAGE = "none"


@dataclasses.dataclass(frozen=True)
class Page:
    """Where the player is: the search page, without fields, or one of those below it.

    Attributes:
      found: products that the last search has found; None on the search page.
      number: of the page of results, from 1.
      product: on its page; None on pages of results.
      sub_page: one of `SUB_PAGES`; None on the product's own page.
      chosen: values by names of options.
    """

    found: tuple[Product, ...] | None = None
    number: int = 1
    product: Product | None = None
    sub_page: str | None = None
    chosen: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Size and wording of pages.

    Attributes:
      page_size: products on a page of results.
      sub_pages: of a product.
      write: a page; `show` calls it.
      wish: the goal in words, from goal and limit in cents.
    """

    page_size: int
    sub_pages: tuple[str, ...]
    write: Callable[["Layout", Page, str, Callable[[Product], int]], str]
    wish: Callable[[Goal, int | None], str]

    def show(self, page: Page, wish: str, price: Callable[[Product], int]) -> str:
        """The text of a page.

        Args:
          page: to be shown.
          wish: the goal in words.
          price: of a product in the level, in cents.
        """
        return self.write(self, page, wish, price)

    def on_page(self, page: Page) -> tuple[Product, ...]:
        """Products on a page of results."""
        first = (page.number - 1) * self.page_size
        return page.found[first : first + self.page_size]

    def buttons(self, page: Page) -> list[str]:
        """Names that can be clicked besides products and options."""
        if page.found is None:
            return []
        if page.sub_page is not None:
            return [BACK, PREVIOUS]
        if page.product is not None:
            return [BACK, PREVIOUS, *self.sub_pages, BUY]
        has_next = page.number * self.page_size < len(page.found)
        return [BACK, *[PREVIOUS] * (page.number > 1), *[NEXT] * has_next]

    def links(self, page: Page) -> list[str]:
        """Products and values of options that can be clicked."""
        if page.found is None or page.sub_page is not None:
            return []
        if page.product is None:
            return [product.asin.lower() for product in self.on_page(page)]
        values = (value for some in page.product.options.values() for value in some)
        return [value for value in dict.fromkeys(values) if value not in BUTTONS]

    def click(self, page: Page, name: str) -> Page | None:
        """Where a click leads, except for `BUY`; None: the page does not offer it."""
        if name in self.buttons(page):
            return _press(page, name)
        if name not in self.links(page):
            return None
        if page.product is None:
            product = next(p for p in self.on_page(page) if p.asin.lower() == name)
            return dataclasses.replace(page, product=product)
        return dataclasses.replace(page, chosen=choose(page, name))


BUTTONS = frozenset({BACK, NEXT, PREVIOUS, BUY, *SUB_PAGES})


def _press(page: Page, name: str) -> Page:
    if name == BACK:
        return Page()
    if name in (NEXT, PREVIOUS) and page.product is None:
        step = 1 if name == NEXT else -1
        return dataclasses.replace(page, number=page.number + step)
    if name == PREVIOUS and page.sub_page is None:
        return Page(found=page.found, number=page.number)
    return dataclasses.replace(page, sub_page=None if name == PREVIOUS else name)


def choose(page: Page, value: str) -> dict[str, str]:
    """The choice with a further value.

    Where several options have the value, it is for the first that has not chosen it.
    For WebShop it is always for the last, so that the others cannot have it.
    """
    names = [name for name, some in page.product.options.items() if value in some]
    free = [name for name in names if page.chosen.get(name) != value]
    return {**page.chosen, (free or names)[0]: value}


def dollars(cents: int) -> str:
    """A price; whole dollars without cents."""
    whole, rest = divmod(cents, 100)
    return f"${whole}.{rest:02}" if rest else f"${whole}"


def _price_tag(product: Product) -> str:
    low, high = (f"${cents / 100}" for cents in product.price_cents)
    return low if low == high else f"{low} to {high}"


def _short_wish(goal: Goal, limit_cents: int | None) -> str:
    options = [f"{name} {value}" for name, value in goal.options if name is not None]
    limit = [] if limit_cents is None else [f"up to {dollars(limit_cents)}"]
    return ", ".join([goal.instruction, *options, *limit])


def _original_wish(goal: Goal, limit_cents: int | None) -> str:
    options = [f"{name}: {value}" for name, value in goal.options if name is not None]
    chosen = f" with {', and '.join(options)}" if options else ""
    if limit_cents is None:
        return goal.instruction + chosen
    limit = f"price lower than {limit_cents / 100:.2f} dollars"
    return f"{goal.instruction}{chosen}, and {limit}"


def _sub_page_texts(product: Product, sub_page: str) -> list[str]:
    texts = {
        DESCRIPTION: [product.description],
        FEATURES: product.features,
        REVIEWS: [
            f'"{review.title}" {review.score} {review.body}'.strip()
            for review in product.reviews
        ],
        ATTRIBUTES: product.attributes,
    }[sub_page]
    return [text for text in texts if text] or [EMPTY_PAGE]


def _write_short(
    layout: Layout, page: Page, wish: str, price: Callable[[Product], int]
) -> str:
    lines = [f"Goal: {wish}"]
    if page.found is None:
        return "\n".join([*lines, "search[words]"])
    if page.sub_page is not None:
        lines += _sub_page_texts(page.product, page.sub_page)
    elif page.product is not None:
        lines.append(f"{page.product.name} {dollars(price(page.product))}")
        for name, values in page.product.options.items():
            chosen = page.chosen.get(name)
            buttons = (f"[{value}]{'*' * (value == chosen)}" for value in values)
            lines.append(f"{name}: {' '.join(buttons)}")
    else:
        lines.append(_count_results(layout, page))
        lines += [
            f"[{product.asin.lower()}] {product.name} {dollars(price(product))}"
            for product in layout.on_page(page)
        ]
    lines.append(" ".join(f"[{name}]" for name in layout.buttons(page)))
    return "\n".join(lines)


def _count_results(layout: Layout, page: Page) -> str:
    if not page.found:
        return "Results: none"
    first = (page.number - 1) * layout.page_size + 1
    last = first + len(layout.on_page(page)) - 1
    return f"Results {first}-{last} of {len(page.found)}"


def _write_original(
    layout: Layout, page: Page, wish: str, price: Callable[[Product], int]
) -> str:
    if page.found is None:
        parts = ["WebShop", "Instruction:", wish, "Search"]
        actions = ["search[<content>]"]
    else:
        parts = ["Instruction:", wish, *_original_parts(layout, page)]
        names = [*layout.buttons(page), *layout.links(page)]
        actions = [f"click[{name}]" for name in names]
    text = SEPARATOR.join(parts)
    return f"{text}.\nYou must choose from these actions: {', '.join(actions)}."


def _original_parts(layout: Layout, page: Page) -> list[str]:
    if page.sub_page is not None:
        texts = _sub_page_texts(page.product, page.sub_page)
        return ["Back to Search", "< Prev", *texts]
    if page.product is not None:
        options = page.product.options.items()
        return [
            "Back to Search",
            "< Prev",
            *(text for name, values in options for text in (name, *values)),
            page.product.name,
            f"Price: {_price_tag(page.product)}",
            f"Rating: {page.product.rating}",
            *(name.title() for name in layout.sub_pages),
            "Buy Now",
        ]
    arrows = [name.title() for name in layout.buttons(page) if name != BACK]
    return [
        "Back to Search",
        f"Page {page.number} (Total results: {len(page.found)})",
        *arrows,
        *(
            text
            for product in layout.on_page(page)
            for text in (product.asin, product.name, _price_tag(product))
        ),
    ]


# Name -> sub pages, the text of pages, the text of the goal.
PAGES = {
    "short": (SUB_PAGES, _write_short, _short_wish),
    "original": (ORIGINAL_SUB_PAGES, _write_original, _original_wish),
}
