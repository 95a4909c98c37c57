"""Episodes of a host game in text, each in a worker process: reset, step, solve.

In: a `HostGameEnv`, problems, and answers in text. Out: what the games answer. All
players of a host game use `HostGameRows`: training, models behind an API, sessions of
a server, people, solvers and demonstrators.
"""

import collections
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.multihost import exchange
from ragen_jax.rollout.host.env import HostGameEnv
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.text.messages import find_answer, parse_text


class GamesFailed(ValueError):
    """More games of a rollout failed than may."""


class GameOutput(WorkerResponse):
    """What a game answered to a reset, a reply, or the question for a solution."""

    @property
    def valid(self) -> bool:
        """The game could read the reply."""
        return bool(self.info.get("valid", True))

    @property
    def success(self) -> bool:
        """The goal of the game is reached."""
        return bool(self.info.get("success", False))

    @property
    def was_cut(self) -> bool:
        """A limit of the game, or its failure, has ended the episode."""
        return self.truncated or self.failure is not None


class HostGameRows:
    """Rows of one host game; their workers start with the first reset.

    Args:
      env: the game.
      split: of its problems.
      num_rows: episodes that are played side by side.
      reads_images: the player is shown images; else a game that shows one has failed.
    """

    def __init__(
        self,
        env: HostGameEnv,
        split: str,
        num_rows: int = 1,
        *,
        reads_images: bool = False,
    ):
        pool = Pool(env.spec, split, num_rows)
        self._pool, self._reads_images = pool, reads_images
        # Workers end with the rows, however those are left.
        self.close = weakref.finalize(self, pool.close)

    def reset(
        self, seeds: Sequence[int], tasks: Sequence[int | None]
    ) -> list[GameOutput]:
        return [self._output_of(answer) for answer in self._pool.reset(seeds, tasks)]

    def step(self, answers: Mapping[int, str]) -> dict[int, GameOutput]:
        responses = self._pool.step(answers)
        return {row: self._output_of(response) for row, response in responses.items()}

    def solve(self, rows: Sequence[int]) -> dict[int, GameOutput]:
        """The games' solutions from here on, in some rows."""
        responses = self._pool.solve(rows)
        return {row: self._output_of(response) for row, response in responses.items()}

    def _output_of(self, response: WorkerResponse) -> GameOutput:
        response = response if self._reads_images else response.in_text()
        return GameOutput(**vars(response))


class SolvedEpisode(NamedTuple):
    """An episode whose replies are the game's own solution.

    Attributes:
      outputs: of the reset and of every reply.
      solution: all of its replies, the first `len(outputs) - 1` of which were played.
      failure: why the game failed; None if it did not.
    """

    outputs: Sequence[GameOutput]
    solution: Sequence[str]
    failure: str | None


def play_solutions(
    rows: HostGameRows,
    seeds: Sequence[int],
    tasks: Sequence[int | None],
    max_turns: int | None = None,
) -> list[SolvedEpisode]:
    """An episode of every row by the game's own solution.

    Args:
      seeds, tasks: a problem per row.
      max_turns: replies at most; None: all of a solution.
    """
    outputs = [[output] for output in rows.reset(seeds, tasks)]
    solved = rows.solve([i for i, (first,) in enumerate(outputs) if not first.is_over])
    plans = {row: output.solution for row, output in solved.items()}
    longest = max(map(len, plans.values()), default=0)
    for turn in range(longest if max_turns is None else max_turns):
        asked = {
            row: plan[turn]
            for row, plan in plans.items()
            if turn < len(plan) and not outputs[row][-1].is_over
        }
        for row, output in rows.step(asked).items():
            outputs[row].append(output)
    nothing = GameOutput()
    return [
        SolvedEpisode(
            of_row,
            plans.get(row, ()),
            solved.get(row, nothing).failure or of_row[-1].failure,
        )
        for row, of_row in enumerate(outputs)
    ]


def answer_in(reply: bytes, thinking: bool) -> str | None:
    """The answer of a reply as its game gets it; None without one.

    An empty answer is not an action, as in `turns`.
    """
    text = reply.decode("utf-8", "replace")
    parsed = parse_text(text, (), max_actions=1, thinking=thinking, answer_bytes=1)
    if not parsed.num_names:
        return None
    return find_answer(reply, thinking).decode("utf-8", "replace").strip()


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
        remedy = "Fix the game" + (
            " or raise the limit" if len(reasons) < num_rows else ""
        )
        raise GamesFailed(
            f"{words}, more than rollout.max_failed_fraction = {max_share:g} allows; "
            f"{count} of them: {reason}. {remedy}."
        )
    if exchange.is_first():
        print(
            f"warning: {words}, {count} of them: {reason}; their episodes are not "
            "trained on and not won",
            file=sys.stderr,
        )
