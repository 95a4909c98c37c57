"""Every advantage estimator: its contract, and its oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.algo.advantages import ADVANTAGES, grpo
from tests.reference import advantages_oracle
from tests.trajectories import make_trajectory, make_turns

REWARDS = [0.0, 1.0, 1.0, 0.0, 3.0, 3.0, 3.0, 3.0, -1.0, 0.5, 10.9, -0.4]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_contract(name):
    """Shape, dtype, nothing off the mask, and no look at what is not a token."""
    trajectory = make_trajectory(REWARDS)
    estimate = jax.jit(lambda t: ADVANTAGES[name](t, group_size=4))
    advantages = estimate(trajectory)
    assert advantages.shape == trajectory.tokens.shape
    assert advantages.dtype == jnp.float32
    assert np.isfinite(advantages).all()
    assert not advantages[~trajectory.loss_mask].any()
    assert advantages[trajectory.loss_mask].any()
    is_token = np.arange(12)[None] < np.asarray(trajectory.lengths)[:, None]
    noisy = trajectory.replace(
        tokens=jnp.where(is_token, trajectory.tokens, 10**6),
        sample_log_probs=jnp.where(is_token, trajectory.sample_log_probs, jnp.nan),
    )
    np.testing.assert_array_equal(estimate(noisy), advantages)


@pytest.mark.parametrize("group_size", [1, 2, 3, 4, 12])
def test_grpo_equals_oracle(group_size):
    trajectory = make_trajectory(REWARDS, seed=group_size)
    expected = advantages_oracle.grpo(
        REWARDS, group_size, np.asarray(trajectory.loss_mask)
    )
    actual = grpo(trajectory, group_size=group_size)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_grpo_scores_hold_the_format_penalty():
    turns = make_turns([[1.0], [1.0]], penalty=[[0.0], [-0.1]])
    trajectory = make_trajectory([0.0, 0.0]).replace(turns=turns)
    advantages = grpo(trajectory, group_size=2)
    expected = advantages_oracle.grpo([1.0, 0.9], 2, np.asarray(trajectory.loss_mask))
    np.testing.assert_allclose(advantages, expected, rtol=1e-4)


def test_grpo_of_equal_scores_is_zero():
    assert not grpo(make_trajectory([0.7] * 4), group_size=4).any()


def test_grpo_of_a_group_of_one_is_its_score():
    trajectory = make_trajectory([2.0, -3.0])
    advantages = grpo(trajectory, group_size=1)
    for row, score in enumerate([2.0, -3.0]):
        mine = np.asarray(advantages[row])[np.asarray(trajectory.loss_mask[row])]
        np.testing.assert_allclose(mine, score / (1 + 1e-6), rtol=1e-6)
