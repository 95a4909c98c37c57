"""Countdown: levels, rules and best play against plain Python."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import NEVER, PlayBudget
from envs.countdown import env as countdown
from envs.countdown.env import EnvState, expressions
from tests.envs.levels import sample
from tests.reference import countdown_oracle as oracle

ONE = PlayBudget(1, 1, 1)
VALUES = jax.jit(expressions.evaluate_all)


@functools.cache
def env_of(num_numbers=3, **kwargs):
    return envs.make("countdown", num_numbers=num_numbers, **kwargs)


@functools.cache
def trees(numbers):
    return oracle.trees(numbers)


def place(numbers, target, *, time=0, outcome=0):
    return EnvState(
        time=jnp.int32(time),
        numbers=jnp.array(numbers, jnp.int32),
        target=jnp.int32(target),
        outcome=jnp.int32(outcome),
    )


@pytest.mark.parametrize("target", [1, 63, 9_999])
def test_answers_are_compared_with_the_target_without_overflow(target):
    numbers = (99, 98, 97, 96)
    values = VALUES(jnp.array(numbers, jnp.int32))
    outcomes = countdown._outcome(values, jnp.int32(target))
    expected = [oracle.outcome(tree, target) for tree in trees(numbers)]
    np.testing.assert_array_equal(outcomes, expected)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"signs_only": True},
        {"max_number": 9, "max_target": 9},
        {"num_numbers": 4, "max_target": 9_999},
        {"num_numbers": 4, "max_number": 10, "max_target": 24, "signs_only": True},
    ],
)
@pytest.mark.parametrize("tries", [countdown.LEVEL_TRIES, 1])
def test_every_level_has_a_solution(kwargs, tries, monkeypatch):
    monkeypatch.setattr(countdown, "LEVEL_TRIES", tries)
    env = envs.make("countdown", **kwargs)
    states = jax.device_get(sample(env, 100))
    assert states.numbers.min() >= 1
    assert states.numbers.max() <= env.max_number
    assert states.target.min() >= 1
    assert states.target.max() <= env.max_target
    assert not states.outcome.any()
    for numbers, target in zip(states.numbers.tolist(), states.target, strict=True):
        if env.signs_only:
            signs = itertools.product((1, -1), repeat=len(numbers))
            assert any(np.dot(s, numbers) == target for s in signs)
        elif len(numbers) == 3:
            assert any(oracle.value(t) == target for t in oracle.trees(numbers))
    wins = env.solve(states, env.default_params, budget=ONE, discount=1.0)
    assert np.all(wins.best_success == 1)


def test_levels_use_all_operators_and_rarely_the_fallback():
    env = env_of()
    states = jax.device_get(sample(env, 500))
    signs = list(itertools.product((1, -1), repeat=3))
    by_signs = [
        any(np.dot(s, n) == t for s in signs)
        for n, t in zip(states.numbers, states.target, strict=True)
    ]
    assert 0.2 < np.mean(by_signs) < 0.95
    # The fallback makes sums of numbers up to 33 alone.
    assert np.mean(states.target == states.numbers.sum(1)) < 0.2
    assert len(np.unique(states.target)) > 60


def step(env, state, text, params):
    numbers = tuple(state.numbers.tolist())
    action = jnp.int32(oracle.index(text.encode(), numbers))
    outcome = env.step_env(jax.random.key(0), state, action, params)
    _, after, reward, terminated, info = outcome
    facts = (bool(terminated), bool(info["success"]), bool(info["effective"]))
    return after, round(float(reward), 6), facts


def test_rules():
    env = env_of()
    params = env.default_params
    state = place((44, 19, 35), 28)
    text = "Target: 28\nNumbers: 44 19 35\n"
    assert env.render(state, params) == text
    after, reward, facts = step(env, state, "44+19-35", params)
    assert (reward, facts) == (1.0, (True, True, True))
    assert env.render(after, params) == text + "Your last answer makes the target.\n"
    assert step(env, after, "44+19+35", params)[1:] == (0.0, (True, True, False))
    after, reward, facts = step(env, state, "44-19+35", params)
    assert (reward, facts) == (0.1, (False, False, True))
    assert env.render(after, params) == text + "Your last answer is too high.\n"
    assert bool(env.is_truncated(after, params))
    assert step(env, after, "44+19-35", params)[1:] == (0.0, (False, False, False))


def test_failing_first_earns_nothing():
    env = env_of()
    params = env.default_params.replace(max_steps_in_episode=5)
    state, earned = place((44, 19, 35), 28), []
    for text, outcome in (
        ("44-19-35", "is too low"),
        ("44-19-35", "is too low"),
        ("44/19-35", "is too low"),
        ("44*19*35", "is too high"),
        ("44+19-35", "makes the target"),
    ):
        state, reward, facts = step(env, state, text, params)
        assert f"Your last answer {outcome}." in env.render(state, params)
        earned.append((reward, facts[2]))
    assert earned == [(0.1, True), (0, False), (0, False), (0, True), (0.9, True)]
    state = step(env, place((7, 7, 3), 10), "3/(7-7)", params)[0]
    assert "divides by 0" in env.render(state, params)


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_best_play_is_that_of_trying_everything(attempts, discount):
    env = env_of()
    params = env.default_params.replace(
        max_steps_in_episode=attempts, solved_reward=2.0, numbers_reward=0.3
    )
    # The last level has no solution.
    tasks = [((44, 19, 35), 28), ((1, 2, 3), 6), ((7, 7, 3), 3), ((1, 1, 1), 50)]
    cases = [
        (*task, outcome, time)
        for task in tasks
        for outcome in range(5)
        for time in range(attempts + 1)
    ]
    states = [place(n, t, outcome=o, time=time) for n, t, o, time in cases]
    states = jax.tree.map(lambda *x: jnp.stack(x), *states)
    solution = env.solve(states, params, budget=PlayBudget(9, 9, 9), discount=discount)
    fewest = env.fewest_actions(states, params)

    @functools.cache
    def values(numbers, target, outcome, time):
        if outcome == 4 or time >= attempts:
            return [0.0] * 192
        result = []
        for tree in trees(numbers):
            after = oracle.outcome(tree, target)
            reward = (2.0 if after == 4 else 0.3) - (0.3 if outcome else 0.0)
            later = max(values(numbers, target, after, time + 1))
            result.append(reward + discount * later)
        return result

    np.testing.assert_allclose(
        solution.action_values, [values(*case) for case in cases], atol=1e-6
    )
    np.testing.assert_array_equal(solution.value, solution.action_values.max(1))
    can_win = [case[2] == 4 or (case[3] < attempts and case[1] < 50) for case in cases]
    np.testing.assert_array_equal(solution.best_success, can_win)
    best = [
        0 if c[2] == 4 else 1 if ok else NEVER
        for c, ok in zip(cases, can_win, strict=True)
    ]
    np.testing.assert_array_equal(fewest, best)
    none = env.solve(states, params, budget=PlayBudget(0, 9, 9), discount=discount)
    np.testing.assert_array_equal(none.best_success, [c[2] == 4 for c in cases])


def test_levels_are_held_out_whatever_the_order_of_their_numbers():
    env = env_of()
    states = sample(env, 200)
    is_held_out = jax.vmap(env.is_held_out, (0, None))
    expected = is_held_out(states, env.default_params)
    turned = states.replace(numbers=jnp.roll(states.numbers, 1, axis=1))
    np.testing.assert_array_equal(is_held_out(turned, env.default_params), expected)
    assert 0.1 < np.mean(expected) < 0.4


@pytest.mark.parametrize("num_numbers", [3, 4])
def test_a_thought_states_the_first_step_of_a_solution(num_numbers):
    env = env_of(num_numbers)
    states = sample(env, 32)
    facts = env.facts()
    words = jax.jit(jax.vmap(facts.read, (0, None)))(states, env.default_params)
    for row, numbers, target in zip(words, states.numbers, states.target, strict=True):
        left, operator, right, result = (
            choice.options[i] for choice, i in zip(facts.words, row, strict=True)
        )
        numbers = numbers.tolist()
        numbers.remove(int(left))
        numbers.remove(int(right))
        value = oracle.value((operator, int(left), int(right)))
        is_stated = value.denominator == 1 and -99 <= value < 1000
        assert result == (f"={value}" if is_stated else "=?")
        if num_numbers == 3:
            # The value stays exact as a leaf of a smaller tree.
            pairs = [(value, numbers[0]), (numbers[0], value)]
            ends = [oracle.value((s, *pair)) for s in "+-*/" for pair in pairs]
            assert int(target) in ends
