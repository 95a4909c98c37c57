"""The table of studies, in the order of the page of findings.

To add a study, write its protocol in one of the files beside this one, commit it, and
add it to `STUDIES`; then run it.
"""

from collections.abc import Collection

from ragen_jax.registry.functions import did_you_mean
from studies import ours, ragen2, real, shaping, starpo
from studies.arms import Arm
from studies.claims import Study

ALL = "all"


def distinct_arms(studies: Collection[Study]) -> tuple[Arm, ...]:
    """The arms of several studies, each once.

    Raises:
      ValueError: two of them have one name and other settings.
    """
    arms: dict[str, Arm] = {}
    for study in studies:
        for arm in study.arms:
            if arms.setdefault(arm.name, arm) != arm:
                raise ValueError(f"two arms are named {arm.name}, with other settings")
    return tuple(arms.values())


_TRAINED = (
    starpo.COLLAPSE,
    starpo.KEEP,
    starpo.CLIP,
    starpo.STARPO_S,
    shaping.REPLIES,
    shaping.ACTIONS,
    shaping.ONLINE,
    shaping.THINKING,
    shaping.SFT,
    ragen2.TOP_P,
    ragen2.SLIP,
    ragen2.BUCKETS,
)
_LEARNING = tuple(arm for arm in distinct_arms(_TRAINED) if not arm.is_sft)
# Settings that change what can be reached, or what a diagnostic counts.
_INCOMPARABLE = ("env.", "rollout.", "learner.", "prompt.", "bonus.")
_COMPARABLE = tuple(
    arm
    for arm in _LEARNING
    if not any(key.startswith(_INCOMPARABLE) for key in arm.settings)
)
_STATING = tuple(
    arm
    for arm in _LEARNING
    if arm.game != "bandit" and arm.settings.get("prompt.thinking", True)
)

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *_TRAINED,
        ours.DIVISION,
        ragen2.make_correlates(_COMPARABLE),
        ours.make_warnings(_LEARNING),
        ours.make_truth(_STATING),
        real.REAL,
    )
}
# Studies whose model has to be fetched before.
_FETCHED = {real.REAL.name}


def find_studies(names: str) -> list[Study]:
    """The studies of "collapse,keep"; for "all" those of the built-in model.

    Raises:
      ValueError: there is no such study.
    """
    chosen = [name.strip() for name in names.split(",")]
    if ALL in chosen:
        return [study for name, study in STUDIES.items() if name not in _FETCHED]
    for name in chosen:
        if name not in STUDIES:
            raise ValueError(
                f"there is no study {name!r}.{did_you_mean(name, STUDIES)} Choose "
                f"some of {', '.join(STUDIES)}, with commas between them, or {ALL}"
            )
    return [STUDIES[name] for name in dict.fromkeys(chosen)]
