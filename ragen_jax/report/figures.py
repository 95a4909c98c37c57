"""What is drawn: sections, panels and lines by the metrics they show.

One table for the page and for the PNG files. `{env}` stands for every game in turn. A
panel without any recorded metric is left out, a section without any panel says so.
Three sections are drawn in ways of their own: see `special`.
"""

import dataclasses
from collections.abc import Collection

FIRST_TURN = "collapse_first_turn_sample/"
# Axes of the information plane.
PLANE_X = f"{FIRST_TURN}conditional_entropy_est"
PLANE_Y = f"{FIRST_TURN}mi_estimate"
# In the order of `collapse/regime`: 0, 1, 2, 3.
REGIMES = ("diverse", "template collapse", "compressed", "low-entropy collapse")
REGIME = "collapse/regime"
ALARM = "alarm/"
BUCKET = "grad_norm/"
# Derived from others, see `ragen_jax.report.throughput`.
SAMPLED_RATE = "perf/sampled_tokens_per_second"
TRAINED_RATE = "perf/trained_tokens_per_second"
BUCKET_PARTS = ("task", "entropy", "kl")
SUCCESS = "train/{env}/success"
HELD_OUT = "val-env/{env}/success"
CEILING = "val-env/{env}/ceiling"


@dataclasses.dataclass(frozen=True)
class Line:
    """A metric in a panel. Styles: "main" (with its band), "thin", "reference"."""

    metric: str
    label: str
    style: str = "main"


@dataclasses.dataclass(frozen=True)
class Panel:
    """One pair of axes over the iterations.

    Attributes:
      title, unit: what is drawn and how the vertical axis is labelled.
      lines: what is shown.
      kind: how numbers read, "number", "share" (in per cent) or "seconds".
    """

    title: str
    unit: str
    lines: tuple[Line, ...]
    kind: str = "number"


@dataclasses.dataclass(frozen=True)
class Section:
    """Panels under one heading.

    Attributes:
      key: name of its anchor and of its PNG file.
      title, lead: heading, and what one learns from it.
      panels: what is drawn over the iterations.
      special: also drawn here: "plane", "buckets", "alarms" or "" (nothing).
      absent: what is missing where nothing was recorded.
    """

    key: str
    title: str
    lead: str
    panels: tuple[Panel, ...] = ()
    special: str = ""
    absent: str = ""


def _one(metric: str, title: str, unit: str, kind: str = "number") -> Panel:
    return Panel(title, unit, (Line(metric, title),), kind)


