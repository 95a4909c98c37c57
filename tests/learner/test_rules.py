"""Combinations of algorithm keys that make no sense: what, why, and the cure."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from ragen_jax.algo.advantages import ADVANTAGES, grpo
from ragen_jax.algo.credit import CreditAssignment, KLPenalty
from ragen_jax.algo.losses import POLICY_LOSSES
from ragen_jax.config import validate
from ragen_jax.learner.batch import named_arrays
from ragen_jax.learner.rules import needs_critic
from ragen_jax.registry.functions import from_section
from ragen_jax.registry.settings import flatten, number
from tests.algo.calls import options_of
from tests.learner import tiny
from tests.learner.tiny import rule

GROUPS_OF_ONE = {
    "rollout.group_size": 1,
    "algo.advantage": "gae",
    "filter.keep_fraction": 1.0,
}
ONE_TURN = {"rollout.max_turns": 1}
TOP_P = rule("top_p", top_p=0.9)


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
        (
            "filter.keep_fraction = 0.25",
            "is not an option of",
            "--config.filter.keep_fract",
        ),
    ),
    (
        {"filter.loss_scale": "rho"},
        ("filter.loss_scale = 'rho'", "does not use", "choose 'linear' or 'sqrt'"),
    ),
    (
        rule("quantile_band", quantile_low=0.5, quantile_high=0.5),
        ("filter.quantile_low = 0.5", "not below", "exchange them"),
    ),
    (
        rule("within_group", rows_per_group=9),
        (
            "filter.rows_per_group = 9",
            "more .*than a group|more rows than",
            "at most 8",
        ),
    ),
    (
        rule("top_k", top_k=17),
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
        {"train.min_success": 0.1, "train.failure_window": 5},
        ("train.min_success = 0.1", "4 come before the last", "raise train.num_iter"),
    ),
    (
        {"train.min_spread_fraction": 0.1, "train.collapse_window": 20},
        ("two windows", "39 come before the last", "lower the window"),
    ),
    (
        {"learner.epochs": 10**9},
        ("learner.epochs = 1000000000", "4000000000 optimizer steps", "at most 5368"),
    ),
    (
        {"learner.share_prompts": True, "learner.microbatch_rows": 4},
        ("learner.microbatch_rows = 4", "one pass on one device", "= 8; use one"),
    ),
    (
        {"learner.share_prompts": True, "mesh.data": 2},
        ("learner.microbatch_rows = 8", "one pass on one device", "= 16; use one"),
    ),
    (
        {
            "learner.share_prompts": True,
            "rollout.context": "last_k",
            "rollout.context_turns": 2,
        },
        ("rollout.context = 'last_k'", "another prompt", "use 'full', or"),
    ),
    (
        {"learner.share_prompts": True} | rule("within_group", rows_per_group=4),
        ("filter.rule = 'within_group'", "groups whole", "choose another rule"),
    ),
    (
        {"train.min_success": 0.1, "evaluation.every": None},
        ("train.min_success = 0.1", "needs held-out", "set that to a number"),
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
        {
            "train.min_success": 0.01,
            "train.failure_window": 4,
            "train.min_spread_fraction": 0.1,
        },
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
    ({}, ["filter.top_p_epsilon"]),
    ({"algo.reward_placement": "turn"}, ["algo.normalization"]),
    ({"filter.keep_fraction": 1.0}, ["filter.direction", "filter.loss_scale"]),
    (TOP_P | {"filter.top_p": 1.0}, ["filter.top_p_epsilon", "filter.direction"]),
    (rule("within_group", rows_per_group=4), ["filter.direction"]),
    ({"loss.policy": "gspo"}, ["loss.dual_clip"]),
    ({"loss.policy": "cispo"}, ["loss.dual_clip"]),
    ({}, ["train.max_empty_iterations"]),
    (TOP_P | {"filter.top_p": 1.0}, ["train.max_empty_iterations"]),
    (rule("min_p", min_p=0.5), ["train.max_empty_iterations"]),
    (rule("top_k", top_k=1), ["train.max_empty_iterations"]),
    (
        rule("quantile_band", quantile_low=0.2, quantile_high=0.3),
        ["train.max_empty_iterations"],
    ),
    (
        {"filter.keep_zero": False, "train.max_empty_iterations": 40},
        ["train.max_empty_iterations"],
    ),
    ({"algo.normalization": "mean"}, ["algo.normalization", "algo.grouping"]),
    (
        {"algo.normalization": "mean_std", "algo.grouping": "batch"},
        ["algo.normalization", "algo.grouping"],
    ),
    (
        {"algo.normalization": "mean", "algo.advantage": "rloo"},
        ["algo.normalization"],
    ),
    (
        rule("within_group", rows_per_group=4) | {"filter.loss_scale": "linear"},
        ["filter.loss_scale"],
    ),
    (
        {"algo.zero_task": True},
        [
            "loss.clip_low",
            "loss.clip_high",
            "loss.dual_clip",
            "loss.policy",
            "filter.loss_scale",
            "algo.weigh_groups",
            "algo.weigh_lengths",
            "algo.reward_placement",
        ],
    ),
    (
        {
            "algo.zero_task": True,
            "loss.old_log_probs": "learner",
            "loss.importance_cap": 2.0,
        },
        ["loss.importance_cap"],
    ),
    (
        {"algo.zero_task": True, "kl.placement": "reward", "kl.target": 0.1},
        ["kl.coeff", "kl.target", "kl.horizon"],
    ),
    (rule("within_group", rows_per_group=1), ["algo.weigh_groups"]),
    (ONE_TURN | {"algo.advantage": "gigpo"}, ["algo.gamma"]),
    (ONE_TURN | {"algo.reward_placement": "turn"}, ["algo.reward_placement"]),
    (
        GROUPS_OF_ONE | {"learner.share_prompts": True},
        ["learner.share_prompts"],
    ),
    (
        {"warning.baseline_iterations": 40},
        ["warning.baseline_iterations", "warning.persistence", "warning.spread_low"],
    ),
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
        (TOP_P, "train.max_empty_iterations"),
        ({"filter.keep_zero": False}, "train.max_empty_iterations"),
        (
            rule("min_p", min_p=0.5) | {"filter.score": "reward_mean"},
            "train.max_empty_iterations",
        ),
        (
            rule("quantile_band", quantile_low=0.2, quantile_high=0.22),
            "train.max_empty_iterations",
        ),
        ({"algo.normalization": "asymmetric_clip"}, "algo.normalization"),
        (
            {"algo.normalization": "mean_std", "algo.advantage": "dr_grpo"},
            "algo.normalization",
        ),
        (
            {"algo.normalization": "mean_std", "kl.placement": "reward"},
            "algo.normalization",
        ),
        (
            {"algo.normalization": "mean_std", "algo.weigh_groups": True},
            "algo.normalization",
        ),
        (
            rule("within_group", rows_per_group=4) | {"filter.keep_zero": False},
            "filter.loss_scale",
        ),
        ({"algo.zero_task": True, "algo.advantage": "gae"}, "algo.lam"),
        (ONE_TURN | {"algo.advantage": "gae"}, "algo.gamma"),
        ({"warning.baseline_iterations": 39}, "warning.baseline_iterations"),
        # To say "off" once more does no harm.
        ({}, "kl.placement"),
        ({}, "kl.target"),
    ],
)
def test_a_key_with_effect_is_not(changes, key):
    validate(config_with(changes), [key])


def test_a_new_estimator_is_a_function_and_a_line(monkeypatch):
    """Its signature says that it needs a critic or groups, and which keys it reads."""

    def of_groups(rewards, mask, *, group_size, lam):
        raise NotImplementedError

    def of_values(rewards, mask, *, values, gamma):
        raise NotImplementedError

    monkeypatch.setitem(ADVANTAGES, "of_groups", of_groups)
    monkeypatch.setitem(ADVANTAGES, "of_values", of_values)
    groups, values = ({"algo.advantage": f"of_{x}"} for x in ("groups", "values"))
    with pytest.raises(ValueError, match=r"= 'of_groups' nothing to compare .*values"):
        validate(config_with(GROUPS_OF_ONE | groups))
    validate(config_with(GROUPS_OF_ONE | values))
    assert not needs_critic(flatten(config_with(groups)))
    assert needs_critic(flatten(config_with(values)))
    for changes, key, is_dead in [
        (groups, "algo.lam", False),
        (groups, "algo.gamma", True),
        (groups, "critic.trunk", True),
        (values, "algo.gamma", False),
        (values, "algo.lam", True),
        (values, "critic.trunk", False),
    ]:
        if is_dead:
            with pytest.raises(ValueError, match=f"{key} has no effect here"):
                validate(config_with(changes), [key])
        else:
            validate(config_with(changes), [key])


def test_a_new_estimator_gets_its_critic_and_its_key(monkeypatch):
    """The learner builds one, passes its values on, and trains it.

    Its option is new, too: a declaration in `configs/base.py` is all that it needs.
    """
    seen = []
    sharpness = {"algo.sharpness": number(1.0, "Sharpness of the estimate.")}

    def centred(rewards, mask, *, values, group_size, lam, sharpness):
        # Not declared as data; lambda is, and an argument of the program.
        seen.append(sharpness)
        estimate = grpo(rewards, mask, group_size=group_size)
        return estimate.replace(returns=values * 0.0 + lam)

    monkeypatch.setitem(ADVANTAGES, "centred", centred)
    monkeypatch.setattr(base, "SETTINGS", base.SETTINGS | sharpness)
    settings = {"advantage": "centred", "lam": 0.75, "sharpness": 3.0}
    validate(tiny.make_config(**settings), ["algo.sharpness"])
    with pytest.raises(ValueError, match=r"algo\.sharpness has no effect here"):
        validate(tiny.make_config(sharpness=3.0), ["algo.sharpness"])
    state, update = tiny.build(**settings)
    before = tiny.host(state)
    state, stats, _ = update(state, tiny.make_episodes(), jax.random.key(0))
    assert seen == [3.0]
    assert stats["critic/returns_mean"] == 0.75
    kernels = [s.critic.params["head"]["kernel"] for s in (before, state)]
    assert (kernels[0] != kernels[1]).any()


UNDONE = [
    *(("mean", name) for name in ("grpo", "dr_grpo", "rloo", "gigpo")),
    ("mean", "reinforce_plus_plus_baseline"),
    ("mean_std", "grpo"),
    ("mean_std", "gigpo"),
]


def advantages(**settings):
    credit = from_section(CreditAssignment, tiny.make_config(**settings).algo)
    trajectory = tiny.make_episodes()
    mask = trajectory.loss_mask
    estimate, _ = credit.assign(
        named_arrays(trajectory, group_size=4),
        old_log_probs=trajectory.sample_log_probs,
        ref_log_probs=None,
        values=jnp.zeros(mask.shape),
        loss_scale=jnp.float32(1),
        kl_penalty=KLPenalty(None, 0.0, "k3", None, 1),
        kl_coeff=jnp.float32(0),
    )
    return estimate.advantages


@pytest.mark.parametrize("grouping", ["state", "batch"])
@pytest.mark.parametrize(("normalization", "advantage"), UNDONE)
def test_a_refused_normalization_would_change_nothing(
    normalization, advantage, grouping
):
    settings = {"algo__advantage": advantage, "algo__grouping": grouping}
    changes = {"algo.advantage": advantage, "algo.normalization": normalization}
    with pytest.raises(ValueError, match=r"which undoes algo\.normal"):
        validate(config_with(changes), ["algo.normalization"])
    with jax.disable_jit():
        plain = advantages(**settings)
        normalized = advantages(**settings, algo__normalization=normalization)
    np.testing.assert_allclose(normalized, plain, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("normalization", ["mean", "mean_std"])
def test_a_normalization_that_changes_something_is_not_refused(normalization):
    estimator = {"algo.advantage": "reinforce", "algo.normalization": normalization}
    validate(config_with(estimator), ["algo.normalization"])
    with jax.disable_jit():
        plain = advantages(algo__advantage="reinforce")
        normalized = advantages(
            algo__advantage="reinforce", algo__normalization=normalization
        )
    assert not np.allclose(plain, normalized, atol=1e-2)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_without_advantages_a_policy_loss_has_no_gradient(name):
    """So that keys of the policy loss have no effect beside `algo.zero_task`."""
    draws = np.random.default_rng(0).normal(size=(2, 3, 5))
    log_probs, old = jnp.asarray(draws, jnp.float32)
    mask, zeros = jnp.ones((3, 5), bool), jnp.zeros((3, 5))
    loss = POLICY_LOSSES[name]
    options = options_of(loss)
    gradient = jax.grad(lambda x: loss(x, old, zeros, mask, **options)[0].sum())
    assert not gradient(log_probs).any()
