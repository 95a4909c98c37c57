"""Checks of a host game against its contract, in worker processes as in training.

In: a game and what it says of itself. Out: for every check its sentence, and what
breaks it; `launch.check` prints them.
"""

import contextlib
import dataclasses
import functools
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from ragen_jax.host_games.base import SPLITS, TRAINING, VALIDATION, HostGame
from ragen_jax.host_games.workers.episodes import follow, play_rows, play_solutions
from ragen_jax.host_games.workers.pool import GameSpec, Pool, WorkerResponse

# Replies that few games expect.
HOSTILE = ("", " ", "?", "x" * 2000, "((((", "a || b", "\x00", "é 日本 🎲", "finish[")
# Rows of a game: each begins with another of these replies.
NUM_EPISODES = len(HOSTILE)
# Beginnings, at least, that are compared between training and validation.
NUM_BEGINNINGS = 128
MAX_REPLIES = 40

Episodes = Sequence[Sequence[WorkerResponse]]


@dataclasses.dataclass(frozen=True)
class Played:
    """Episodes of a split, row by row; of each all answers, that of the reset first.

    Attributes:
      hostile: the replies are those of `HOSTILE`, from another one on in every row.
      solved: the replies are those of the game's solution.
      beginnings: there are no replies.
    """

    hostile: Episodes = ()
    solved: Episodes = ()
    beginnings: Episodes = ()


@dataclasses.dataclass(frozen=True)
class Subject:
    """A game under test.

    Attributes:
      spec: how workers make it.
      games: one of each split, for what it says of itself.
    """

    spec: GameSpec
    games: Mapping[str, HostGame]

    @functools.cached_property
    def first(self) -> Mapping[str, Played]:
        """Split -> its episodes, played once for all checks."""
        parts = ("hostile", "solved", "beginnings")
        return {split: self.play(split, *parts) for split in SPLITS}

    @functools.cached_property
    def again(self) -> Mapping[str, Played]:
        """The same in new processes, which play the solutions first."""
        return {split: self.play(split, "solved", "hostile") for split in SPLITS}

    def play(self, split: str, *parts: str) -> Played:
        """Parts of `Played`, one after the other in the same new processes."""
        game = self.games[split]
        num_tasks = game.num_tasks
        num_rows = min(NUM_EPISODES, game.max_rows or NUM_EPISODES)
        pool = Pool(self.spec, split, num_rows, reads_images=True)

        def problems(start: int = 0) -> tuple[Sequence[int], Sequence[int | None]]:
            seeds = range(start, start + num_rows)
            return seeds, [seed % num_tasks if num_tasks else None for seed in seeds]

        def hostile() -> Episodes:
            player = follow({row: _turned(row) for row in range(num_rows)})
            return play_rows(pool, *problems(), player, MAX_REPLIES)

        def solved() -> Episodes:
            return [x.outputs for x in play_solutions(pool, *problems())]

        def beginnings() -> Episodes:
            starts = range(0, NUM_BEGINNINGS, num_rows)
            return [[x] for start in starts for x in pool.reset(*problems(start))]

        play = {"hostile": hostile, "solved": solved, "beginnings": beginnings}
        with contextlib.closing(pool):
            return Played(**{part: play[part]() for part in parts})


def any_reply_is_answered(subject: Subject) -> Iterator[str]:
    """Any text is answered by a step."""
    for split in SPLITS:
        for row, episode in enumerate(subject.first[split].hostile):
            if episode[-1].failure is not None:
                yield f"{split}, seed {row}, {_last_reply(row, episode)}: " + (
                    episode[-1].failure
                )
        for seed, (beginning,) in enumerate(subject.first[split].beginnings):
            # Those of the episodes above are told.
            if beginning.failure is not None and seed > row:
                yield f"{split}, seed {seed}, at the start: {beginning.failure}"
                break


def episodes_repeat(subject: Subject) -> Iterator[str]:
    """The same seed, task and replies give the same episode, in any process."""
    for split in SPLITS:
        first, again = subject.first[split], subject.again[split]
        both = (first.hostile, again.hostile), (first.solved, again.solved)
        for one, other in both:
            for row, pair in enumerate(zip(one, other, strict=True)):
                for turn, (mine, theirs) in enumerate(zip(*pair, strict=False)):
                    if mine != theirs:
                        yield (
                            f"{split}, seed {row}: after {turn} replies it shows "
                            f"{_short(mine)}, and {_short(theirs)} in a process that "
                            "has played other episodes"
                        )
                        break


def splits_are_apart(subject: Subject) -> Iterator[str]:
    """Training and validation have no problem in common."""
    texts = [
        {x.text for (x,) in subject.first[split].beginnings if x.failure is None}
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
        for row, episode in enumerate(subject.first[split].solved):
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
        for row, episode in enumerate(subject.first[split].solved):
            if episode[-1].failure is not None:
                yield f"{split}, seed {row}: {episode[-1].failure}"


def metrics_are_given(subject: Subject) -> Iterator[str]:
    """Every number that `metrics` names is in the last step of an episode."""
    for episode in subject.first[TRAINING].hostile:
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


def _turned(row: int) -> list[str]:
    return [*HOSTILE[row:], *HOSTILE[:row]]


def _last_reply(row: int, episode: Sequence[WorkerResponse]) -> str:
    if len(episode) == 1:
        return "at the start"
    return f"reply {reprlib.repr(_turned(row)[len(episode) - 2])}"


def _short(answer: WorkerResponse) -> str:
    if answer.failure is not None:
        return answer.failure
    return f"{reprlib.repr(answer.text)} (reward {answer.reward:g}, {answer.info})"
