"""Protocols of ours, over the runs of all other studies."""

from ragen_jax.diagnostics.early_warning import INDICATORS
from ragen_jax.studies.arms import Arm
from ragen_jax.studies.claims import Claim, Mean, Study

_WORDS = {
    "in_group_reward_std": "the reward spread inside groups",
    "entropy": "entropy",
    "grad_norm": "the gradient norm",
    "reply_length": "reply length",
    "distinct_3gram": "the share of distinct triples of tokens",
    "top_reply_share": "the share of the most frequent reply",
    "format": "the format",
    "valid_thinking_rate": "the share of valid thoughts",
}


def make_warnings(arms: tuple[Arm, ...]) -> Study:
    """The study of all arms that are trained by reinforcement learning."""
    return Study(
        name="warnings",
        title="How early each indicator warns",
        question="In every run of these studies that loses against exact play: "
        "iterations from an indicator's first alarm to the loss. Regret is lost when "
        "success on the levels that best play wins, as a mean over 5 iterations of "
        "training, is below 0.75 of its highest. The unit is an arm's mean; runs in "
        "which the indicator never alarmed are not in it.",
        paper="No paper has this.",
        claims=tuple(
            Claim(
                f"Where both happen, {_WORDS[name]} alarms before the loss",
                Mean(arms, f"{name}_regret_lead", by_arm=True),
            )
            for name in INDICATORS
        ),
        columns=("success_fell", *(f"{name}_alarm" for name in INDICATORS)),
    )


def make_truth(arms: tuple[Arm, ...]) -> Study:
    """The study of the arms whose thoughts state facts."""
    return Study(
        name="truth",
        title="Statements become false before success falls",
        question="Thoughts on Sokoban and FrozenLake state where things are, and the "
        "game knows. Statements became false when their share of errors while training "
        "rose 10 points above its lowest value; success fell when its mean over 5 "
        "iterations was below 0.75 of its highest. The unit is an arm's mean.",
        paper="No paper has this.",
        claims=(
            Claim(
                "Where both happen, statements become false before success falls",
                Mean(arms, "false_lead", by_arm=True),
            ),
            Claim(
                "Most falls of success come after false statements",
                Mean(arms, "false_warned", above=0.5, by_arm=True),
            ),
            Claim(
                "Under vanilla StarPO more held-out statements are false at the end",
                Mean(
                    tuple(arm for arm in arms if arm.presets.startswith("starpo,")),
                    "false_change",
                    by_arm=True,
                ),
            ),
        ),
        columns=("false", "false_change", "success_fell", "final"),
        curves=("val-env/*/hallucination_rate", "val-env/*/success"),
    )
