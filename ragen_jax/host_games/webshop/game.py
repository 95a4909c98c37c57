"""WebShop: buy what a customer asks for.

In: replies, each a search or a click. Out: pages of a shop, and at the end the pay of
the purchase. Products and goals are generated (`generated`) or come from WebShop's
files (`files`).

Source: WebShop (arXiv 2207.01206) as in RAGEN (ragen/env/webshop). It differs where the
original harms: prices and limits are drawn from the level's seed, not anew in each
process; what a page does not offer changes nothing, also a search; validation has
other products; nothing is paid twice (`score`). Its search engine is BM25 on words as
they stand, without Lucene's stems, so that pages of results differ.
"""

import functools
from collections.abc import Sequence

from ragen_jax.host_games.base import TRAINING, HostGame, Observation, Step
from ragen_jax.host_games.common.bm25 import (
    BM25Retriever,
    Passage,
    refuse_without_bm25s,
)
from ragen_jax.host_games.common.options import (
    check_one_of,
    check_task,
    check_whole,
    refuse_given,
)
from ragen_jax.host_games.common.splits import check_split
from ragen_jax.host_games.webshop.catalogue import (
    Catalogue,
    Product,
    draw_limit,
    draw_price,
)
from ragen_jax.host_games.webshop.files import load_catalogue
from ragen_jax.host_games.webshop.generated import generated_shop
from ragen_jax.host_games.webshop.matching import MATCHERS
from ragen_jax.host_games.webshop.pages import (
    BUY,
    PAGES,
    SEARCH,
    Layout,
    Page,
    dollars,
    read_reply,
)
from ragen_jax.host_games.webshop.score import score_purchase
from ragen_jax.host_games.webshop.solution import plan_purchase

# Products that a search finds at most, on pages of ten; WebShop's numbers.
MAX_FOUND, PAGE_SIZE = 50, 10
PAYS = ("raw", "success")

INSTRUCTION = (
    "Buy what the goal asks for: the product, its options, and a price up to the "
    "limit. Reply with one of\n"
    "search[words] on the search page\n"
    "{click}\n"
    "Choose options before click[buy now], which ends the game."
)
CLICKS = {
    "short": "click[name] for a name in brackets on the page",
    "original": "click[name] if the page lists it",
}
NOT_OFFERED = "The page does not offer that."


@functools.lru_cache(maxsize=2)
def _index(catalogue: Catalogue) -> BM25Retriever:
    """One index per shop and process, shared by all games."""
    return BM25Retriever(
        [
            Passage(id=product.asin, text=product.search_text())
            for product in catalogue.products.values()
        ]
    )


