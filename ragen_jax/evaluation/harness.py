"""What a policy on this machine is measured on: its own games, or those of a suite.

In: a trained policy and, if any, the name of a suite. Out: contests, all checked before
the first is played.
"""

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from ragen_jax.evaluation.evaluate import evaluate
from ragen_jax.evaluation.load import Trained
from ragen_jax.evaluation.results import Score, Scorecard
from ragen_jax.evaluation.suites import SuiteEntry, configure, find_suite, note_of
from ragen_jax.program import Task, build_task
from ragen_jax.sharding import make_mesh
from ragen_jax.tasks import Entry, build_game, check_fit, environments, play_budget

Records = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Contest:
    """A game that somebody is measured on.

    Attributes:
      name: of the row in the table.
      played: what exactly is played, JSON-able.
      note: what the table says beside the numbers.
      play: `() -> (metrics, episodes)`, the metrics by their plain names.
    """

    name: str
    played: dict[str, Any]
    note: str
    play: Callable[[], tuple[dict[str, float], Records]]

    def score(self) -> tuple[Score, Records]:
        """Play it."""
        began = time.perf_counter()
        metrics, records = self.play()
        seconds = time.perf_counter() - began
        return Score(self.name, self.played, self.note, metrics, seconds), records


def policy_contests(
    trained: Trained, suite: str | None, overrides: Collection[str] = ()
) -> list[Contest]:
    """The contests of a policy.

    Args:
      trained: the policy.
      suite: entry of `suites.SUITES`; None: the games of its configuration.
      overrides: dotted paths that the user set.

    Raises:
      ValueError: there is no such suite, or a game does not fit the model.
    """
    config = trained.config
    if suite is None:
        entries = environments(config)
        return [
            _contest(trained, task, describe(config, entry), "")
            for task, entry in zip(trained.program.tasks, entries, strict=True)
        ]
    is_pocket = config.model.path == "pocket"
    return [
        _suite_contest(trained, suite, entry, overrides, is_pocket)
        for entry in find_suite(suite)
    ]


def hold(
    contests: Sequence[Contest],
    card: Scorecard,
    *,
    say: Callable[[str], None],
    keep_episodes: bool,
) -> Records:
    """Play what the card does not hold yet, and say how it went.

    Args:
      contests: in this order.
      card: gets the scores.
      say: prints a line.
      keep_episodes: return the episodes of all; those that the card holds are played
        again then.
    """
    records: Records = []
    for number, contest in enumerate(contests, 1):
        score = card.find(contest.name, contest.played)
        if score is None or keep_episodes:
            score, own = contest.score()
            card.add(score)
            several = {"environment": contest.name} if len(contests) > 1 else {}
            records += [several | record for record in own]
            ending = f" ({score.seconds:.1f} s)"
        else:
            ending = " (measured before)"
        place = f"{number}/{len(contests)} {score.name}: " if len(contests) > 1 else ""
        say(place + sentence(score.metrics) + ending)
    return records


def sentence(metrics: Mapping[str, float]) -> str:
    """A success next to what is possible."""
    success, low, high, ceiling, regret = (
        metrics[name]
        for name in ("success", "success_low", "success_high", "ceiling", "regret")
    )
    return (
        f"success {success:.1%} (95 % interval {low:.1%} to {high:.1%}), "
        f"best possible {ceiling:.1%}, regret {regret:.1%}"
    )


def suite_configs(
    config: ConfigDict, suite: str | None, overrides: Collection[str]
) -> list[tuple[ConfigDict, Entry, str]]:
    """What plays each entry of a suite: configuration, game and note.

    None: the games of the configuration itself.
    """
    if suite is None:
        return [(config, entry, "") for entry in environments(config)]
    return [
        (changed, _entry(suite, entry, changed), note_of(entry, is_pocket=False))
        for entry in find_suite(suite)
        for changed in [configure(config, entry, overrides)]
    ]


def describe(config: ConfigDict, entry: Entry) -> dict[str, Any]:
    """What is played, JSON-able."""
    return {
        "environment": entry.name,
        "kwargs": _plain(entry.kwargs),
        "params": _plain(entry.params),
        **vars(play_budget(config)),
        "max_reply_tokens": config.rollout.max_reply_tokens,
    }


def _suite_contest(
    trained: Trained,
    suite: str,
    entry: SuiteEntry,
    overrides: Collection[str],
    is_pocket: bool,
) -> Contest:
    """An entry of a suite, built and checked."""
    program = trained.program
    config = configure(trained.config, entry, overrides)
    place = _entry(suite, entry, config)
    try:
        game = build_game(config, place, program.game.tokenizer)
        check_fit(config, game, program.model)
    except ValueError as error:
        raise ValueError(f"suite {suite!r}, {entry.label}: {error}") from error
    task = build_task(
        config,
        game,
        program.policy,
        make_mesh(**config.mesh),
        index=0,
        num_groups=config.rollout.num_groups,
    )
    note = note_of(entry, is_pocket=is_pocket)
    return _contest(trained, task, describe(config, place), note)


def _entry(suite: str, entry: SuiteEntry, config: ConfigDict) -> Entry:
    path = f"suite {suite}"
    groups = config.rollout.num_groups
    return Entry(entry.env, groups, entry.kwargs, entry.params, entry.label, path)


def _contest(trained: Trained, task: Task, played: dict, note: str) -> Contest:
    name = task.game.name
    program = dataclasses.replace(trained.program, tasks=(task,))

    def play() -> tuple[dict[str, float], Records]:
        metrics, rollouts = evaluate(program, trained.params)
        prefix = f"val-env/{name}/"
        plain = {key.removeprefix(prefix): value for key, value in metrics.items()}
        return plain, program.episodes(rollouts)

    return Contest(name, played, note, play)


def _plain(values: Mapping[str, object]) -> dict[str, Any]:
    """As JSON reads it back: tuples are lists."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
    }
