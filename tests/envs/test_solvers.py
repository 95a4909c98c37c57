"""Solvers against plain Python."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import PlayBudget
from tests.envs import levels
from tests.reference import frozen_lake_oracle as oracle

NUM_LEVELS = 8


@functools.cache
def lake(size):
    """A board with many holes, so that play is hard."""
    return envs.make("frozen_lake", size=size, frozen_probability=0.75)


def sample(env, num_levels=NUM_LEVELS, *, anywhere=True):
    """Levels; with `anywhere` the player stands on a random tile, even a final one."""
    states = levels.sample(env, num_levels, seed=2)
    if not anywhere:
        return states
    tiles = jax.random.randint(jax.random.key(3), (num_levels,), 0, env.size**2)
    return states.replace(position=tiles)


def unpack(env, states):
    """(holes, goal, tile, is finished) of every level, as the oracle writes them."""
    states = jax.device_get(states)
    for holes, goal, position in zip(
        states.holes, states.goal, states.position, strict=True
    ):
        holes = {divmod(int(t), env.size) for t in np.flatnonzero(holes)}
        goal, tile = divmod(int(goal), env.size), divmod(int(position), env.size)
        yield holes, goal, tile, tile == goal or tile in holes


@pytest.mark.parametrize(
    ("size", "success_rate", "discount"),
    [(4, 0.8, 1.0), (4, 1 / 3, 0.95), (3, 1.0, 0.9)],
)
def test_frozen_lake_values(size, success_rate, discount):
    env = lake(size)
    params = env.default_params.replace(success_rate=success_rate)
    states = sample(env)
    solution = env.solve(states, params, budget=PlayBudget(1, 1, 1), discount=discount)
    expected = np.array(
        [
            [0.0] * 4
            if finished
            else oracle.action_values(holes, goal, tile, size, success_rate, discount)
            for holes, goal, tile, finished in unpack(env, states)
        ]
    )
    np.testing.assert_allclose(solution.action_values, expected, atol=2e-5)
    np.testing.assert_array_equal(solution.value, solution.action_values.max(1))


@pytest.mark.parametrize(
    ("size", "success_rate", "budget"),
    [
        (4, 0.8, PlayBudget(3, 2, 5)),
        (4, 1 / 3, PlayBudget(2, 3, 6)),
        (3, 1.0, PlayBudget(2, 2, 3)),
        (3, 0.5, PlayBudget(1, 4, 3)),
    ],
)
def test_frozen_lake_best_success(size, success_rate, budget):
    env = lake(size)
    params = env.default_params.replace(success_rate=success_rate)
    states = sample(env)
    solution = env.solve(states, params, budget=budget, discount=1.0)
    expected = [
        oracle.best_success(
            holes,
            goal,
            tile,
            size,
            success_rate,
            turns=budget.max_turns,
            per_turn=budget.max_actions_per_turn,
            actions=budget.max_actions_per_episode,
        )
        for holes, goal, tile, _ in unpack(env, states)
    ]
    np.testing.assert_allclose(solution.best_success, expected, atol=1e-5)
    assert 0.0 < np.mean(expected) < 1.0


def test_seeing_more_often_never_hurts():
    env = lake(4)
    states = sample(env, anywhere=False)

    def chances(*budget):
        budget = PlayBudget(*budget)
        return env.solve(
            states, env.default_params, budget=budget, discount=1.0
        ).best_success

    often, blind = chances(3, 1, 3), chances(1, 3, 3)
    assert (often >= blind - 1e-6).all()
    assert often.mean() > blind.mean()


def test_best_success_respects_the_time_limit():
    env = lake(4)
    params = env.default_params.replace(max_steps_in_episode=20)
    states = sample(env, anywhere=False)

    def solve(time, actions):
        late = states.replace(time=jnp.full((NUM_LEVELS,), time, jnp.int32))
        budget = PlayBudget(3, 2, actions)
        return env.solve(late, params, budget=budget, discount=1.0)

    np.testing.assert_array_equal(solve(17, 5).best_success, solve(0, 3).best_success)
    assert not solve(20, 5).best_success.any()
    assert not solve(20, 5).action_values.any()


def test_too_many_plans_are_refused():
    env = lake(4)
    with pytest.raises(ValueError, match=r"max_actions_per_turn=10 .* at most 8"):
        env.solve(
            sample(env, 1),
            env.default_params,
            budget=PlayBudget(1, 10, 10),
            discount=1.0,
        )


def test_greedy_play_earns_the_value():
    env = lake(3)
    params = env.default_params.replace(max_steps_in_episode=1000)
    start = jax.tree.map(lambda x: x[0], sample(env, 1, anywhere=False))
    everywhere = jax.vmap(lambda tile: start.replace(position=tile))(jnp.arange(9))
    budget = PlayBudget(1, 1, 1)
    # A discount below 1 makes progress pay; close to 1 the return is the chance.
    solution = env.solve(everywhere, params, budget=budget, discount=0.999)
    policy = jnp.argmax(solution.action_values, axis=1)

    def play(key):
        def step(state, key):
            action = policy[state.position]
            _, state, reward, _, _ = env.step_env(key, state, action, params)
            return state, reward * 0.999 ** (state.time - 1).astype(jnp.float32)

        return jax.lax.scan(step, start, jax.random.split(key, 200))[1].sum()

    earned = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(9), 4000))
    value = float(solution.value[start.position])
    # 5 standard errors: a false alarm once in 1.7 million seeds.
    assert abs(earned.mean() - value) < 5 * earned.std() / 4000**0.5 + 1e-4


@pytest.mark.parametrize("low_arm_reward", [0.15, 0.4])
def test_bandit(low_arm_reward):
    env = envs.make("bandit")
    params = env.default_params.replace(low_arm_reward=low_arm_reward)
    states = sample(env, 6, anywhere=False).replace(
        high_arm=jnp.array([0, 1, 0, 0, 1, 0], jnp.int32),
        chosen=jnp.array([-1, -1, 0, 1, 1, -1], jnp.int32),
        time=jnp.array([0, 0, 1, 1, 1, 1], jnp.int32),
    )
    solution = env.solve(states, params, budget=PlayBudget(1, 2, 1), discount=0.5)
    means = [[0.25, low_arm_reward], [low_arm_reward, 0.25], *[[0.0, 0.0]] * 4]
    np.testing.assert_allclose(solution.action_values, means, rtol=1e-6)
    np.testing.assert_allclose(solution.value, np.max(means, 1), rtol=1e-6)
    np.testing.assert_array_equal(solution.best_success, [1, 1, 1, 0, 1, 0])
    none_left = env.solve(states, params, budget=PlayBudget(0, 2, 1), discount=1.0)
    np.testing.assert_array_equal(none_left.best_success, [0, 0, 1, 0, 1, 0])
