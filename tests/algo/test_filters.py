"""The group filter: scores, the choice, and their edge cases."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.algo.filters import RULES, SCORES, reward_std, top_fraction
from tests.reference import filters_oracle
from tests.trajectories import make_trajectory, make_turns


@pytest.mark.parametrize("name", SCORES)
def test_score_contract(name):
    scores = SCORES[name](make_trajectory([0.0, 1.0, 2.0, 5.0]), group_size=2)
    assert scores.shape == (2,)
    assert scores.dtype == jnp.float32
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_reward_std_equals_oracle(group_size):
    rewards = [0.0, 1.0, 1.0, 0.0, 3.0, 3.0, 3.0, 3.0, -1.0, 0.5, 10.9, -0.4]
    np.testing.assert_allclose(
        reward_std(make_trajectory(rewards), group_size=group_size),
        filters_oracle.reward_std(rewards, group_size),
        rtol=1e-6,
        atol=1e-6,
    )


def test_reward_std_does_not_see_penalties():
    turns = make_turns([[1.0], [1.0]], penalty=[[0.0], [-0.1]])
    trajectory = make_trajectory([0.0, 0.0]).replace(turns=turns)
    assert reward_std(trajectory, group_size=2)[0] == 0.0


def test_rules_are_masks():
    assert set(RULES) == {"top_fraction"}
    kept = top_fraction(jnp.asarray([1.0, 3.0, 2.0, 0.0]), keep_fraction=0.5)
    np.testing.assert_array_equal(kept, [False, True, True, False])


@settings(max_examples=50, deadline=None)
@given(
    scores=st.lists(
        st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), min_size=8, max_size=8
    ),
    keep_fraction=st.sampled_from([0.01, 0.124, 0.125, 0.25, 0.3, 0.5, 0.99, 1.0]),
)
def test_top_fraction_equals_oracle(scores, keep_fraction):
    np.testing.assert_array_equal(
        top_fraction(jnp.asarray(scores), keep_fraction=keep_fraction),
        filters_oracle.top_fraction(scores, keep_fraction),
    )


def test_keeping_all_keeps_groups_without_spread():
    assert top_fraction(jnp.zeros(5), keep_fraction=1.0).all()


def test_not_a_number_is_the_smallest_score():
    scores = jnp.asarray([jnp.nan, 0.0, 1.0, jnp.nan])
    kept = top_fraction(scores, keep_fraction=0.5)
    np.testing.assert_array_equal(kept, [False, True, True, False])


def test_an_exact_share_loses_no_group_to_rounding():
    assert 0.29 * 100 < 29
    assert top_fraction(jnp.arange(100.0), keep_fraction=0.29).sum() == 29
