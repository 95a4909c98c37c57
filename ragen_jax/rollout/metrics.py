"""Metrics of a batch of episodes.

In: a trajectory. Out: scalars by name, RAGEN's where it has one. Every metric is a sum
and a weight; the metric is their quotient, 0 where the weight is 0. All of it is NumPy,
on the host: as array programs, dozens of small sums would be compiled.

To add a metric, add a declaration to `METRICS`: it is then computed for training's
episodes (`train/<Env>/...`) and for held-out ones (`val-env/<Env>/...`), recorded,
drawn where its views say, and documented.
"""

from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Float

from ragen_jax.registry.functions import Table
from ragen_jax.registry.metrics import Metric, View
from ragen_jax.types import Trajectory

SumAndWeight = tuple[Float[np.ndarray, ""], Float[np.ndarray, ""]]


def rollout_metrics(
    trajectory: Trajectory, *, group_size: int
) -> dict[str, Float[np.ndarray, ""]]:
    """Means over the episodes of a trajectory, by the last part of their names.

    Besides those of `METRICS`, `pass@N`: share of the groups of `group_size` = N rows
    in which at least one row succeeded.
    """
    # States and windows may be large, and no metric reads them.
    unread = {"initial_state": None, "windows": None}
    trajectory = jax.device_get(trajectory.replace(**unread))
    values = {metric.key: metric.value(trajectory) for metric in METRICS}
    values[f"pass@{group_size}"] = _mean(
        np.any(trajectory.success.reshape(-1, group_size), axis=1)
    )
    has_played = np.any(trajectory.loss_mask, axis=1)
    for name, last in (trajectory.game_metrics or {}).items():
        counts = has_played & np.isfinite(last)
        values[f"game_{name}"] = _ratio(np.where(counts, last, 0.0), counts)
    return {
        name: np.float32(total) / np.maximum(np.float32(weight), 1)
        for name, (total, weight) in values.items()
    }


# metrics(trajectory, *, <options>) -> {name: number}; users' functions only.
METRIC_FUNCTIONS = Table({}, data=("trajectory",), returns=Mapping)


def _mean(values: np.ndarray) -> SumAndWeight:
    return _ratio(values, np.ones(values.shape))


def _per_episode(values: np.ndarray) -> SumAndWeight:
    return _mean(np.sum(values, axis=1))


def _ratio(numerators: np.ndarray, denominators: np.ndarray) -> SumAndWeight:
    return (
        np.sum(numerators, dtype=np.float32),
        np.sum(denominators, dtype=np.float32),
    )


_SUCCESS = "{env}: success"
_REPLIES = "share of replies"

# `value` takes a trajectory and returns a sum and a weight.
METRICS = (
    Metric(
        "{split}/{env}/success",
        "share of the episodes that reach the goal: of training's at the rollout's "
        "temperature, of fixed held-out levels at `evaluation.temperature`",
        section="progress",
        kind="share",
        views=(
            View(
                _SUCCESS,
                "success (share of episodes)",
                name="train/{env}/success",
                label="training",
                style="thin",
                console="success",
            ),
            View(
                _SUCCESS,
                name="val-env/{env}/success",
                label="held-out",
                console="held-out",
            ),
        ),
        healthy="held-out success rises past the interval it started with; training's "
        "is below it (hotter sampling)",
        cure="training up, held-out flat: levels are remembered; use more groups",
        value=lambda t: _mean(t.success),
    ),
    Metric(
        "{split}/{env}/episodic_return",
        "rewards of the environment per episode, format penalties and bonuses not "
        "included",
        section="progress",
        views=(
            View(
                "{env}: return",
                "reward per episode",
                name="train/{env}/episodic_return",
                console="return",
            ),
        ),
        healthy="follows success",
        cure="return up, success flat: the environment pays for something else",
        value=lambda t: _per_episode(t.turns.reward),
    ),
    Metric(
        "{split}/{env}/format_penalty",
        "format penalties per episode",
        section="progress",
        healthy="near 0",
        cure="see `format`",
        value=lambda t: _per_episode(t.turns.penalty),
    ),
    Metric(
        "{split}/{env}/bonus",
        "bonuses per episode (keys `bonus.*`)",
        section="progress",
        value=lambda t: _per_episode(t.turns.bonus),
    ),
    Metric(
        "{split}/{env}/num_turns",
        "turns per episode",
        section="play",
        healthy="no drift to an extreme",
        value=lambda t: _per_episode(t.turns.played),
    ),
    Metric(
        "{split}/{env}/num_actions",
        "executed actions per episode",
        section="play",
        healthy="no drift to an extreme",
        value=lambda t: _per_episode(t.turns.num_executed),
    ),
    Metric(
        "{split}/{env}/action_is_effective",
        "share of the executed actions that changed something",
        section="play",
        kind="share",
        healthy="rises",
        cure="low: the policy walks into walls",
        value=lambda t: _ratio(t.turns.num_effective, t.turns.num_executed),
    ),
    Metric(
        "{split}/{env}/action_is_valid",
        "share of the turns whose answer holds a valid action; of a host game, those "
        "that it says it could read",
        section="play",
        kind="share",
        healthy="above 0.95",
        cure="`launch.sft`, or `format_penalty`",
        value=lambda t: _ratio(t.turns.num_valid > 0, t.turns.played),
    ),
    Metric(
        "{split}/{env}/format",
        "share of the turns whose reply has a thought and an answer in their tags",
        section="play",
        kind="share",
        views=(
            View(
                "{env}: replies in format",
                _REPLIES,
                name="train/{env}/format",
                section="indicators",
            ),
        ),
        healthy="above 0.95",
        cure="`launch.sft`, or `bonus.format`",
        value=lambda t: _ratio(t.turns.has_format, t.turns.played),
    ),
    Metric(
        "{split}/{env}/reply_is_cut",
        "share of the turns whose reply reached the length limit",
        section="play",
        kind="share",
        healthy="near 0",
        cure="raise `rollout.max_reply_tokens`",
        value=lambda t: _ratio(t.turns.reply_is_cut, t.turns.played),
    ),
    Metric(
        "{split}/{env}/response_length",
        "sampled tokens per episode",
        section="play",
        healthy="no drift to an extreme",
        value=lambda t: _per_episode(t.turns.reply_length),
    ),
    Metric(
        "{split}/{env}/reply_length",
        "sampled tokens per turn",
        section="play",
        views=(
            View(
                "{env}: reply length",
                "tokens per reply",
                name="train/{env}/reply_length",
                section="indicators",
            ),
        ),
        healthy="no drift to an extreme",
        cure="shrinks to nothing: thinking is not paid for; grows without end: see "
        "`reply_is_cut`",
        value=lambda t: _ratio(t.turns.reply_length, t.turns.played),
    ),
    Metric(
        "{split}/{env}/is_truncated",
        "share of the episodes that a budget ended",
        section="play",
        kind="share",
        healthy="falls as success rises",
        value=lambda t: _mean(t.truncated),
    ),
)

