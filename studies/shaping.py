"""Protocols: how rollouts are shaped, thinking, and fine-tuning instead.

Findings of RAGEN, arXiv 2504.20073, sections 4.3 and 4.4 (tables 2 to 4, figures 10
and 11, appendix C).
"""

from studies.arms import GAMES, SUITES, Arm, make_arm, starpo_s, vanilla
from studies.claims import Claim, Difference, Mean, Study, Trend

_BATCH = 64


def _replies(number: int) -> Arm:
    """Vanilla PPO with `number` replies per prompt; the preset has 8."""
    if number == 8:
        return vanilla("sokoban", "ppo")
    return make_arm(
        "sokoban",
        "ppo",
        "starpo",
        f"replies{number}",
        f"{number} a prompt",
        {"rollout.num_groups": _BATCH // number, "rollout.group_size": number},
        suite=SUITES["sokoban"],
    )


_ALL_REPLIES = tuple(_replies(n) for n in (32, 16, 8, 4, 2, 1))
REPLIES = Study(
    name="replies",
    title="Many prompts, or many replies to each",
    question="32, 16, 8, 4, 2 and 1 replies per prompt in batches of 64 episodes, on "
    "Sokoban and then on FrozenLake, which was not trained. Vanilla PPO: a filter or "
    "GRPO would need groups.",
    paper="Trained on Sokoban, from 32 replies a prompt to 1: 21.1, 20.3, 20.3, 20.7, "
    "19.9, 19.5 % there; 18.0, 19.5, 17.2, 21.5, 12.5, 12.5 % on FrozenLake: 4 "
    "generalise best (table 2).",
    claims=(
        Claim(
            "The fewer replies a prompt, the lower success ends on Sokoban",
            Trend(_ALL_REPLIES, sign=-1),
        ),
        Claim(
            "On FrozenLake 4 replies a prompt end above 32",
            Difference(_replies(4), _replies(32), "suite:FrozenLake"),
        ),
        Claim(
            "On FrozenLake 4 replies a prompt end above 1",
            Difference(_replies(4), _replies(1), "suite:FrozenLake"),
        ),
        Claim(
            "On Sokoban 32 replies a prompt end above 1",
            Difference(_replies(32), _replies(1)),
        ),
    ),
    columns=("start", "peak_gain", "final", "suite:FrozenLake", "seconds"),
    values={_replies(8).name: "8 a prompt"},
)


def _actions(number: int) -> Arm:
    """StarPO-S with `number` actions per turn; the preset has 5."""
    if number == 5:
        return starpo_s("sokoban")
    return make_arm(
        "sokoban",
        "ppo",
        "starpo_s",
        f"actions{number}",
        f"{number} action{'s' if number > 1 else ''} a turn",
        {
            "rollout.max_actions_per_turn": number,
            "rollout.max_turns": -(-_ACTIONS_PER_EPISODE // number),
        },
    )


_ACTIONS_PER_EPISODE = 10
_ALL_ACTIONS = tuple(_actions(n) for n in range(1, 8))
ACTIONS = Study(
    name="actions",
    title="Actions per turn",
    question="1 to 7 actions per turn, and as many turns as ten actions take, on "
    "Sokoban with StarPO-S and PPO.",
    paper="From one action to seven: 12.1, 16.4, 19.5, 27.0, 28.1, 33.6, 22.3 %, in up "
    "to five turns: 5 or 6 are best (table 3).",
    claims=(
        Claim("From one to six actions success rises", Trend(_ALL_ACTIONS[:6])),
        Claim("Six end above one", Difference(_ALL_ACTIONS[5], _ALL_ACTIONS[0])),
        Claim("Six end above seven", Difference(_ALL_ACTIONS[5], _ALL_ACTIONS[6])),
    ),
    columns=("start", "final", "num_actions", "seconds"),
    values={_actions(5).name: "5 actions a turn"},
)


def _online(number: int) -> Arm:
    """StarPO-S with `number` updates per rollout, and as many updates in all."""
    if number == 1:
        return starpo_s("sokoban")
    return make_arm(
        "sokoban",
        "ppo",
        "starpo_s",
        f"online{number}",
        f"Online-{number}",
        {
            "learner.updates_per_rollout": number,
            "train.num_iterations": 40 // number,
            "evaluation.every": max(1, 5 // number),
            "diagnostics.every": max(1, 10 // number),
        },
        num_seeds=3,
        suite=SUITES["sokoban"],
    )


_ALL_ONLINE = tuple(_online(n) for n in (1, 2, 5, 10))
ONLINE = Study(
    name="online",
    title="Fresh rollouts for every update",
    question="40 updates on Sokoban with StarPO-S and PPO, a rollout for every update "
    "(Online-1), every 2nd, 5th and 10th. Three seeds but for Online-1.",
    paper="The fresher the rollouts, the higher success and the better generalisation; "
    "Online-1 is best (figure 10).",
    claims=(
        Claim(
            "The more updates a rollout serves, the lower success ends",
            Trend(_ALL_ONLINE, sign=-1),
        ),
        Claim("Online-1 ends above Online-5", Difference(_online(1), _online(5))),
        Claim("Online-1 ends above Online-10", Difference(_online(1), _online(10))),
        Claim(
            "On FrozenLake, not trained, too",
            Trend(_ALL_ONLINE, "suite:FrozenLake", sign=-1),
        ),
    ),
    columns=("start", "final", "suite:FrozenLake", "seconds"),
    values={_online(1).name: "Online-1"},
)


def _silent(game: str) -> Arm:
    return make_arm(
        game,
        "ppo",
        "starpo_s",
        "nothink",
        "no thinking",
        {"prompt.thinking": False},
        suite=SUITES[game],
    )


def _truthful(game: str) -> Arm:
    return make_arm(
        game, "ppo", "starpo_s", "facts", "facts pay 0.5", {"bonus.facts": 0.5}
    )


def _thinking_claims():
    for game, label in GAMES.items():
        yield Claim(
            f"{label}: thinking ends above no thinking",
            Difference(starpo_s(game), _silent(game)),
        )
        yield Claim(
            f"{label}: thinking gains more than no thinking",
            Difference(starpo_s(game), _silent(game), "gain"),
        )
    for game, entries in SUITES.items():
        for entry in entries:
            yield Claim(
                f"{entry} after {GAMES[game]}: thinking ends above no thinking",
                Difference(starpo_s(game), _silent(game), f"suite:{entry}"),
            )
    for game, label in GAMES.items():
        yield Claim(
            f"{label}: replies become shorter while training",
            Mean((starpo_s(game),), "reply_change", sign=-1),
        )
    for game in ("sokoban", "frozen_lake"):
        yield Claim(
            f"{GAMES[game]}: a bonus for true statements makes fewer of them false",
            Difference(starpo_s(game), _truthful(game), "false"),
        )
        yield Claim(
            f"{GAMES[game]}: with that bonus success ends higher",
            Difference(_truthful(game), starpo_s(game)),
        )


THINKING = Study(
    name="thinking",
    title="Thinking, its length and its truth",
    question="StarPO-S with PPO on three games, with thoughts, with answers alone, and "
    "(where thoughts state places) with a bonus of 0.5 a turn for true statements; on "
    "the game itself and on levels of other kinds. The warm start favours thinking: in "
    "its demonstrations the good player thinks.",
    paper="Thinking helps on Bandit (100 against 81 %; reversed 68 against 56 %), not "
    "on Sokoban (21.5 against 20.7) nor FrozenLake (19.9 against 19.5); thoughts "
    "become shorter; rewards that look at the reasoning are called for (table 4, "
    "figure 11).",
    claims=tuple(_thinking_claims()),
    columns=("start", "final", "gain", "reply_length", "reply_change", "false"),
    values={starpo_s(game).name: "thinking" for game in GAMES},
    curves=("val-env/*/success", "train/*/reply_length"),
)


# Steps that take as long as a run of StarPO-S, each alone on two cores: 22 seconds
# (docs/findings.md).
_SFT_STEPS = {"sokoban": 26, "frozen_lake": 40}


def _sft(game: str) -> Arm:
    """The whole network, on replies that say where everything is."""
    return Arm(
        f"{game}-sft",
        f"{GAMES[game]}, fine-tuned",
        game,
        settings={
            "lora.rank": None,
            "demonstrators.solver.thought": "reading",
            "train.num_epochs": None,
            "train.num_steps": _SFT_STEPS[game],
        },
        is_sft=True,
    )


SFT = Study(
    name="sft",
    title="Fine-tuning on solved episodes, for the same time",
    question="The warm start fine-tuned on 1,000 episodes of the exact solver, against "
    "StarPO-S with PPO. Steps are as many as take the time of a run of StarPO-S, each "
    "alone on two cores; seconds in the table are of several runs at a time.",
    paper="Fine-tuning reaches 74.6 % on Sokoban and 23 % on FrozenLake, StarPO-S "
    "20.3 and 21.8 (appendix C).",
    claims=tuple(
        Claim(
            f"{GAMES[game]}: fine-tuning ends above StarPO-S",
            Difference(_sft(game), starpo_s(game)),
        )
        for game in _SFT_STEPS
    ),
)
