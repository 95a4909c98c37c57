"""Generalisation suites: environments other than the one a policy was trained on.

In: the name of a suite, a policy's configuration. Out: evaluation tasks with theirs.
Every entry uses the seeds of any other evaluation; training never plays its levels.

To add a suite or an entry, add it to `_GAMES` or, of a host game, to
`_HOST_ENTRIES`. The suite `all` has every entry once.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from ragen_jax.evaluation.results import EvalResult
from ragen_jax.registry.functions import did_you_mean
from ragen_jax.tasks.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class EvalTask:
    """An entry of an evaluation.

    Attributes:
      spec: its environment; the label is its name in tables and metrics. `host` of a
        host game is empty before a policy's configuration is known.
      changes: keys of the policy's configuration, dotted, and other values for them.
      reply_tokens: least `rollout.max_reply_tokens`; a policy's own may be more.
      note: description shown in the table.
      pocket_note: shown as well if the built-in model plays.
      settings, play: everything that scores depend on, JSON-able, and how it is played
        (by a policy also with other parameters); None before a player is bound.
    """

    spec: EnvSpec
    changes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    reply_tokens: int = 1
    note: str = ""
    pocket_note: str = ""
    settings: Mapping[str, Any] | None = None
    play: Callable[..., EvalResult] | None = None

    @property
    def name(self) -> str:
        """Name in tables and metrics."""
        return self.spec.label


def find_suite(name: str) -> tuple[EvalTask, ...]:
    """The entries of a suite.

    Raises:
      ValueError: there is no such suite.
    """
    if name not in SUITES:
        raise ValueError(
            f"--suite={name!r} is unknown.{did_you_mean(name, SUITES)} Choose one of "
            f"{', '.join(SUITES)} (ragen_jax/evaluation/suites.py has the table)"
        )
    return SUITES[name]


def configure(
    config: ConfigDict, entry: EvalTask, overrides: Collection[str] = ()
) -> ConfigDict:
    """A changed copy of a configuration that plays an entry.

    Args:
      config: the policy's.
      entry: of a suite.
      overrides: dotted paths that the user set; they win over the entry's changes.
    """
    changed = config.copy_and_resolve_references()
    with changed.unlocked(), changed.ignore_type():
        is_host = entry.spec.host is not None
        changed.env["host" if is_host else "name"] = entry.spec.name
        if not is_host:
            changed.env.host = None
        changed.env.kwargs = ConfigDict(dict(entry.spec.kwargs))
        changed.env.params = ConfigDict(dict(entry.spec.params))
        changed.env.mix = None
        # Bonuses may need landmarks that another environment lacks, and do not change
        # success.
        changed.bonus.update(dict.fromkeys(changed.bonus))
        reply_tokens = max(entry.reply_tokens, config.rollout.max_reply_tokens)
        changes = {"rollout.max_reply_tokens": reply_tokens, **entry.changes}
        changed.update_from_flattened_dict(
            {k: v for k, v in changes.items() if k not in overrides}
        )
    return changed


# Thoughts of `pocket_worlds` about games take more tokens than replies without.
_REPLY_TOKENS = {"countdown": 32, "cube2x2": 40, "sudoku": 48}


def _entry(
    label: str,
    env: str,
    kwargs: Mapping[str, object] | None = None,
    params: Mapping[str, object] | None = None,
    **settings: Any,
) -> EvalTask:
    """An entry of `SUITES`; `settings` are the changes and the notes."""
    spec = EnvSpec(
        env, kwargs=kwargs or {}, params=params or {}, label=label, path="suite"
    )
    return EvalTask(spec, **{"reply_tokens": _REPLY_TOKENS.get(env, 1)} | settings)


def _host_entry(
    label: str,
    game: str,
    *,
    max_turns: int,
    max_observation_tokens: int,
    reply_tokens: int = 32,
    kwargs: Mapping[str, object] | None = None,
    changes: Mapping[str, object] | None = None,
    note: str,
) -> EvalTask:
    """An entry of `SUITES` that is played in Python, a reply a turn.

    The numbers are those of the game's file in `configs`.
    """
    entry = _entry(label, game, kwargs, note=note, reply_tokens=reply_tokens)
    limits = {
        "host.wrappers": None,
        "host.max_observation_tokens": max_observation_tokens,
        "rollout.max_turns": max_turns,
        "rollout.max_actions_per_turn": 1,
        "rollout.max_actions_per_episode": max_turns,
    }
    spec = dataclasses.replace(entry.spec, host={})
    return dataclasses.replace(entry, spec=spec, changes=limits | dict(changes or {}))


# One action, once.
_ONE_CHOICE = {
    "rollout.max_turns": 1,
    "rollout.max_actions_per_turn": 1,
    "rollout.max_actions_per_episode": 1,
}
# Levels that take longer than those of training: best play reaches 99.6 % of the goals
# on 8x8 Sokoban with two boxes, where training's 10 actions would allow 48 %.
_LONG = {"rollout.max_turns": 6, "rollout.max_actions_per_episode": 24}


def _window(num_turns: int) -> dict[str, object]:
    return {"rollout.context": "single_turn", "rollout.context_turns": num_turns}


def _moves(number: int) -> dict[str, object]:
    """`number` turns of one action each, without history."""
    return {
        "rollout.max_turns": number,
        "rollout.max_actions_per_turn": 1,
        "rollout.max_actions_per_episode": number,
        **_window(1),
    }


# A row of 9 cells has too many values for a table; ten boards are a long dialogue.
_SUDOKU_9X9 = {
    "rollout.max_turns": 10,
    "rollout.max_actions_per_episode": 40,
    "prompt.tokenization": "symbols",
    **_window(1),
}
_SOKOBAN = _entry("Sokoban", "sokoban", note="6x6, one box: as trained.")
_FROZEN_LAKE = _entry("FrozenLake", "frozen_lake", note="4x4, success rate 0.8.")
_SEEN = "The pocket model's warm start has shown it this game; training has not."
_NAMES_SEEN = (
    "Chance is 50 %. A control for the pocket model: its warm start has shown it these "
    "names, but arms were taken at random there, and training never shows them."
)

_GAMES: Mapping[str, tuple[EvalTask, ...]] = {
    "sokoban": (
        _SOKOBAN,
        _entry(
            "Sokoban-NewVocabulary",
            "sokoban",
            {"symbols": ("W", ".", "T", "D", "B", "A", "@")},
            note="Same levels as Sokoban, every symbol another.",
            pocket_note="A control for the pocket model: it never saw these symbols, "
            "and its wording has no legend.",
        ),
        _entry(
            "Sokoban-8x8-TwoBoxes",
            "sokoban",
            {"rows": 8, "cols": 8, "num_boxes": 2},
            changes=_LONG,
            note="Larger, two boxes, 6 turns and 24 actions.",
        ),
        dataclasses.replace(
            _FROZEN_LAKE,
            note="Another game: 4x4, success rate 0.8.",
            pocket_note=_SEEN,
        ),
    ),
    "bandit": (
        _entry(
            "Bandit",
            "bandit",
            changes=_ONE_CHOICE,
            note="The names of training (24 levels in all). Chance is 50 %.",
        ),
        _entry(
            "Bandit-TestNames",
            "bandit",
            {"split": "test"},
            changes=_ONE_CHOICE,
            note="Names that training never shows.",
            pocket_note=_NAMES_SEEN,
        ),
        _entry(
            "Bandit-Reversed",
            "bandit",
            {"reverse": True},
            changes=_ONE_CHOICE,
            note="The name that sounds safe pays more: a policy that reads names as in "
            "training is wrong here. Chance is 50 %.",
        ),
    ),
    "frozen_lake": (
        dataclasses.replace(_FROZEN_LAKE, note="4x4, success rate 0.8: as trained."),
        _entry(
            "FrozenLake-NoSlip",
            "frozen_lake",
            params={"success_rate": 1.0},
            note="Same levels as FrozenLake, moves never slip.",
        ),
        _entry(
            "FrozenLake-HalfSlip",
            "frozen_lake",
            params={"success_rate": 0.5},
            note="Same levels as FrozenLake, every second move slips.",
        ),
        _entry(
            "FrozenLake-ThirdSlip",
            "frozen_lake",
            params={"success_rate": 1 / 3},
            note="Same levels as FrozenLake, gymnasium's slip: each of three "
            "directions is as likely.",
        ),
        _entry("FrozenLake-5x5", "frozen_lake", {"size": 5}, note="Larger."),
        _entry(
            "FrozenLake-6x6",
            "frozen_lake",
            {"size": 6},
            changes=_LONG,
            note="Larger still, 6 turns and 24 actions.",
        ),
    ),
    "countdown": (
        _entry(
            "Countdown-UpTo9",
            "countdown",
            {"max_number": 9},
            changes=_ONE_CHOICE,
            note="Three numbers up to 9: what the pocket model learns.",
        ),
        _entry(
            "Countdown",
            "countdown",
            changes=_ONE_CHOICE,
            note="Three numbers up to 99, one answer.",
        ),
        _entry(
            "Countdown-Signs",
            "countdown",
            {"signs_only": True},
            changes=_ONE_CHOICE,
            note="Levels that + and - alone solve, as in RAGEN.",
        ),
        _entry(
            "Countdown-FourNumbers",
            "countdown",
            {"num_numbers": 4},
            changes=_ONE_CHOICE,
            note="Four numbers.",
        ),
    ),
    "cube2x2": (
        _entry(
            "Cube2x2",
            "cube2x2",
            {"max_distance": 3},
            note="One to three quarter turns from solved.",
        ),
        _entry(
            "Cube2x2-Four",
            "cube2x2",
            {"min_distance": 4, "max_distance": 4},
            note="Four quarter turns from solved.",
        ),
    ),
    "sudoku": (
        _entry("Sudoku", "sudoku", note="4x4, four to eight empty cells."),
        _entry(
            "Sudoku-TenBlanks",
            "sudoku",
            {"min_blanks": 10, "max_blanks": 10},
            note="4x4, ten empty cells.",
        ),
        _entry(
            "Sudoku-9x9",
            "sudoku",
            {"size": 9, "min_blanks": 30, "max_blanks": 30},
            changes=_SUDOKU_9X9,
            note="9x9, 30 empty cells, 10 turns of one board, 40 actions: a control.",
        ),
    ),
    "game2048": (
        _entry(
            "Game2048",
            "game2048",
            {"goal": 32},
            {"goal_reward": 10.0},
            changes=_moves(24),
            note="3x3, goal 32, one move a turn, 24 moves.",
        ),
        _entry(
            "Game2048-Goal64",
            "game2048",
            {"goal": 64},
            {"goal_reward": 10.0},
            changes=_moves(40),
            note="3x3, goal 64, 40 moves.",
        ),
    ),
}


# The suite of each has the name of its game.
_HOST_ENTRIES = (
    _host_entry(
        "LeanGame",
        "lean",
        max_turns=7,
        max_observation_tokens=160,
        note="Propositional proofs of up to six tactics, 7 turns.",
    ),
    _host_entry(
        "SearchQA",
        "search",
        max_turns=6,
        max_observation_tokens=160,
        note="Questions of one or two hops, 5 searches.",
    ),
    _host_entry(
        "WebShop",
        "webshop",
        kwargs={"page_size": 3},
        max_turns=7,
        max_observation_tokens=256,
        reply_tokens=48,
        changes=_window(2),
        note="200 products, three on a page, 7 turns.",
    ),
    _host_entry(
        "Alfworld",
        "alfworld",
        max_turns=10,
        max_observation_tokens=144,
        changes=_window(3),
        note="Generated houses, 10 turns.",
    ),
    _host_entry(
        "MathQA",
        "math",
        max_turns=1,
        max_observation_tokens=256,
        note="Generated word problems of two steps, one answer.",
    ),
    _host_entry(
        "Coding",
        "coding",
        max_turns=1,
        max_observation_tokens=512,
        reply_tokens=256,
        note="The built-in tasks of validation, one answer.",
    ),
)


def _once(suites: Iterable[tuple[EvalTask, ...]]) -> tuple[EvalTask, ...]:
    """The entries of all suites, the first of each name."""
    by_name = {}
    for entry in itertools.chain.from_iterable(suites):
        by_name.setdefault(entry.name, entry)
    return tuple(by_name.values())


_ALL = {**_GAMES, **{entry.spec.name: (entry,) for entry in _HOST_ENTRIES}}
SUITES = {**_ALL, "all": _once(_ALL.values())}
