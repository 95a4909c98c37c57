"""Runs that were never trained, for studies that need some."""

from studies.arms import Arm
from studies.records import RunRecord

ONE = Arm("sokoban-one", "Sokoban, one", "sokoban")
OTHER = Arm("sokoban-other", "Sokoban, other", "sokoban")
SUCCESS = "val-env/*/success"


def run(seed=0, final=0.5, **curves) -> RunRecord:
    """A run whose held-out success goes from 0.25 to `final`.

    `curves`: lists of values from iteration 1 on, by metric, with `__` for the slash
    and `any` for the game.
    """
    named = {
        name.replace("__", "/").replace("any", "*"): dict(enumerate(values, 1))
        for name, values in curves.items()
    }
    return RunRecord(
        seed=seed, seconds=40.0, curves={SUCCESS: {0: 0.25, 10: final}} | named
    )


def runs_of(*finals: float) -> list[RunRecord]:
    """A run per final success; the seeds count from 0."""
    return [run(seed, final) for seed, final in enumerate(finals)]
