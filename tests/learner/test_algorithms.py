"""Every entry of every table inside whole updates, against the oracle.

Each setting joins several entries that do not hide each other; `test_covers` counts
them.
"""

import chex
import jax
import numpy as np
import pytest

from configs import base
from ragen_jax.registry.settings import Setting, flatten
from tests.learner import tiny
from tests.reference.learner_oracle import Learner

# Tolerances are those of rounding; without the optimizations of LLVM sums round more.
pytestmark = pytest.mark.optimized

KEY = jax.random.key(11)

SETTINGS = {
    "gae, clipped values, several minibatches": {
        "advantage": "gae",
        "algo__gamma": 0.9,
        "lam": 0.8,
        "reward_placement": "turn",
        "clip_value": 0.05,
        "loss_coeff": 3.0,
        "epochs": 2,
        "minibatch_rows": 6,
        "microbatch_rows": 3,
    },
    "gae on a shared trunk, importance cap, adaptive KL loss": {
        "advantage": "gae",
        "trunk": "shared",
        "clip_value": None,
        "importance_cap": 1.1,
        "old_log_probs": "learner",
        "aggregation": "seq_mean_token_mean",
        "placement": "loss",
        "coeff": 0.5,
        "target": 0.05,
        "horizon": 50,
        "keep_fraction": 1.0,
        "minibatch_rows": 16,
    },
    "critic warm-up, linear schedule, top-p times rho": {
        "advantage": "gae",
        "critic__warmup_updates": 1,
        "schedule__warmup_updates": 1,
        "shape": "linear",
        "decay_updates": 4,
        "keep_fraction": None,
        "rule": "top_p",
        "filter__top_p": 0.6,
        "top_p_epsilon": 0.2,
        "keep_zero": False,
        "loss_scale": "rho",
        "minibatch_rows": 4,
    },
    "bi-level gae, adaptive KL in the reward, min-p": {
        "advantage": "bi_level_gae",
        "algo__gamma": 0.95,
        "lam": 0.9,
        "high_level_gamma": 0.7,
        "reward_placement": "turn",
        "placement": "reward",
        "estimator": "k1",
        "coeff": 0.3,
        "target": 0.2,
        "horizon": 60,
        "keep_fraction": None,
        "rule": "min_p",
        "min_p": 0.7,
        "loss_scale": "linear",
    },
    "grpo over normalised rewards, fixed KL in the reward, soft filter": {
        "placement": "reward",
        "coeff": 0.2,
        "normalization": "mean_std",
        "grouping": "batch",
        "weigh_groups": True,
        "keep_fraction": None,
        "rule": "top_k",
        "filter__top_k": 3,
        "direction": "smallest",
    },
    "dr_grpo, k1 as a loss, softmax top-p, lengths weighed": {
        "advantage": "dr_grpo",
        "placement": "loss",
        "estimator": "k1",
        "coeff": 0.1,
        "aggregation": "seq_mean_token_sum_norm",
        "keep_fraction": None,
        "rule": "top_p_softmax",
        "filter__top_p": 0.6,
        "loss_scale": "sqrt",
        "weigh_lengths": True,
    },
    "rloo, gspo, k2 as a loss, a quantile band of mean rewards": {
        "advantage": "rloo",
        "loss__policy": "gspo",
        "clip_low": 0.05,
        "clip_high": 0.05,
        "dual_clip": None,
        "placement": "loss",
        "estimator": "k2",
        "coeff": 0.4,
        "aggregation": "seq_mean_token_sum",
        "score": "reward_mean",
        "keep_fraction": None,
        "rule": "quantile_band",
        "quantile_low": 0.25,
        "quantile_high": 0.75,
        "minibatch_rows": 4,
    },
    "reinforce per turn, cispo, choice by entropy": {
        "advantage": "reinforce",
        "algo__gamma": 0.9,
        "reward_placement": "turn",
        "loss__policy": "cispo",
        "clip_low": 0.1,
        "clip_high": 0.1,
        "dual_clip": None,
        "score": "entropy",
        "minibatch_rows": 4,
    },
    "reinforce++, straight-through k3, rows inside groups, cosine": {
        "advantage": "reinforce_plus_plus",
        "algo__gamma": 0.97,
        "normalization": "asymmetric_clip",
        "placement": "loss",
        "estimator": "k3+",
        "coeff": 0.4,
        "keep_fraction": None,
        "rule": "within_group",
        "rows_per_group": 2,
        "keep_zero": False,
        "shape": "cosine",
        "decay_updates": 2,
        "final_fraction": 0.3,
        "minibatch_rows": 4,
    },
    "reinforce++ with a baseline, straight-through k1, spread of entropies": {
        "advantage": "reinforce_plus_plus_baseline",
        "normalization": "mean",
        "placement": "loss",
        "estimator": "k1+",
        "coeff": 0.4,
        "score": "entropy_std",
        "minibatch_rows": 4,
    },
    "gigpo, absolute KL, shortest episodes, no dual clip": {
        "advantage": "gigpo",
        "algo__gamma": 0.9,
        "step_weight": 0.5,
        "placement": "loss",
        "estimator": "abs",
        "coeff": 0.3,
        "score": "length",
        "direction": "smallest",
        "dual_clip": None,
        "minibatch_rows": 4,
    },
    "no task: entropy and KL alone, by variance": {
        "zero_task": True,
        "placement": "loss",
        "estimator": "k3",
        "coeff": 0.4,
        "score": "reward_variance",
        "minibatch_rows": 4,
    },
    "poorest groups, twice": {
        "score": "reward_sum",
        "direction": "smallest",
        "epochs": 2,
        "minibatch_rows": 4,
    },
}
# Learned from nothing in a run of one game.
ELSEWHERE = {"algo.grouping": {"environment"}}


