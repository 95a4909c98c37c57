"""All conversations of a game, several at a time.

In: a game, its levels, an endpoint, the journal of what has been paid for. Out: the
records of all rows. When a conversation fails for good no new one begins, those under
way are finished, and what is there is kept: the same command goes on with the rest.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array, Key

from ragen_jax.endpoint.client import ChatReply, Endpoint, EndpointError
from ragen_jax.endpoint.games import TextGame
from ragen_jax.endpoint.journal import Journal
from ragen_jax.endpoint.totals import Prices
from ragen_jax.text.messages import Message
from ragen_jax.types import EnvState

_KEPT = (
    "They are kept, with the replies of the others: the same command goes on from there"
)
# Between two lines of progress.
_QUIET_SECONDS = 10.0


class Progress:
    """Lines on standard error while conversations go on."""

    def __init__(self, name: str, records: Sequence[Mapping[str, Any]], total: int):
        self._name, self._total = name, total
        self._done, self._first = len(records), len(records)
        self._successes = sum(record["success"] for record in records)
        self._read = self._written = 0
        self._began = self._said = time.monotonic()

    def replied(self, reply: ChatReply) -> None:
        """A reply was paid for."""
        self._read += reply.prompt_tokens or 0
        self._written += reply.reply_tokens or 0

    def finished(self, record: Mapping[str, Any], prices: Prices, retries: int) -> None:
        """A conversation has ended."""
        self._done += 1
        self._successes += record["success"]
        now = time.monotonic()
        if now - self._said < _QUIET_SECONDS and self._done < self._total:
            return
        self._said = now
        seconds = (now - self._began) / (self._done - self._first)
        left = round(seconds * (self._total - self._done))
        words = [
            f"{self._name}: {self._done}/{self._total} conversations",
            f"success {self._successes / self._done:.1%}",
            f"{self._read:,} + {self._written:,} tokens now",
        ]
        tokens = {"prompt_tokens": self._read, "sampled_tokens": self._written}
        cost = prices.cost(tokens | {"cached_tokens": 0})
        words += [f"cost up to {cost:.4g}"] if cost is not None else []
        words += [f"{retries} tries repeated"] if retries else []
        words.append(f"{left // 60}m{left % 60:02d}s left")
        print("  ".join(words), file=sys.stderr, flush=True)


async def play_all(
    game: TextGame,
    levels: EnvState,
    noise_keys: Sequence[Key[Array, ""]],
    endpoint: Endpoint,
    journal: Journal,
    *,
    settings: Mapping[str, Any],
    prices: Prices,
    concurrency: int,
) -> list[dict[str, Any]]:
    """Play every row that the journal has not.

    Args:
      levels: first states, one per prompt, on the host.
      noise_keys: one per row; the rows of a prompt are adjacent.
      settings: how it is played: conversations played in another way do not count.
      prices: for the progress.
      concurrency: conversations at a time.

    Returns:
      A record per row, in order.

    Raises:
      EndpointError: some could not be finished.
      ValueError: the journal holds the game under other settings.
    """
    journal.begin(game.name, settings)
    num_rows = len(noise_keys)
    per_level = num_rows // len(jax.tree.leaves(levels)[0])
    places = [(game.name, row) for row in range(num_rows)]
    kept = [journal.finished[place] for place in places if place in journal.finished]
    progress = Progress(game.name, kept, num_rows)
    waiting = iter([place for place in places if place not in journal.finished])
    failures: list[EndpointError] = []

    async def converse(place) -> None:
        row = place[1]
        known = journal.replies(place)

        async def ask(turn: int, messages: Sequence[Message]) -> ChatReply:
            if turn >= len(known):
                reply = await endpoint.reply(messages, row)
                journal.add_reply(place, reply)
                progress.replied(reply)
            return known[turn]

        level = jax.tree.map(lambda x: x[row // per_level], levels)
        record = await game.play(level, noise_keys[row], ask)
        label = {"environment": game.name, "row": row, "settings": settings}
        journal.add_conversation(place, label | record)
        progress.finished(record, prices, endpoint.num_retries)

    async def work() -> None:
        for place in waiting:
            if failures:
                return
            try:
                await converse(place)
            except EndpointError as failure:
                failures.append(failure)

    await asyncio.gather(*(work() for _ in range(concurrency)))
    if failures:
        done = sum(place in journal.finished for place in places)
        told = f"{done} of {num_rows} conversations of {game.name} are finished"
        raise EndpointError(f"{failures[0]} ({told}{f'. {_KEPT}' if done else ''})")
    return [journal.finished[place] for place in places]
