"""SearchQA whose search engine takes its time, for `benchmarks.ahead`."""

import time

from ragen_jax.host_games.base import Step
from ragen_jax.host_games.search.game import SearchQA

SECONDS = 0.05


class SlowSearch(SearchQA):
    """Takes `SECONDS` for every reply; the prompt names it as the model knows it."""

    name = "SearchQA"

    def step(self, reply: str) -> Step:
        time.sleep(SECONDS)
        return super().step(reply)