class WebShop(HostGame):
    """A shop, and a goal: a product with attributes, options and a limit of its price.

    A reply is `search[words]` on the search page, or `click[name]` for what the page
    offers, in any case; any other is invalid and changes nothing. Buying ends the game
    and pays the share of the wishes that are met, times a factor for the kind of
    product; a share of 1 is a success. There is no limit of replies but the rollout's.

    Attributes:
      metrics: of the purchase, 0 before it: `score`; `kind`, its factor; shares of
        `attributes` and `options` that are right, and `price` within the limit.
    """

    metrics = ("score", "kind", "attributes", "options", "price")

    def __init__(
        self,
        split: str = TRAINING,
        *,
        data: str | None = None,
        attributes: str | None = None,
        instructions: str | None = None,
        rules: str = "light",
        pay: str = "raw",
        pages: str = "short",
        page_size: int = PAGE_SIZE,
    ):
        """Choose products, goals and rules; the index is built by the first search.

        Args:
          split: one of `SPLITS`; they share no product as a goal, and no title.
          data: WebShop's file of products; None: generated products.
          attributes: WebShop's file of attributes and generated instructions; with
            `data`.
          instructions: WebShop's file of instructions by people, to use them as goals;
            None: those of `attributes`.
          rules: "light" compares texts without packages; "faithful" as WebShop does, by
            rapidfuzz and spaCy.
          pay: "raw" pays the score, from 0 to 1; "success" pays 1 for a full score and
            else nothing, as RAGEN does.
          pages: "short" for few tokens; "original" for WebShop's wording.
          page_size: products on a page of results, from 1 to 50.

        Raises:
          ImportError: bm25s, or what the rules need, is not installed.
          ValueError: an option is out of range or needs another one, or a file is not
            in WebShop's format.
        """
        check_split(split)
        check_one_of("rules", rules, MATCHERS)
        check_one_of("pay", pay, PAYS)
        check_one_of("pages", pages, PAGES)
        check_whole("page_size", page_size, most=MAX_FOUND)
        refuse_without_bm25s()
        self._catalogue = _choose_catalogue(data, attributes, instructions)
        self._goals = self._catalogue.goals_of(split)
        self._rules, self._pay = MATCHERS[rules](), pay
        self._layout = Layout(page_size, *PAGES[pages])
        self.num_tasks = len(self._goals)
        # A search for the title may not find a product of a file, or the product may
        # lack what its own goal asks for.
        self.is_solvable = data is None
        # The index of a file takes long to build, and a step has less time.
        self._prepares = data is not None
        # On pages of one product there is one more to turn to; see `is_solvable`.
        self.longest_solution = 5 + (page_size == 1) if data is None else None
        self.instruction = INSTRUCTION.format(click=CLICKS[pages])

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Open the search page; without a task, seeds go through all goals in turn."""
        check_task(task, self.num_tasks)
        index = seed % self.num_tasks if task is None else task
        self._seed, self._goal = seed, self._goals[index]
        self._wanted = self._catalogue.products[self._goal.asin]
        self._limit_cents = draw_limit(self._goal, self._price(self._wanted), seed)
        self._wish = self._layout.wish(self._goal, self._limit_cents)
        self._page = Page()
        self._bought = False
        if self._prepares:
            _index(self._catalogue)
        return Observation(self._text())

    def step(self, reply: str) -> Step:
        """Search, click or buy."""
        read = read_reply(reply)
        page = None if read is None else self._follow(*read)
        if page is None:
            return self._go_on(f"{NOT_OFFERED}\n{self._text()}", valid=False)
        if self._bought:
            return self._judge()
        self._page = page
        return self._go_on(self._text())

    def solution(self) -> Sequence[str]:
        """The way of a shopper that knows the goal's product."""
        if self._bought:
            return ()
        return plan_purchase(
            self._rules,
            self._layout,
            self._goal,
            self._wanted,
            self._page,
            self._search,
        )

    def _follow(self, keyword: str, content: str) -> Page | None:
        """Where a reply leads; None: the page does not offer it."""
        if keyword == SEARCH:
            on_search_page = self._page.found is None
            return Page(found=self._search(content)) if on_search_page else None
        if content == BUY and BUY in self._layout.buttons(self._page):
            self._bought = True
            return self._page
        return self._layout.click(self._page, content)

    def _search(self, query: str) -> tuple[Product, ...]:
        passages = _index(self._catalogue).search(query, MAX_FOUND)
        return tuple(self._catalogue.products[passage.id] for passage in passages)

    def _price(self, product: Product) -> int:
        return draw_price(product, self._seed)

    def _text(self) -> str:
        return self._layout.show(self._page, self._wish, self._price)

    def _go_on(self, text: str, valid: bool = True) -> Step:
        info = {"success": False, "valid": valid, **dict.fromkeys(self.metrics, 0.0)}
        return Step(Observation(text), 0.0, False, False, info)

    def _judge(self) -> Step:
        bought = self._page.product
        score = score_purchase(
            self._rules,
            self._goal,
            self._wanted,
            bought,
            chosen=self._page.chosen,
            price_cents=self._price(bought),
            limit_cents=self._limit_cents,
        )
        success = score.total >= 1
        info = {
            "success": success,
            "valid": True,
            "score": score.total,
            "kind": score.kind,
            "attributes": score.attributes / len(self._goal.attributes),
            "options": score.options / (len(self._goal.options) or 1),
            "price": float(score.in_limit),
        }
        text = f"Bought for {dollars(self._price(bought))}. Score: {score.total:.2f}"
        reward = score.total if self._pay == "raw" else float(success)
        return Step(Observation(text), reward, True, False, info)


def _choose_catalogue(
    data: str | None, attributes: str | None, instructions: str | None
) -> Catalogue:
    if data is None:
        refuse_given(
            "beside generated products; set data to the file of the products",
            attributes=attributes,
            instructions=instructions,
        )
        return generated_shop()
    if attributes is None:
        raise ValueError(
            f"data is {data!r} without attributes; set attributes to WebShop's "
            "items_ins_v2 file for these products"
        )
    return load_catalogue(data, attributes, instructions)
