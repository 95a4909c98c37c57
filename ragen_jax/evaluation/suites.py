"""Generalisation suites: other games than the one a policy was trained on.

In: the name of a suite and the configuration of a policy. Out: one configuration per
entry, to be evaluated like the policy's own. Every entry plays the same validation seed
range as any evaluation; training never sees a level of it.

To add a suite or an entry, add it to `SUITES`.
"""

import dataclasses
from collections.abc import Collection, Mapping

from ml_collections import ConfigDict


@dataclasses.dataclass(frozen=True)
class SuiteEntry:
    """One game of a suite.

    Attributes:
      label: its name in tables and metrics.
      env: name in the table of `envs/__init__.py`.
      kwargs: arguments of its constructor.
      params: values of its `EnvParams` that differ from its own defaults.
      budget: keys of `rollout` that it needs in place of the policy's own.
      note: what it asks.
      pocket_note: what else to know where the built-in model plays it.
    """

    label: str
    env: str
    kwargs: Mapping[str, object] = dataclasses.field(default_factory=dict)
    params: Mapping[str, object] = dataclasses.field(default_factory=dict)
    budget: Mapping[str, int] = dataclasses.field(default_factory=dict)
    note: str = ""
    pocket_note: str = ""


def find_suite(name: str) -> tuple[SuiteEntry, ...]:
    """The entries of a suite.

    Raises:
      ValueError: there is no such suite.
    """
    if name not in SUITES:
        raise ValueError(
            f"no suite {name!r}; choose one of {', '.join(SUITES)} "
            "(ragen_jax/evaluation/suites.py has the table)"
        )
    return SUITES[name]


def configure(
    config: ConfigDict, entry: SuiteEntry, overrides: Collection[str] = ()
) -> ConfigDict:
    """A configuration that plays an entry: a changed copy.

    Args:
      config: the policy's.
      entry: what is played.
      overrides: dotted paths that the user set; they win over the entry's budget.
    """
    changed = config.copy_and_resolve_references()
    with changed.unlocked(), changed.ignore_type():
        changed.env.name = entry.env
        changed.env.kwargs = ConfigDict(dict(entry.kwargs))
        changed.env.params = ConfigDict(dict(entry.params))
        changed.env.mix = None
        # They read what other games do not have, and success does not hear of them.
        changed.bonus.update(dict.fromkeys(changed.bonus))
        for name, value in entry.budget.items():
            if f"rollout.{name}" not in overrides:
                changed.rollout[name] = value
    return changed


def note_of(entry: SuiteEntry, *, is_pocket: bool) -> str:
    """What the table says beside an entry's numbers."""
    return " ".join(filter(None, (entry.note, entry.pocket_note if is_pocket else "")))


# One action, once.
_ONE_CHOICE = {
    "max_turns": 1,
    "max_actions_per_turn": 1,
    "max_actions_per_episode": 1,
}
# Levels that take longer than those of training: best play reaches 99.6 % of the goals
# on 8x8 Sokoban with two boxes, where training's 10 actions would allow 48 %.
_LONG = {"max_turns": 6, "max_actions_per_episode": 24}

_SOKOBAN = SuiteEntry("Sokoban", "sokoban", note="6x6, one box: as trained.")
_FROZEN_LAKE = SuiteEntry("FrozenLake", "frozen_lake", note="4x4, success rate 0.8.")
_SEEN = "The pocket model's warm start has shown it this game; training has not."
_NAMES_SEEN = (
    "Chance is 50 %. A control for the pocket model: its warm start has shown it these "
    "names, but arms were taken at random there, and training never shows them."
)

SUITES: Mapping[str, tuple[SuiteEntry, ...]] = {
    "sokoban": (
        _SOKOBAN,
        SuiteEntry(
            "Sokoban-NewVocabulary",
            "sokoban",
            {"symbols": ("W", ".", "T", "D", "B", "A", "@")},
            note="Same levels as Sokoban, every symbol another.",
            pocket_note="A control for the pocket model: it never saw these symbols, "
            "and its wording has no legend.",
        ),
        SuiteEntry(
            "Sokoban-8x8-TwoBoxes",
            "sokoban",
            {"rows": 8, "cols": 8, "num_boxes": 2},
            budget=_LONG,
            note="Larger, two boxes, 6 turns and 24 actions.",
        ),
        dataclasses.replace(
            _FROZEN_LAKE,
            note="Another game: 4x4, success rate 0.8.",
            pocket_note=_SEEN,
        ),
    ),
    "bandit": (
        SuiteEntry(
            "Bandit",
            "bandit",
            budget=_ONE_CHOICE,
            note="The names of training (24 levels in all). Chance is 50 %.",
        ),
        SuiteEntry(
            "Bandit-TestNames",
            "bandit",
            {"split": "test"},
            budget=_ONE_CHOICE,
            note="Names that training never shows.",
            pocket_note=_NAMES_SEEN,
        ),
        SuiteEntry(
            "Bandit-Reversed",
            "bandit",
            {"reverse": True},
            budget=_ONE_CHOICE,
            note="The name that sounds safe pays more: a policy that reads names as in "
            "training is wrong here. Chance is 50 %.",
        ),
    ),
    "frozen_lake": (
        dataclasses.replace(_FROZEN_LAKE, note="4x4, success rate 0.8: as trained."),
        SuiteEntry(
            "FrozenLake-NoSlip",
            "frozen_lake",
            params={"success_rate": 1.0},
            note="Same levels as FrozenLake, moves never slip.",
        ),
        SuiteEntry(
            "FrozenLake-HalfSlip",
            "frozen_lake",
            params={"success_rate": 0.5},
            note="Same levels as FrozenLake, every second move slips.",
        ),
        SuiteEntry(
            "FrozenLake-ThirdSlip",
            "frozen_lake",
            params={"success_rate": 1 / 3},
            note="Same levels as FrozenLake, gymnasium's slip: each of three "
            "directions is as likely.",
        ),
        SuiteEntry("FrozenLake-5x5", "frozen_lake", {"size": 5}, note="Larger."),
        SuiteEntry(
            "FrozenLake-6x6",
            "frozen_lake",
            {"size": 6},
            budget=_LONG,
            note="Larger still, 6 turns and 24 actions.",
        ),
    ),
}
