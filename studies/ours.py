"""Our protocols, most of them over the runs of all other studies."""

from studies.arms import ESTIMATORS, GAMES, Arm, make_arm, vanilla
from studies.claims import Claim, Correlation, Difference, Mean, Study

# Valid thoughts are counted every tenth iteration: no alarm before the thirtieth.
_WORDS = {
    "in_group_reward_std": "the reward spread inside groups",
    "entropy": "entropy",
    "grad_norm": "the gradient norm",
    "reply_length": "reply length",
    "distinct_3gram": "the share of distinct triples of tokens",
    "top_reply_share": "the share of the most frequent reply",
    "format": "the format",
}
_FELL = (
    "success held out, as the mean of two evaluations, is 10 points below its best "
    "such mean"
)


def make_warnings(arms: tuple[Arm, ...]) -> Study:
    """The study of all arms that are trained by reinforcement learning."""
    return Study(
        name="warnings",
        title="How early each indicator warns",
        question="In the runs of these studies that lose against exact play: "
        "iterations from an indicator's first alarm to the loss, which is where "
        f"{_FELL}. The levels, and with them best play, are always the same, so that "
        "regret rises by what success falls. Do runs with an alarm lose more often? "
        "The unit is an arm's mean; p-values describe, as many arms are alike.",
        paper="No paper has this.",
        claims=tuple(
            claim
            for name, text in _WORDS.items()
            for claim in (
                Claim(
                    f"Where both happen, {text} alarms before the loss",
                    Mean(arms, f"{name}_lead", by_arm=True),
                ),
                Claim(
                    f"The more runs have an alarm of {text}, the more lose",
                    Correlation(arms, f"{name}_alarmed", "fell"),
                ),
            )
        ),
        columns=("fell", "fell_at", *(f"{name}_alarm" for name in _WORDS)),
    )


def make_truth(arms: tuple[Arm, ...]) -> Study:
    """The study of the arms whose thoughts state facts."""
    return Study(
        name="truth",
        title="Statements become false before success falls",
        question="Thoughts on Sokoban and FrozenLake state where things are, and the "
        "game knows. Statements became false when the share of false ones, held out, "
        f"is 10 points above its lowest value; success fell where {_FELL}. The unit is "
        "an arm's mean; p-values describe, as many arms are alike.",
        paper="No paper has this.",
        claims=tuple(
            claim
            for game in ("sokoban", "frozen_lake")
            for claim in _truth_claims(game, [a for a in arms if a.game == game])
        ),
        columns=("became_false", "false_at", "false_change", "fell", "fell_at"),
        curves=("val-env/*/hallucination_rate", "val-env/*/success"),
    )


def _truth_claims(game: str, arms: list[Arm]):
    label = GAMES[game]
    yield Claim(
        f"{label}: where both happen, statements become false before success falls",
        Mean(tuple(arms), "false_lead", by_arm=True),
    )
    yield Claim(
        f"{label}: the more runs whose statements become false, the more fall",
        Correlation(tuple(arms), "became_false", "fell"),
    )
    yield Claim(
        f"{label}: under vanilla StarPO more statements are false at the end",
        Mean(tuple(vanilla(game, name) for name in ESTIMATORS), "false_change"),
    )


def _undivided(game: str) -> Arm:
    """Vanilla StarPO with the reward less the group's mean, and nothing else."""
    return make_arm(
        game,
        "grpo",
        "starpo",
        "undivided",
        "not divided",
        {"algo.advantage": "dr_grpo"},
    )


DIVISION = Study(
    name="division",
    title="Why GRPO needs the filter",
    question="Vanilla StarPO with GRPO, which divides a group's advantages by their "
    "spread, against the same without the division (Dr. GRPO, arXiv 2503.20783). "
    "Written after `collapse` and `keep` had shown that GRPO fails on Sokoban and "
    "Bandit unless groups of little spread are left out, and before these runs: if it "
    "is the division that lets such groups outvote the others, GRPO does not fail "
    "without it.",
    paper="RAGEN-2's main table has both, a run each, and what the filter adds: on "
    "Sokoban GRPO 12.1 (+9.0) and Dr. GRPO 12.1 % (-0.4), on FrozenLake 70.9 (+2.3) "
    "and 23.2 % (+0.6).",
    claims=(
        *(
            Claim(
                f"{GAMES[game]}: without the division GRPO ends higher",
                Difference(_undivided(game), vanilla(game, "grpo")),
            )
            for game in ("sokoban", "bandit")
        ),
        *(
            Claim(
                f"{GAMES[game]}: it ends above where it began by 5 points or more",
                Mean((_undivided(game),), "gain", above=0.05),
            )
            for game in ("sokoban", "bandit")
        ),
        Claim(
            "Sokoban: with the division, agents end up acting less",
            Difference(
                _undivided("sokoban"), vanilla("sokoban", "grpo"), "num_actions"
            ),
        ),
    ),
    columns=("start", "gain", "final", "num_actions", "spread"),
    values={vanilla(game, "grpo").name: "divided" for game in ("sokoban", "bandit")},
    curves=("val-env/*/success", "train/*/num_actions"),
)
