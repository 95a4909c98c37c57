"""Ranges of the numbers of games."""

import pytest

import envs
from ragen_jax.tasks.specs import env_params


@pytest.mark.parametrize("name", envs.ENVIRONMENTS)
def test_defaults_are_in_range(name):
    env = envs.make(name)
    assert env.params_problem(env.default_params) is None
    with pytest.raises(ValueError, match=r"p\.max_steps_in_episode = 0; .* 1 or more"):
        env_params(env, {"max_steps_in_episode": 0}, path="p")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("game2048", {"two_probability": 1.5}, "= 1.5; it must be between 0 and 1"),
        ("game2048", {"idle_reward": 0.1}, "= 0.1; it must be 0 or less"),
        ("frozen_lake", {"success_rate": -0.1}, "= -0.1; it must be between 0 and 1"),
        ("bandit", {"high_arm_probability": 2}, "= 2; it must be between 0 and 1"),
        ("sudoku", {"correct_reward": -1.0}, "= -1.0; it must be 0 or more"),
        ("sudoku", {"invalid_reward": 1.0}, "= 1.0; it must be 0 or less"),
        (
            "sudoku",
            {"legal_reward": 2.0},
            "= 2.0; it must be at most correct_reward = 1.0",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(name, changes, message):
    (key,) = changes
    with pytest.raises(ValueError, match=f"env.params.{key} {message}"):
        env_params(envs.make(name), changes, path="env.params")


def test_both_ends_of_a_range_are_taken():
    for rate in (0, 1, 0.0, 1.0):
        params = env_params(
            envs.make("frozen_lake"), {"success_rate": rate}, path="env.params"
        )
        assert params.success_rate == rate
