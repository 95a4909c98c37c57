"""Checks of a host game against its contract, in worker processes as in training.

In: a game and what it says of itself. Out: for every check its sentence, and what
breaks it; `launch.check` prints them.
"""

import contextlib
import dataclasses
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from ragen_jax.host_games.base import SPLITS, TRAINING, VALIDATION, HostGame
from ragen_jax.host_games.workers.episodes import follow, play_rows, play_solutions
from ragen_jax.host_games.workers.pool import GameSpec, Pool, WorkerResponse

NUM_EPISODES = 8
# Beginnings that are compared between training and validation.
NUM_BEGINNINGS = 128
MAX_REPLIES = 40
# Replies that few games expect.
HOSTILE = ("", " ", "?", "x" * 2000, "((((", "a || b", "\x00", "é 日本 🎲", "finish[")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A game under test.

    Attributes:
      spec: how workers make it.
      games: one of each split, for what it says of itself.
    """

    spec: GameSpec
    games: Mapping[str, HostGame]

    def play(
        self, split: str, num_rows: int, replies: Sequence[str] | None = ()
    ) -> list[Sequence[WorkerResponse]]:
        """The answers of some episodes in new processes, that of the reset first.

        Args:
          replies: given in turn, another one first in every row; None: the solution.
        """
        num_tasks = self.games[split].num_tasks
        seeds = list(range(num_rows))
        tasks = [seed % num_tasks if num_tasks else None for seed in seeds]
        pool = Pool(self.spec, split, num_rows, reads_images=True)
        with contextlib.closing(pool):
            if replies is None:
                solved = play_solutions(pool, seeds, tasks, MAX_REPLIES)
                return [episode.outputs for episode in solved]
            player = follow({row: _turned(replies, row) for row in seeds})
            return play_rows(pool, seeds, tasks, player, MAX_REPLIES)


def any_reply_is_answered(subject: Subject) -> Iterator[str]:
    """Any text is answered by a step."""
    for split in SPLITS:
        for row, episode in enumerate(subject.play(split, NUM_EPISODES, HOSTILE)):
            if episode[-1].failure is not None:
                yield f"{split}, seed {row}, {_last_reply(row, episode)}: " + (
                    episode[-1].failure
                )


def episodes_repeat(subject: Subject) -> Iterator[str]:
    """The same seed, task and replies give the same episode, in any process."""
    for split in SPLITS:
        for replies in (HOSTILE, None):
            first, again = (
                subject.play(split, NUM_EPISODES, replies) for _ in range(2)
            )
            for row, pair in enumerate(zip(first, again, strict=True)):
                for turn, (one, other) in enumerate(zip(*pair, strict=False)):
                    if one != other:
                        yield (
                            f"{split}, seed {row}: after {turn} replies it shows "
                            f"{_short(one)}, and in another process {_short(other)}"
                        )
                        break


def splits_are_apart(subject: Subject) -> Iterator[str]:
    """Training and validation have no problem in common."""
    texts = [
        {episode[0].text for episode in subject.play(split, NUM_BEGINNINGS)}
        for split in SPLITS
    ]
    # Where all games begin alike the beginning does not tell them apart.
    if len(set.union(*texts)) > 1:
        for text in sorted(set.intersection(*texts))[:1]:
            yield (
                f"games of {TRAINING} and of {VALIDATION} begin with "
                f"{reprlib.repr(text)}; choose the problems by `split`"
            )


def solutions_win(subject: Subject) -> Iterator[str]:
    """Its solutions win, in no more replies than it says."""
    for split in SPLITS:
        game = subject.games[split]
        for row, episode in enumerate(subject.play(split, NUM_EPISODES, None)):
            place, num_replies = f"{split}, seed {row}", len(episode) - 1
            if episode[-1].failure is not None:
                yield f"{place}: {episode[-1].failure}"
            elif num_replies == 0:
                if game.is_solvable:
                    yield f"{place}: `solution` is empty, but `is_solvable` is True"
            elif not episode[-1].info.get("success", False):
                yield (
                    f"{place}: after the {num_replies} replies of its solution "
                    "info['success'] is not True"
                )
            elif (game.longest_solution or num_replies) < num_replies:
                yield (
                    f"{place}: its solution takes {num_replies} replies, "
                    f"longest_solution is {game.longest_solution}"
                )


def expert_answers(subject: Subject) -> Iterator[str]:
    """Its expert, if it has one, answers every call."""
    for split in SPLITS:
        for row, episode in enumerate(subject.play(split, NUM_EPISODES, None)):
            if episode[-1].failure is not None:
                yield f"{split}, seed {row}: {episode[-1].failure}"


def metrics_are_given(subject: Subject) -> Iterator[str]:
    """Every number that `metrics` names is in the last step of an episode."""
    for episode in subject.play(TRAINING, NUM_EPISODES, HOSTILE):
        last = episode[-1]
        if last.terminated or last.truncated:
            for name in set(subject.games[TRAINING].metrics) - set(last.info):
                yield f"info[{name!r}] is missing after {len(episode) - 1} replies"


CHECKS: tuple[Callable[[Subject], Iterator[str]], ...] = (
    any_reply_is_answered,
    episodes_repeat,
    splits_are_apart,
    solutions_win,
    metrics_are_given,
)
# What an agent's expert does is demonstrated, won or not.
AGENT_CHECKS = tuple(
    expert_answers if check is solutions_win else check for check in CHECKS
)


def _turned(replies: Sequence[str], row: int) -> list[str]:
    start = row % max(len(replies), 1)
    return [*replies[start:], *replies[:start]]


def _last_reply(row: int, episode: Sequence[WorkerResponse]) -> str:
    if len(episode) == 1:
        return "at the start"
    return f"reply {reprlib.repr(_turned(HOSTILE, row)[len(episode) - 2])}"


def _short(answer: WorkerResponse) -> str:
    if answer.failure is not None:
        return answer.failure
    return f"{reprlib.repr(answer.text)} (reward {answer.reward:g}, {answer.info})"