# Metrics that are computed from several samples of a prompt: `pass@N` here, the others
# by `ragen_jax.evaluation.statistics.summarize`; the last four are settings.
SUCCESS_METRICS = (
    Metric(
        "val-env/{env}/success_{end}",
        "ends of the 95 % interval of held-out success",
        section="progress",
        kind="share",
    ),
    Metric(
        "val-env/{env}/ceiling",
        "success of best play on the same levels, or of a strong player where best "
        "play cannot be computed (see `exact`); absent where neither is known",
        section="progress",
        kind="share",
        views=(View(_SUCCESS, label="solver", style="reference"),),
        healthy="constant",
        cure="below 1: levels that cannot be solved within the budget "
        "(`rollout.max_turns`, `rollout.max_actions_per_episode`)",
    ),
    Metric(
        "val-env/{env}/regret",
        "ceiling minus success",
        section="progress",
        kind="share",
        healthy="falls",
    ),
    Metric(
        "{split}/{env}/pass@{k}",
        "training: share of the groups in which at least one of k rows succeeds; "
        "held-out: probability that one of k samples solves a level "
        "(`evaluation.num_samples`)",
        section="progress",
        kind="share",
        healthy="training: between 0 and 1; held-out: falls slowly or not at all while "
        "success rises",
        cure="0: use `launch.sft` or easier levels; training at 1: levels are too "
        "easy; success up, pass@k down: the policy narrows, see entropy",
    ),
    Metric(
        "val-env/{env}/pass@{k}_{end}",
        "ends of the 95 % interval of held-out pass@k",
        section="progress",
        kind="share",
    ),
    Metric(
        "val-env/{env}/num_prompts",
        "held-out levels played",
        section="progress",
        healthy="constant: numbers under other settings do not compare",
    ),
    Metric(
        "val-env/{env}/held_out",
        "1 where training never plays these levels; 0 where the game has too few "
        "levels to hold some out",
        section="progress",
        healthy="constant",
    ),
    Metric(
        "val-env/{env}/exact",
        "1 where `ceiling` is that of best play; 0 where it is a reference player's, "
        "which can be beaten",
        section="progress",
        healthy="constant",
    ),
    Metric(
        "val-env/{env}/num_samples",
        "episodes per level",
        section="progress",
        healthy="constant",
    ),
    Metric(
        "val-env/{env}/temperature",
        "sampling temperature",
        section="progress",
        healthy="constant",
    ),
    Metric(
        "val-env/{env}/seed",
        "seed of the held-out levels",
        section="progress",
        healthy="constant",
    ),
)

# Computed above, for the names that a game has.
GAME_METRIC = Metric(
    "{split}/{env}/game_{number}",
    "a number that a host game reports (`HostGame.metrics`), such as the F1 of an "
    "answer: its last value in an episode, mean over the episodes that have one and "
    "did not fail; of an agent also `game_segments` (dialogues), "
    "`game_reread_tokens` (read more than once) and `game_refused_calls`",
    section="play",
)

# `value` takes a trajectory; added over the rollouts of an iteration.
FAILED_ROWS = Metric(
    "rollout/failed_rows",
    "episodes whose host game failed; none of their tokens is trained on",
    section="play",
    healthy="0",
    cure="the console names the most common reason; see `host.step_seconds` and "
    "`host.max_worker_bytes`",
    value=lambda t: np.sum(~np.any(jax.device_get(t.loss_mask), axis=1)),
)
