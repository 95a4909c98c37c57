"""What all rows of a host game have in common: problems, answers and failures.

In: random keys, replies, reasons of failures. Out: the problem of every row, the answer
that its game gets, and a sentence or an error about the games that failed. Players
outside `rollout/host` have workers and their episodes from here, too.
"""

import collections
import sys
import textwrap
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.devices import exchange
from ragen_jax.host_games.workers.episodes import SolvedEpisode as SolvedEpisode
from ragen_jax.host_games.workers.episodes import play_rows as play_rows
from ragen_jax.host_games.workers.episodes import play_solutions as play_solutions
from ragen_jax.host_games.workers.pool import Pool as Pool
from ragen_jax.host_games.workers.pool import WorkerResponse as WorkerResponse
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.terminal import say
from ragen_jax.text.messages import find_answer, parse_text


class GamesFailed(ValueError):
    """More games of a rollout failed than may."""


def answer_in(reply: bytes, thinking: bool) -> str | None:
    """The answer of a reply as its game gets it; None without one.

    An empty answer is not an action, as in `turns`.
    """
    text = reply.decode("utf-8", "replace")
    parsed = parse_text(text, (), max_actions=1, thinking=thinking, answer_bytes=1)
    if not parsed.num_names:
        return None
    answer = find_answer(reply, thinking).decode("utf-8", "replace")
    # First: lines below would keep an indentation that the first one loses.
    return textwrap.dedent(answer).strip()


def draw_problems(
    keys: RolloutKeys, num_tasks: int | None
) -> tuple[list[int], list[int | None]]:
    """Seed and task of every row, from its level key: those of a group share both."""
    bits = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys.level)
    seeds, choices = (np.asarray(bits).T >> 1).tolist()
    if num_tasks is None:
        return seeds, [None] * len(seeds)
    return seeds, [choice % num_tasks for choice in choices]


def check_failures(reasons: Sequence[str], num_rows: int, max_share: float) -> None:
    """Say on standard error why games failed, games of all processes.

    Args:
      reasons: of each that did.
      num_rows: games in all.
      max_share: of them that may fail.

    Raises:
      GamesFailed: too many did.
    """
    if not reasons:
        return
    reason, count = collections.Counter(reasons).most_common(1)[0]
    words = f"{len(reasons)} of {num_rows} games failed"
    if len(reasons) > max_share * num_rows:
        remedy = "Fix the cause" + (
            " or raise the limit" if len(reasons) < num_rows else ""
        )
        raise GamesFailed(
            f"{words}, more than rollout.max_failed_fraction = {max_share:g} allows; "
            f"{count} of them: {reason}. {remedy}."
        )
    if exchange.is_first():
        say(
            f"warning: {words}, {count} of them: {reason}; their episodes are not "
            "trained on and not won",
            sys.stderr,
        )
