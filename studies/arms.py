"""Arms: settings that are run with several seeds, and those that studies share.

In: nothing. Out: `Arm`s. An arm's name says how it differs from the preset; an arm that
several studies name is run once.
"""

import dataclasses
from collections.abc import Mapping

GAMES = {"sokoban": "Sokoban", "frozen_lake": "FrozenLake", "bandit": "Bandit"}
ESTIMATORS = {"ppo": "PPO", "grpo": "GRPO"}
# Levels of other kinds than those of training, by game. Of two boxes on 8x8 the model
# solves none.
SUITES = {
    "sokoban": ("FrozenLake",),
    "frozen_lake": ("FrozenLake-5x5", "FrozenLake-6x6"),
    "bandit": ("Bandit-TestNames", "Bandit-Reversed"),
}
_VARIANTS = {"starpo": "vanilla", "starpo_s": "StarPO-S"}
# Iterations of the gradient by spread: the first, those in the middle, and the last.
_MEASURE_GRADIENTS = {
    "diagnostics.gradient_every": 20,
    "diagnostics.gradient_buckets": 4,
}


@dataclasses.dataclass(frozen=True)
class Arm:
    """One setting that is run with several seeds.

    Attributes:
      name: of its folder and file; begins with the game.
      label: for tables and figures.
      game: entry of the task files.
      size: preset of the model, see `configs/sizes.py`.
      presets: behind the task file, beside the size.
      settings: further keys.
      num_seeds: 0 to this less one.
      suite: entries of its game's generalisation suite that it plays after training.
      is_sft: it is fine-tuned on solved episodes instead.
    """

    name: str
    label: str
    game: str
    size: str = "study"
    presets: str = ""
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict, hash=False)
    num_seeds: int = 5
    suite: tuple[str, ...] = ()
    is_sft: bool = False

    @property
    def seeds(self) -> list[int]:
        return list(range(self.num_seeds))


def vanilla(game: str, estimator: str) -> Arm:
    """StarPO without a filter, with KL and a symmetric clip."""
    is_sokoban = game == "sokoban"
    return make_arm(
        game,
        estimator,
        "starpo",
        settings=_MEASURE_GRADIENTS if is_sokoban else {},
        suite=SUITES[game] if is_sokoban and estimator == "ppo" else (),
    )


def starpo_s(game: str, estimator: str = "ppo") -> Arm:
    """StarPO-S; with PPO it plays levels of other kinds, too."""
    suite = SUITES[game] if estimator == "ppo" else ()
    return make_arm(game, estimator, "starpo_s", suite=suite)


def kept(estimator: str, fraction: float) -> Arm:
    """StarPO-S on Sokoban with another share of the groups; 25 % is StarPO-S itself."""
    if fraction == 0.25:
        return starpo_s("sokoban", estimator)
    return make_arm(
        "sokoban",
        estimator,
        "starpo_s",
        f"keep{100 * fraction:.0f}",
        f"{fraction:.0%} kept",
        {"filter.keep_fraction": fraction},
    )


def make_arm(
    game: str,
    estimator: str,
    variant: str,
    suffix: str = "",
    label: str = "",
    settings: Mapping[str, object] | None = None,
    **options,
) -> Arm:
    """An arm named by its parts; `suffix` and `label` tell of its settings."""
    name = "-".join(filter(None, (game, variant, estimator, suffix)))
    base = f"{GAMES[game]}, {ESTIMATORS[estimator]}, {_VARIANTS[variant]}"
    return Arm(
        name=name,
        label=", ".join(filter(None, (base, label))),
        game=game,
        presets=f"{variant},{estimator}",
        settings=settings or {},
        **options,
    )
