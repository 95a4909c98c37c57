"""Bandit: names, payouts, groups and text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.bandit.env import NAME_PAIRS
from tests.envs.levels import sample


def play_many(env, states, actions, params, seed=1):
    keys = jax.random.split(jax.random.key(seed), len(actions))
    step = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))
    return step(keys, states, actions, params)


def test_names_are_single_words_and_disjoint():
    assert {split: len(pairs) for split, pairs in NAME_PAIRS.items()} == {
        "train": 12,
        "test": 8,
    }
    names = [name for pairs in NAME_PAIRS.values() for pair in pairs for name in pair]
    assert len({name.lower() for name in names}) == len(names) == 40
    assert all(name.isalpha() and name.isascii() for name in names)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_high_arm_has_the_risky_name_unless_reversed(split, reverse):
    env = envs.make("bandit", split=split, reverse=reverse)
    states = sample(env, 200)
    names_of = jax.vmap(env.action_names, in_axes=(0, None))(states, env.default_params)
    high_names = set()
    for names, high_arm in zip(np.asarray(names_of), states.high_arm, strict=True):
        high_names.add(env.action_vocabulary[names[high_arm]])
        pair = {env.action_vocabulary[i] for i in names}
        assert pair in [set(p) for p in NAME_PAIRS[split]]
    # 200 uniform draws miss a pair with probability below 12 (11/12)^200 = 4e-7.
    assert high_names == {pair[0 if reverse else 1] for pair in NAME_PAIRS[split]}


def test_both_orders_are_equally_likely():
    high_arm = np.asarray(sample(envs.make("bandit"), 10_000).high_arm)
    # 5 standard deviations: a false alarm once in 1.7 million seeds.
    assert abs(high_arm.mean() - 0.5) < 5 * 0.5 / 100


@pytest.mark.parametrize("low_arm_reward", [0.1, 0.15])
def test_payouts(low_arm_reward):
    env = envs.make("bandit")
    params = env.default_params.replace(low_arm_reward=low_arm_reward)
    states = sample(env, 10_000)
    _, after, reward, terminated, info = play_many(
        env, states, 1 - states.high_arm, params
    )
    np.testing.assert_array_equal(reward, np.float32(low_arm_reward))
    assert not info["success"].any()
    assert terminated.all()
    assert (after.chosen == 1 - states.high_arm).all()
    _, _, reward, terminated, info = play_many(env, states, states.high_arm, params)
    assert set(np.unique(reward)) == {0.0, 1.0}
    # 5 standard deviations: a false alarm once in 1.7 million seeds.
    assert abs(reward.mean() - 0.25) < 5 * (0.25 * 0.75 / 10_000) ** 0.5
    assert info["success"].all()
    assert info["effective"].all()
    assert terminated.all()


def test_a_group_shares_the_level_but_not_the_payout():
    env = envs.make("bandit")
    one = env.reset_env(jax.random.key(3), env.default_params)[1]
    group = jax.tree.map(lambda x: jnp.broadcast_to(x, (64,)), one)
    actions = jnp.broadcast_to(one.high_arm, (64,))
    rewards = play_many(env, group, actions, env.default_params)[2]
    # All 64 payouts agree with probability 0.75^64 = 1e-8.
    assert set(np.unique(rewards)) == {0.0, 1.0}


def test_text_names_the_arms_in_order_and_then_the_choice():
    env = envs.make("bandit")
    params = env.default_params
    _, state = env.reset_env(jax.random.key(5), params)
    first, second = (env.action_vocabulary[i] for i in env.action_names(state, params))
    assert env.render(state, params) == f"Your options: {first} or {second}.\n"
    for action, name in enumerate((first, second)):
        after = env.step_env(jax.random.key(0), state, action, params)[1]
        assert env.render(after, params) == (
            f"Your options: {first} or {second}.\nYou took {name}.\n"
        )
