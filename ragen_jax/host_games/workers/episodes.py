"""Episodes of a host game, row by row, whoever replies.

In: the games of some rows, their problems, and a player. Out: what the games answered.
Policies and models play turn by turn (`ragen_jax/rollout/host/`).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ragen_jax.host_games.workers.pool import Pool, WorkerResponse

# Answers so far, that of the reset first, of rows that play -> the replies of some
# rows; without one the episodes end.
Player = Callable[[Mapping[int, Sequence[WorkerResponse]]], Mapping[int, str]]


def play_rows(
    pool: Pool,
    seeds: Sequence[int],
    tasks: Sequence[int | None],
    player: Player,
    max_turns: int | None = None,
) -> list[list[WorkerResponse]]:
    """The answers of an episode of every row, that of the reset first.

    Args:
      seeds, tasks: a problem per row.
      max_turns: replies at most; None: as many as the player gives.
    """
    episodes = [[answer] for answer in pool.reset(seeds, tasks)]
    for _ in itertools.count() if max_turns is None else range(max_turns):
        playing = {i: x for i, x in enumerate(episodes) if not x[-1].is_over}
        replies = player(playing) if playing else {}
        if not replies:
            break
        for row, answer in pool.step(replies).items():
            episodes[row].append(answer)
    return episodes


def follow(plans: Mapping[int, Sequence[str]]) -> Player:
    """The player that gives the replies of each row in turn."""

    def player(episodes):
        played = {row: len(episode) - 1 for row, episode in episodes.items()}
        return {
            row: plans[row][turn]
            for row, turn in played.items()
            if turn < len(plans[row])
        }

    return player


class SolvedEpisode(NamedTuple):
    """An episode whose replies are the game's own solution.

    Attributes:
      outputs: of the reset and of every reply.
      solution: all of its replies, the first `len(outputs) - 1` of which were played.
      failure: why the game failed; None if it did not.
    """

    outputs: Sequence[WorkerResponse]
    solution: Sequence[str]
    failure: str | None


def play_solutions(
    pool: Pool,
    seeds: Sequence[int],
    tasks: Sequence[int | None],
    max_turns: int | None = None,
) -> list[SolvedEpisode]:
    """An episode of every row by the game's own solution; see `play_rows`."""
    solved: dict[int, WorkerResponse] = {}

    def player(episodes):
        if not solved:
            solved.update(pool.solve([*episodes]))
        plans = {row: answer.solution for row, answer in solved.items()}
        return follow(plans)(episodes)

    episodes = play_rows(pool, seeds, tasks, player, max_turns)
    nothing = WorkerResponse()
    answers = [solved.get(row, nothing) for row in range(len(episodes))]
    return [
        SolvedEpisode(outputs, answer.solution, answer.failure or outputs[-1].failure)
        for outputs, answer in zip(episodes, answers, strict=True)
    ]