SECTIONS = (
    Section(
        "progress",
        "Progress",
        "Success on fixed held-out levels against the best possible there, and while "
        "training.",
        (
            Panel(
                "{env}: success",
                "success (share of episodes)",
                (
                    Line(HELD_OUT, "held-out"),
                    Line(SUCCESS, "training", "thin"),
                    Line(CEILING, "best possible", "reference"),
                ),
                "share",
            ),
            _one("train/{env}/episodic_return", "{env}: return", "reward per episode"),
            _one(
                "val-env/{env}/solved_of_solvable",
                "{env}: solvable levels solved",
                "share of solvable levels",
                "share",
            ),
            _one(
                "val-env/{env}/optimal_action_share",
                "{env}: optimal actions",
                "share of actions",
                "share",
            ),
            _one(
                "val-env/{env}/excess_actions",
                "{env}: excess actions",
                "actions above the shortest solution",
            ),
            _one(
                "val-env/{env}/hallucination_rate",
                "{env}: false statements in thoughts",
                "share of stated coordinates",
                "share",
            ),
        ),
        absent="no run recorded train/<Env>/... or val-env/<Env>/...",
    ),
    Section(
        "plane",
        "Information plane",
        "How varied thoughts are under one prompt, H(Z|X), and how much they tell of "
        "the prompt, I(X;Z), both in nats per token. A healthy policy stays in the "
        "upper right; a fall is template collapse, a move to the left is a loss of "
        "variety.",
        (
            Panel(
                "Information and entropy",
                "nats per token",
                (
                    Line(PLANE_Y, "I(X;Z)"),
                    Line(PLANE_X, "H(Z|X)", "thin"),
                ),
            ),
            Panel(
                "Retrieval of the prompt from the thought",
                "share of thoughts",
                (
                    Line(f"{FIRST_TURN}retrieval_accuracy", "accuracy"),
                    Line(f"{FIRST_TURN}retrieval_chance_level", "chance", "reference"),
                ),
                "share",
            ),
            _one(f"{FIRST_TURN}mi_zscore", "I(X;Z) as a z-score", "standard scores"),
        ),
        "plane",
        f"no run recorded both {PLANE_X} and {PLANE_Y}; see diagnostics.every, and "
        "whether replies hold thoughts",
    ),
    Section(
        "indicators",
        "Collapse indicators",
        "What falls, or jumps, before success does.",
        (
            _one(
                "rollout/in_group_reward_std",
                "Reward spread inside groups",
                "standard deviation of the return",
            ),
            _one("actor/entropy", "Entropy of the sampled tokens", "nats per token"),
            _one("actor/grad_norm", "Gradient norm", "global norm before clipping"),
            _one(
                "rollout/distinct_3gram",
                "Distinct 3-grams",
                "share of all 3-grams",
                "share",
            ),
            _one(
                "rollout/top_reply_share",
                "Most frequent reply",
                "share of replies",
                "share",
            ),
            _one("train/{env}/reply_length", "{env}: reply length", "tokens per reply"),
            _one(
                "collapse/valid_thinking_rate",
                "Valid thoughts",
                "share of replies",
                "share",
            ),
            _one(
                "train/{env}/format",
                "{env}: replies in format",
                "share of replies",
                "share",
            ),
        ),
        absent="no run recorded rollout/... or actor/...",
    ),
    Section(
        "alarms",
        "Alarms",
        "When each indicator raised its alarm (a tick per iteration, a diamond for a "
        "run's first), and the first iteration in which training success, averaged "
        "over a few, had fallen below half of the best it had been.",
        special="alarms",
        absent="no run recorded alarm/...; see the section warning of the settings",
    ),
    Section(
        "buckets",
        "Gradient buckets",
        "Groups in order of their reward spread, from bucket 1 (least) on. Where the "
        "task's part is small and the others are not, updates are noise.",
        special="buckets",
        absent=f"no run recorded {BUCKET}<bucket>/...; see diagnostics.every",
    ),
    Section(
        "update",
        "Update",
        "How far an iteration moved the policy, and what was left to learn from.",
        (
            _one(
                "rollout/filter_kept_ratio",
                "Groups kept by the filter",
                "share of groups",
                "share",
            ),
            _one("actor/pg_clipfrac", "Clipped tokens", "share of tokens", "share"),
            _one("actor/ppo_kl", "Old minus new log-probability", "nats per token"),
            _one("actor/ref_kl", "KL to the reference", "nats per token"),
            _one(
                "critic/vf_explained_var", "Explained variance of the critic", "share"
            ),
            _one(
                "actor/sampler_log_prob_difference",
                "Learner against sampler",
                "nats per token",
            ),
        ),
        absent="no run recorded actor/... or rollout/filter_...",
    ),
    Section(
        "timing",
        "Throughput",
        "Seconds an iteration takes, by stage, and tokens per second; they depend on "
        "the machine.",
        (
            _one("timing_s/rollout", "Rollout", "seconds per iteration", "seconds"),
            _one("timing_s/update", "Update", "seconds per iteration", "seconds"),
            _one("timing_s/iteration", "Iteration", "seconds", "seconds"),
            _one("timing_s/diagnostics", "Diagnostics", "seconds", "seconds"),
            _one("timing_s/testing", "Evaluation", "seconds", "seconds"),
            _one(SAMPLED_RATE, "Sampled tokens", "tokens per second of rollout"),
            _one(TRAINED_RATE, "Trained tokens", "tokens per second of update"),
            _one("actor/num_tokens", "Tokens trained on", "tokens per iteration"),
        ),
        absent="no run recorded timing_s/...",
    ),
)


def expand(panels: Collection[Panel], games: Collection[str]) -> list[Panel]:
    """The panels with every game in the place of `{env}`."""
    found = []
    for panel in panels:
        names = games if any("{env}" in line.metric for line in panel.lines) else [""]
        for env in names:
            lines = (
                dataclasses.replace(line, metric=line.metric.replace("{env}", env))
                for line in panel.lines
            )
            title = panel.title.replace("{env}", env)
            found.append(dataclasses.replace(panel, title=title, lines=tuple(lines)))
    return found
