"""Protocols: filtering by mass, slippery ice, diagnostics and gradients.

Findings of RAGEN-2, arXiv 2604.06268 (figures 5 to 10).
"""

from studies.arms import ESTIMATORS, Arm, kept, make_arm, vanilla
from studies.claims import Claim, Correlation, Difference, Mean, Study, Trend

_MASSES = (1.0, 0.98, 0.95, 0.9, 0.8, 0.6, 0.4)
_RULES = {"top_p": "linear", "top_p_softmax": "softmax"}


def _top_p(rule: str, mass: float) -> dict[str, object]:
    """Settings of a filter by mass that takes no group without spread."""
    return {
        "filter.rule": rule,
        "filter.keep_fraction": None,
        "filter.top_p": mass,
        "filter.keep_zero": False,
    }


def _mass(rule: str, mass: float) -> Arm:
    """StarPO-S that keeps groups with this share of the spread; 1 keeps all."""
    if mass == 1.0:
        return kept("ppo", 1.0)
    return make_arm(
        "sokoban",
        "ppo",
        "starpo_s",
        f"{rule}{100 * mass:.0f}",
        f"{_RULES[rule]} {mass:g}",
        _top_p(rule, mass),
    )


def _mass_claims():
    for rule, label in _RULES.items():
        ordered = tuple(_mass(rule, mass) for mass in _MASSES)
        yield Claim(
            f"{label}: 0.98 ends above no filter", Difference(ordered[1], ordered[0])
        )
        yield Claim(
            f"{label}: from 0.98 to 0.4 success falls", Trend(ordered[1:], sign=-1)
        )
        yield Claim(
            f"{label}: 0.9 ends above no filter", Difference(ordered[3], ordered[0])
        )


TOP_P = Study(
    name="top_p",
    title="Keeping a share of the spread",
    question="Groups that hold 98, 95, 90, 80, 60 and 40 % of the reward spread, "
    "linearly and after a softmax, and all groups; Sokoban, PPO, no KL, clip 0.2/0.28.",
    paper="Every share below 1 ends above none (13.9 %): 36.5 at 0.98, 22.3 at 0.95, "
    "30.9 at 0.9, 29.9 at 0.8, 18.6 at 0.6, 20.9 at 0.4; a run each, two without "
    "filter (figure 9); its scripts take the softmax.",
    claims=tuple(_mass_claims()),
    columns=("start", "final", "spread", "seconds"),
    values={kept("ppo", 1.0).name: "no filter"},
)

_SLIPS = (0, 20, 50, 80, 100)


def _slippery(slip: int, is_filtered: bool) -> Arm:
    return make_arm(
        "frozen_lake",
        "ppo",
        "starpo_s",
        f"slip{slip}" + ("" if is_filtered else "-all"),
        f"slip {slip} %, " + ("filter 0.9" if is_filtered else "no filter"),
        {"env.params.success_rate": 1 - slip / 100}
        | (_top_p("top_p", 0.9) if is_filtered else {"filter.keep_fraction": 1.0}),
    )


_FILTERED, _UNFILTERED = (
    tuple(_slippery(slip, is_filtered) for slip in _SLIPS)
    for is_filtered in (True, False)
)
SLIP = Study(
    name="slip",
    title="The filter on slippery ice",
    question="FrozenLake, PPO, where 0, 20, 50, 80 and 100 % of the moves slip to a "
    "side: the gain of the linear filter at 0.9 over no filter.",
    paper="The filter gains 6 points without slip, 18 at 5 %, 28 at 20 %, 10 at 50 %, "
    "nothing from 80 % on (figure 6).",
    claims=(
        Claim(
            "The more slip, the less the filter gains",
            Trend(_FILTERED, base=_UNFILTERED, sign=-1),
        ),
        *(
            Claim(
                f"At {slip} % slip the filter ends above none",
                Difference(_FILTERED[i], _UNFILTERED[i]),
            )
            for i, slip in enumerate(_SLIPS[:3])
        ),
    ),
)

_MEASURED = tuple(vanilla("sokoban", estimator) for estimator in ESTIMATORS)


def _bucket_claims():
    for arm, label in zip(_MEASURED, ESTIMATORS.values(), strict=True):
        yield Claim(
            f"{label}: at first the task's gradient rises with the reward spread",
            Mean((arm,), "rise_early"),
        )
        yield Claim(f"{label}: at the end it does, too", Mean((arm,), "rise_late"))
        yield Claim(
            f"{label}: among groups of least spread the regulariser's share grows",
            Mean((arm,), "regulariser_growth"),
        )


BUCKETS = Study(
    name="buckets",
    title="Gradients by reward spread",
    question="Norms of the gradients of task and regulariser (KL and entropy) over "
    "groups in four buckets of reward spread, in the first iteration and the last; "
    "Sokoban, vanilla StarPO. In the first iteration KL has no gradient yet.",
    paper="The task's gradient rises with the spread, about fourfold from the lowest "
    "bucket to the highest (GRPO: 2.7 times); the regulariser's does not depend on it, "
    "and grows from below 1 % of the task's to half of it or more (PPO).",
    claims=tuple(_bucket_claims()),
    columns=("rise_early", "rise_late", "regulariser_growth"),
    drawn=(),
)


def make_correlates(arms: tuple[Arm, ...]) -> Study:
    """The study of arms whose levels, budgets and groups are the same within a game."""
    claims = (
        ("mi_zscore", 1, "standardised information (MI z-score)"),
        ("information", 1, "information per thought"),
        ("conditional_entropy", -1, "entropy of thoughts within a prompt"),
        ("reasoning_entropy", -1, "entropy of thoughts over all prompts"),
        ("entropy", -1, "entropy of the trained tokens"),
        ("spread", 1, "reward spread inside groups"),
        ("grad_norm", -1, "gradient norm"),
    )
    return Study(
        name="correlates",
        title="Which diagnostic goes with success",
        question="Spearman's correlation over the runs of these studies between each "
        "diagnostic at the end of a run and final success, ranked within a game. The "
        "test is over arms; arms with other levels, budgets or groups are left out.",
        paper="MI z-score +0.39, information per thought +0.22, per token 0.00, "
        "conditional entropy -0.14, reasoning entropy -0.11; reward spread +0.63 with "
        "the reward (figure 10). Of the tokens' entropy and of gradient norms it has "
        "none.",
        claims=tuple(
            Claim(
                f"Success {'rises' if sign > 0 else 'falls'} with the {text}",
                Correlation(arms, measure, sign=sign),
            )
            for measure, sign, text in claims
        ),
        columns=("final", *(measure for measure, _, _ in claims)),
    )
