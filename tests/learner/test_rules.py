"""Combinations of algorithm keys that make no sense: what, why, and the cure."""

import re

import pytest

from configs import base
from ragen_jax.config import validate

GROUPS_OF_ONE = {
    "rollout.group_size": 1,
    "algo.advantage": "gae",
    "filter.keep_fraction": 1.0,
}
TOP_P = {"filter.rule": "top_p", "filter.keep_fraction": None, "filter.top_p": 0.9}


def config_with(changes):
    config = base.get_config()
    config.update_from_flattened_dict(changes)
    return config


# Changes of the defaults, and (key and value, why, cure) of the refusal.
BROKEN = [
    (
        {"kl.target": 0.1},
        ("kl.target = 0.1", "has no reference to keep near", "set kl.placement to"),
    ),
    (
        {"kl.placement": "reward", "kl.estimator": "k3+"},
        ("kl.estimator = 'k3+'", "gradient only", "kl.placement = 'loss'"),
    ),
    ({"kl.coeff": 0.0}, ("kl.coeff = 0.0", "above 0", "kl.placement = None")),
    (TOP_P | {"filter.top_p": 1.2}, ("filter.top_p = 1.2", "mass", "at most 1")),
    (
        {"filter.keep_fraction": 1.2},
        ("filter.keep_fraction = 1.2", "all groups", "at most 1"),
    ),
    (
        {"rollout.group_size": 1},
        ("rollout.group_size = 1", "nothing to compare", "at least 2, or an estimator"),
    ),
    (
        GROUPS_OF_ONE | {"filter.keep_fraction": 0.5},
        ("filter.score = 'reward_std'", "no spread", "filter.keep_fraction = 1.0"),
    ),
    (
        GROUPS_OF_ONE | {"filter.keep_zero": False},
        ("filter.score = 'reward_std'", "no spread", "reward_mean"),
    ),
    (
        GROUPS_OF_ONE | {"algo.weigh_groups": True},
        ("algo.weigh_groups", "no spread", "set it to False"),
    ),
    (
        GROUPS_OF_ONE | {"train.min_spread_fraction": 0.1},
        ("train.min_spread_fraction", "has none", "set it to None"),
    ),
    (
        {"algo.reward_placement": "turn", "algo.normalization": "mean_std"},
        ("algo.normalization = 'mean_std'", "whole episodes", "use 'identity'"),
    ),
    (
        {"algo.grouping": "environment"},
        ("algo.grouping = 'environment'", "a run plays one", "use 'batch'"),
    ),
    (
        {"filter.rule": "min_p"},
        ("filter.rule = 'min_p'", "needs filter.min_p", "or choose another rule"),
    ),
    (
        TOP_P | {"filter.keep_fraction": 0.25},
        ("filter.keep_fraction = 0.25", "no option of", "--config.filter.keep_fract"),
    ),
    (
        {"filter.loss_scale": "rho"},
        ("filter.loss_scale = 'rho'", "does not use", "choose 'linear' or 'sqrt'"),
    ),
    (
        {
            "filter.rule": "quantile_band",
            "filter.keep_fraction": None,
            "filter.quantile_low": 0.5,
            "filter.quantile_high": 0.5,
        },
        ("filter.quantile_low = 0.5", "not below", "exchange them"),
    ),
    (
        {
            "filter.rule": "within_group",
            "filter.keep_fraction": None,
            "filter.rows_per_group": 9,
        },
        (
            "filter.rows_per_group = 9",
            "more rows than|more .*than a group",
            "at most 8",
        ),
    ),
    (
        {"filter.rule": "top_k", "filter.keep_fraction": None, "filter.top_k": 17},
        ("filter.top_k = 17", "more than there are", "use at most"),
    ),
    (
        {"schedule.shape": "linear"},
        ("schedule.decay_updates = None", "'linear'", "the length of the run"),
    ),
    (
        {
            "schedule.shape": "linear",
            "schedule.decay_updates": 5,
            "schedule.warmup_updates": 5,
        },
        ("schedule.decay_updates = 5", "leaves nothing after", "raise it"),
    ),
    (
        {"train.min_success": 0.1, "evaluation.every": None},
        ("train.min_success = 0.1", "nobody measures", "set that to a number"),
    ),
]


@pytest.mark.parametrize(("changes", "words"), BROKEN)
def test_a_bad_combination_says_what_why_and_the_cure(changes, words):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        validate(config_with(changes))
    for pattern in words:
        found = re.escape(pattern) if "|" not in pattern else pattern
        assert re.search(found, str(refusal.value)), pattern


@pytest.mark.parametrize(
    "changes",
    [
        GROUPS_OF_ONE,
        GROUPS_OF_ONE | {"filter.score": "reward_mean", "filter.keep_fraction": 0.5},
        TOP_P | {"filter.top_p": 1.0},
        TOP_P | {"filter.loss_scale": "rho"},
        {"train.min_success": 0.01, "train.min_spread_fraction": 0.1},
    ],
)
def test_a_good_one_passes(changes):
    validate(config_with(changes))


# Changes of the defaults -> keys that then do nothing: setting one is refused.
USELESS = [
    ({}, ["algo.gamma", "algo.lam", "algo.high_level_gamma", "algo.step_weight"]),
    ({"algo.advantage": "gae"}, ["algo.high_level_gamma", "algo.step_weight"]),
    ({"algo.advantage": "reinforce"}, ["algo.lam"]),
    ({}, ["critic.trunk", "critic.learning_rate", "critic.warmup_updates"]),
    ({}, ["kl.coeff", "kl.estimator", "kl.horizon"]),
    ({"kl.placement": "loss"}, ["kl.horizon"]),
    ({}, ["algo.grouping", "filter.top_p_epsilon", "schedule.final_fraction"]),
    (
        {"algo.advantage": "gae", "algo.reward_placement": "turn"},
        ["algo.grouping"],
    ),
    ({"filter.keep_fraction": 1.0}, ["filter.direction", "filter.loss_scale"]),
    (TOP_P | {"filter.top_p": 1.0}, ["filter.top_p_epsilon", "filter.direction"]),
    (
        {
            "filter.rule": "within_group",
            "filter.keep_fraction": None,
            "filter.rows_per_group": 4,
        },
        ["filter.direction"],
    ),
    ({"loss.policy": "gspo"}, ["loss.dual_clip"]),
    ({"loss.policy": "cispo"}, ["loss.dual_clip"]),
    ({}, ["train.collapse_window", "train.failure_window"]),
]


@pytest.mark.parametrize(("changes", "keys"), USELESS)
def test_a_key_without_effect_is_refused(changes, keys):
    config = config_with(changes)
    for key in keys:
        validate(config)
        with pytest.raises(ValueError, match=f"{key} has no effect here: .*leave it"):
            validate(config, [key])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"algo.advantage": "gae"}, "algo.lam"),
        ({"algo.advantage": "gae"}, "critic.trunk"),
        ({"kl.placement": "loss"}, "kl.coeff"),
        ({"kl.placement": "reward", "kl.target": 0.1}, "kl.horizon"),
        (TOP_P, "filter.top_p_epsilon"),
        ({"filter.keep_fraction": 1.0, "filter.keep_zero": False}, "filter.loss_scale"),
        # To say "off" once more does no harm.
        ({}, "kl.placement"),
        ({}, "kl.target"),
    ],
)
def test_a_key_with_effect_is_not(changes, key):
    validate(config_with(changes), [key])
