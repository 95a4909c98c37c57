"""Protocols: what happens to vanilla StarPO, and what StarPO-S does about it.

Findings of RAGEN, arXiv 2504.20073, sections 4.1 and 4.2 (figures 5 to 9).
"""

from studies.arms import ESTIMATORS, GAMES, kept, make_arm, starpo_s, vanilla
from studies.claims import Claim, Difference, Mean, Study, Trend
from studies.measures import CLEAR

_PAIRS = [(game, estimator) for game in GAMES for estimator in ESTIMATORS]
_VANILLA = tuple(vanilla(*pair) for pair in _PAIRS)


def _collapse_claims():
    for arm in _VANILLA:
        yield Claim(
            f"{arm.label}: success rises by 5 points or more",
            Mean((arm,), "peak_gain", above=0.05),
        )
        yield Claim(
            f"{arm.label}: afterwards it falls by 10 points or more",
            Mean((arm,), "fall", above=CLEAR),
        )
    for game in ("sokoban", "bandit"):
        yield Claim(
            f"{GAMES[game]}: PPO ends above GRPO",
            Difference(vanilla(game, "ppo"), vanilla(game, "grpo")),
        )
    yield Claim(
        "FrozenLake: GRPO ends above PPO",
        Difference(vanilla("frozen_lake", "grpo"), vanilla("frozen_lake", "ppo")),
    )
    for name, text in (("entropy", "entropy"), ("grad_norm", "the gradient norm")):
        yield Claim(
            f"Where both alarm, the reward spread does so before {text}",
            Mean(_VANILLA, f"{name}_after_spread"),
        )
    for name, text in (
        ("in_group_reward_std", "reward spread"),
        ("entropy", "entropy"),
        ("grad_norm", "gradient norm"),
    ):
        yield Claim(
            f"Most falls of success come after an alarm of the {text}",
            Mean(_VANILLA, f"{name}_warned", above=0.5),
        )


COLLAPSE = Study(
    name="collapse",
    title="Vanilla StarPO gains, then collapses",
    question="PPO and GRPO under vanilla StarPO (every group, KL 0.001, clip 0.2) on "
    "three games: does success rise and then fall, and which indicator alarms before? "
    "Alarms are those of training (`warning.*`). Success has fallen when held out, as "
    "the mean of two evaluations, it is 10 points below its best such mean.",
    paper="Success rises and then collapses on all tasks; PPO is more stable than GRPO "
    "except on FrozenLake; the reward spread falls first, gradient norms spike "
    "(figures 5 and 6).",
    claims=tuple(_collapse_claims()),
    columns=(
        "start",
        "peak_gain",
        "fall",
        "final",
        "fell_at",
        "in_group_reward_std_alarm",
        "entropy_alarm",
        "grad_norm_alarm",
    ),
    curves=("val-env/*/success", "rollout/in_group_reward_std", "actor/entropy"),
)


def _keep_claims():
    for estimator, label in ESTIMATORS.items():
        ordered = tuple(kept(estimator, share) for share in (0.25, 0.5, 0.75, 1.0))
        yield Claim(
            f"{label}: the fewer groups are kept, the higher success ends",
            Trend(ordered, sign=-1),
        )
        yield Claim(
            f"{label}: 25 % end above 100 %", Difference(ordered[0], ordered[-1])
        )
        yield Claim(
            f"{label}: 50 % end above 100 %", Difference(ordered[1], ordered[-1])
        )
        yield Claim(
            f"{label}: the more groups are kept, the more success falls from its peak",
            Trend(ordered, "fall"),
        )


KEEP = Study(
    name="keep",
    title="Learning from the groups with the most reward spread",
    question="25, 50, 75 and 100 % of the groups kept, by reward spread, on Sokoban "
    "with PPO and GRPO; everything else as in StarPO-S. Fewer groups are fewer "
    "optimizer steps, too.",
    paper="On FrozenLake with PPO, 75 % delay the collapse and 50 % avoid it; StarPO-S "
    "takes 25 % (figure 7).",
    claims=tuple(_keep_claims()),
    columns=("start", "final", "spread", "seconds"),
    values={kept(estimator, 0.25).name: "25% kept" for estimator in ESTIMATORS},
)


def _clipped(estimator: str):
    """Vanilla with no KL, clip-higher and both, which is StarPO-S of all groups."""
    no_kl = make_arm(
        "sokoban", estimator, "starpo", "nokl", "no KL", {"kl.placement": None}
    )
    higher = make_arm(
        "sokoban",
        estimator,
        "starpo",
        "cliphigher",
        "clip 0.2/0.28",
        {"loss.clip_high": 0.28},
    )
    return {
        "without KL": no_kl,
        "with clip-higher": higher,
        "with both": kept(estimator, 1.0),
    }


CLIP = Study(
    name="clip",
    title="No KL, and clipping higher",
    question="Vanilla StarPO on Sokoban without its KL term, with the upper clip at "
    "0.28, and with both; PPO and GRPO, every group kept.",
    paper="Dropping KL and clipping higher both raise success and delay the collapse "
    "(figure 8).",
    claims=tuple(
        Claim(
            f"{ESTIMATORS[estimator]} {words} ends above vanilla",
            Difference(arm, vanilla("sokoban", estimator)),
        )
        for estimator in ESTIMATORS
        for words, arm in _clipped(estimator).items()
    ),
    columns=("start", "peak_gain", "final", "entropy", "seconds"),
    values={
        kept(estimator, 1.0).name: "no KL, clip 0.2/0.28" for estimator in ESTIMATORS
    },
)


def _starpo_s_claims():
    for game, estimator in _PAIRS:
        ours, theirs = starpo_s(game, estimator), vanilla(game, estimator)
        where = f"{GAMES[game]}, {ESTIMATORS[estimator]}"
        yield Claim(f"{where}: StarPO-S ends above vanilla", Difference(ours, theirs))
        yield Claim(
            f"{where}: vanilla falls further from its peak",
            Difference(theirs, ours, "fall"),
        )


STARPO_S = Study(
    name="starpo_s",
    title="StarPO-S against vanilla StarPO",
    question="Both on Sokoban, FrozenLake and Bandit, with PPO and GRPO.",
    paper="StarPO-S reaches more success on every task and does not collapse, or later "
    "(figure 9).",
    claims=tuple(_starpo_s_claims()),
    columns=("start", "peak_gain", "fall", "final", "seconds"),
    curves=("val-env/*/success",),
)
