"""The update at its edges: nothing kept, nothing finite, one row, and what it pulls."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.learner import tiny
from tests.reference import advantages_oracle, update_oracle
from tests.trajectories import make_trajectory

KEY = jax.random.key(3)
# Standard deviations of the groups: 0, 0.5, 1 and 2.
REWARDS = [0.0] * 4 + [0.0, 0, 0, 1] + [0.0, 0, 0, 2] + [0.0, 0, 0, 4]


def start_params():
    return tiny.host(tiny.make_state()).params


def test_dropped_groups_are_not_computed():
    """The network runs once per microbatch that holds a kept row."""
    calls = []

    def counted(params, tokens, positions, cache):
        jax.debug.callback(lambda: calls.append(None))
        return tiny.POLICY.forward(params, tokens, positions, cache)

    policy = dataclasses.replace(tiny.POLICY, forward=counted)
    state, update = tiny.build(
        policy=policy, keep_fraction=0.75, minibatch_rows=16, microbatch_rows=2
    )
    jax.block_until_ready(update(state, make_trajectory(REWARDS), KEY))
    jax.effects_barrier()
    assert len(calls) == 6


def test_the_state_is_donated():
    state, update = tiny.build()
    new_state, *_ = update(state, make_trajectory(REWARDS), KEY)
    assert state.params["embed"].is_deleted()
    assert state.policy.opt_state[1].mu["embed"].is_deleted()
    count = update.func._cache_size()
    update(new_state, make_trajectory(REWARDS), KEY)
    assert update.func._cache_size() == count


def test_a_step_that_is_not_finite_is_not_taken():
    """Rows are minibatches here: those of the broken group are left out one by one."""
    state, update = tiny.build(keep_fraction=1.0, minibatch_rows=1, microbatch_rows=1)
    whole = make_trajectory(REWARDS)
    reward = whole.turns.reward.at[0].set(jnp.nan)
    broken = whole.replace(turns=whole.turns.replace(reward=reward))
    state, stats, _ = update(state, broken, KEY)
    assert int(state.num_skipped) == int(stats["actor/skipped"]) == 4
    assert state.num_updates == 12
    assert stats["actor/num_minibatches"] == 16
    chex.assert_tree_all_finite((state.params, state.policy.opt_state))
    assert np.isfinite(stats["actor/pg_loss"])
    assert np.isfinite(stats["actor/grad_norm"])

    before = tiny.host(state)
    nothing = whole.turns.reward * jnp.nan
    lost = whole.replace(turns=whole.turns.replace(reward=nothing))
    for round_ in (1, 2):
        state, stats, _ = update(state, lost, KEY)
        in_a_row = before.consecutive_skipped + 16 * round_
        assert state.consecutive_skipped == in_a_row
        assert int(stats["actor/consecutive_skipped"]) == in_a_row
        assert stats["actor/skipped"] == 16
    chex.assert_trees_all_equal(state.params, before.params)
    chex.assert_trees_all_equal(state.policy.opt_state, before.policy.opt_state)
    state, stats, _ = update(state, whole, KEY)
    assert stats["actor/consecutive_skipped"] == stats["actor/skipped"] == 0
    assert state.num_skipped == 4 + 32


def test_no_trained_token_at_all_takes_no_step():
    trajectory = make_trajectory(REWARDS)
    silent = trajectory.replace(loss_mask=jnp.zeros_like(trajectory.loss_mask))
    state, update = tiny.build()
    before = tiny.host(state)
    state, stats, _ = update(state, silent, KEY)
    chex.assert_trees_all_equal(state.params, before.params)
    chex.assert_trees_all_equal(state.policy.opt_state, before.policy.opt_state)
    assert state.num_updates == state.num_skipped == 0
    chex.assert_tree_all_finite(stats)


def test_refuses_a_trajectory_of_another_size():
    state, update = tiny.build()
    with pytest.raises(ValueError, match=r"has 8 rows, .* for 4 groups of 4; make"):
        update(state, make_trajectory(REWARDS[:8]), KEY)


def test_groups_of_one():
    state, update = tiny.build(num_groups=16, group_size=1)
    state, stats, _ = update(state, make_trajectory(REWARDS), KEY)
    assert stats["rollout/filter_zero_count"] == 16
    assert state.num_updates == 1
    chex.assert_tree_all_finite((state, stats))


def learned(trajectory, **settings):
    state, update = tiny.build(keep_fraction=1.0, weight_decay=0.0, **settings)
    for i in range(10):
        state, *_ = update(state, trajectory, jax.random.fold_in(KEY, i))
    return tiny.host(state).params


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_good_episodes_become_likelier(sign):
    """And bad ones less likely: log-probabilities move along the advantages."""

    def log_probs(params):
        return np.asarray(
            update_oracle.naive_log_probs(
                tiny.POLICY, params, trajectory.tokens, tiny.TEMPERATURE
            )[0]
        )

    rewards = [sign * r for r in REWARDS]
    trajectory = make_trajectory(rewards)
    before = log_probs(start_params())
    mask = trajectory.loss_mask
    trajectory = trajectory.replace(sample_log_probs=jnp.where(mask, before, 0.0))
    change = log_probs(learned(trajectory, entropy_coeff=0.0)) - before
    advantages = advantages_oracle.grpo(rewards, 4, np.asarray(mask))
    assert change[advantages > 0].mean() > 0.1
    assert change[advantages < 0].mean() < -0.1


def test_entropy_bonus_raises_entropy():
    trajectory = make_trajectory([0.0] * 16)
    mask = np.asarray(trajectory.loss_mask)

    def mean_entropy(params):
        _, entropy = update_oracle.naive_log_probs(
            tiny.POLICY, params, trajectory.tokens, tiny.TEMPERATURE
        )
        return np.asarray(entropy)[mask].mean()

    before = mean_entropy(start_params())
    assert mean_entropy(learned(trajectory, entropy_coeff=0.1)) > before + 0.05
    chex.assert_trees_all_equal(learned(trajectory, entropy_coeff=0.0), start_params())


@pytest.mark.parametrize("host", [None, "echo"])
def test_rows_may_fail_where_a_game_may(host):
    """Of an array game the number of rows is a constant: bits of a run depend on it."""
    stages = tiny.learner(**{"env.host": host}).stages
    counted = stages.filter_config.counted(jnp.array([[True, False], [False, False]]))
    assert (None if counted is None else counted.tolist()) == (
        None if host is None else [True, False]
    )
