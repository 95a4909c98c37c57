"""The compiled update with a critic and a KL penalty: one program for every filter."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.learner import tiny
from tests.learner.test_algorithms import assert_equals_oracle
from tests.reference.learner_oracle import Learner

KEY = jax.random.key(5)
# Groups whose rewards spread are kept.
SETTINGS = {
    "separate": {
        "advantage": "gae",
        "lam": 0.9,
        "clip_value": 0.05,
        "placement": "loss",
        "coeff": 0.5,
        "target": 0.05,
        "horizon": 50,
        "keep_fraction": 1.0,
        "keep_zero": False,
        "minibatch_rows": 4,
    },
    "shared": {
        "advantage": "bi_level_gae",
        "trunk": "shared",
        "critic__warmup_updates": 1,
        "importance_cap": 1.2,
        "old_log_probs": "learner",
        "placement": "reward",
        "estimator": "k1",
        "coeff": 0.5,
        "target": 0.05,
        "horizon": 50,
        "keep_fraction": 1.0,
        "keep_zero": False,
        "minibatch_rows": 4,
    },
}


def spread(trajectory, num_groups):
    """The same with rewards that differ in the first groups only, all at once."""
    rows = np.arange(16)[:, None]
    first = np.arange(trajectory.turns.reward.shape[1])[None] == 0
    reward = np.where(first & (rows < 4 * num_groups), rows % 4 * 0.3, 0.0)
    turns = trajectory.turns.replace(reward=jnp.asarray(reward, jnp.float32))
    return trajectory.replace(turns=turns)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_changed_number_of_kept_rows_compiles_nothing(settings):
    """Also no group at all: no step, counted, nothing moves, nothing breaks."""
    state, update = tiny.build(**settings)
    start = tiny.host(state)
    oracle = Learner(tiny.make_config(**settings), start.params, start.critic.params)
    episodes, found, expected = tiny.make_episodes(), [], []
    for i, num_groups in enumerate((4, 1, 0, 3)):
        before = tiny.host(state)
        trajectory, key = spread(episodes, num_groups), jax.random.fold_in(KEY, i)
        state, stats, _ = update(state, trajectory, key)
        expected.append(oracle.update(trajectory, key))
        found.append(jax.device_get(stats))
        assert stats["rollout/filter_kept_rows"] == 4 * num_groups
        assert bool(stats["rollout/empty_after_filter"]) == (num_groups == 0)
        assert state.num_updates - before.num_updates == num_groups
        chex.assert_tree_all_finite((state, stats))
        if num_groups == 0:
            assert stats["actor/num_minibatches"] == stats["actor/ref_kl"] == 0
            for name in ("policy", "critic", "kl_coeff"):
                chex.assert_trees_all_equal(getattr(state, name), getattr(before, name))
    assert update.func._cache_size() == 1
    assert state.iteration == 4
    assert_equals_oracle((tiny.host(state), found), (oracle, expected))


def test_a_gradient_that_is_not_finite_moves_neither_network_nor_the_weight():
    state, update = tiny.build(**SETTINGS["separate"])
    whole = spread(tiny.make_episodes(), 4)
    reward = whole.turns.reward * jnp.inf
    broken = whole.replace(turns=whole.turns.replace(reward=reward))
    before = tiny.host(state)
    state, stats, _ = update(state, broken, KEY)
    for name in ("policy", "critic", "kl_coeff", "num_updates"):
        chex.assert_trees_all_equal(getattr(state, name), getattr(before, name))
    assert stats["actor/skipped"] == stats["actor/num_minibatches"]