@pytest.fixture(scope="module")
def episodes():
    return tiny.make_episodes()


def run(trajectory, settings, num_updates):
    """The learner's and the oracle's states and stats, side by side."""
    state, update = tiny.build(**settings)
    start = tiny.host(state)
    critic = None if start.critic is None else start.critic.params
    oracle = Learner(tiny.make_config(**settings), start.params, critic)
    found, expected = [], []
    for i in range(num_updates):
        key = jax.random.fold_in(KEY, i)
        expected.append(oracle.update(trajectory, key))
        state, stats, _ = update(state, trajectory, key)
        found.append(jax.device_get(stats))
    return (tiny.host(state), found), (oracle, expected)


def assert_equals_oracle(result, expected):
    (state, stats), (oracle, expected_stats) = result, expected
    assert state.iteration == oracle.iteration
    assert state.num_skipped == 0
    networks = [("policy", state.policy, oracle.policy)]
    if oracle.critic is not None:
        networks.append(("critic", state.critic, oracle.critic))
    for which, network, other in networks:
        adam = network.opt_state[1]
        assert adam.count == other.steps, which
        for what, tree, named in (
            ("parameters", network.params, other.params),
            ("first moments", adam.mu, other.first),
            ("second moments", adam.nu, other.second),
        ):
            for path, leaf in jax.tree.flatten_with_path(tree)[0]:
                name = ".".join(k.key for k in path)
                # Sizes of gradients show in the moments only: Adam's steps hide them.
                np.testing.assert_allclose(
                    leaf,
                    named[name],
                    rtol=1e-4,
                    atol=1e-5 if what == "parameters" else 3e-5 * np.abs(leaf).max(),
                    err_msg=f"{what} of the {which}: {name}",
                )
    for round_, (numbers, others) in enumerate(zip(stats, expected_stats, strict=True)):
        for name, value in others.items():
            np.testing.assert_allclose(
                numbers[name], value, rtol=1e-4, atol=2e-5, err_msg=f"{name} {round_}"
            )


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_equals_oracle(episodes, settings):
    num_updates = 3 if "shape" in settings else 2
    result, expected = run(episodes, settings, num_updates)
    assert_equals_oracle(result, expected)
    moved = np.abs(result[0].params["mix"] - tiny.make_state().params["mix"]).max()
    assert moved > 1e-3


LEARNER = base.SETTINGS.only("algo", "kl", "loss", "critic", "schedule", "filter")


def test_covers_every_entry_of_every_table():
    configs = [flatten(tiny.make_config(**settings)) for settings in SETTINGS.values()]
    missing = {
        key: set(entry.choices)
        - {leaves[key] for leaves in configs}
        - ELSEWHERE.get(key, set())
        for key, entry in LEARNER.items()
        if isinstance(entry, Setting)
    }
    assert {key: names for key, names in missing.items() if names} == {}


def test_warm_up_trains_the_critic_alone(episodes):
    settings = SETTINGS["critic warm-up, linear schedule, top-p times rho"]
    state, update = tiny.build(**settings)
    before = tiny.host(state)
    state, stats, _ = update(state, episodes, KEY)
    assert stats["actor/lr"] == 0
    assert stats["critic/lr"] > 0
    chex.assert_trees_all_equal(tiny.host(state).policy, before.policy)
    assert (state.critic.params["head"]["kernel"] != 0).all()
    chex.assert_trees_all_equal_shapes(before.critic, state.critic)
    moved = tiny.host(state).critic.params["trunk"]["mix"]
    assert (moved != before.critic.params["trunk"]["mix"]).all()
    _, stats, _ = update(state, episodes, KEY)
    assert stats["actor/lr"] > 0
