"""What multiplies advantages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.algo.credit import (
    FILTER_LOSS_SCALES,
    group_std_weights,
    length_weights,
    weigh,
)
from ragen_jax.algo.rewards import at_turn_ends
from ragen_jax.learner.batch import named_arrays
from tests.algo.calls import compiled
from tests.reference import rewards_oracle as oracle
from tests.trajectories import make_dialogues

few = settings(max_examples=10, deadline=None)
jitted_group_weights = jax.jit(group_std_weights, static_argnames="group_size")


def make_random(seed):
    random = np.random.default_rng(seed)
    trajectory = make_dialogues(12, seed=seed)
    silent = random.random((12, 1)) < 0.2
    trajectory = trajectory.replace(loss_mask=trajectory.loss_mask & ~silent)
    mask = trajectory.loss_mask
    data = named_arrays(trajectory, group_size=1)
    placed = at_turn_ends(data["turn_rewards"], mask, turn_index=data["turn_index"])
    return jnp.where(mask, placed, jnp.nan), mask


@few
@given(seed=st.integers(0, 2**16))
def test_weights_equal_oracle(seed):
    rewards, loss_mask = make_random(seed)
    mask = np.asarray(loss_mask)
    scores = np.where(mask, rewards, 0.0).sum(axis=1, dtype=float).tolist()
    takes_part = mask.any(axis=1).tolist()
    for group_size in (1, 3, 4):
        actual = jitted_group_weights(rewards, loss_mask, group_size=group_size)
        expected = oracle.group_std_weights(scores, takes_part, group_size)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
    lengths = mask.sum(axis=1).tolist()
    actual = length_weights(loss_mask)
    np.testing.assert_allclose(actual, oracle.length_weights(lengths), rtol=1e-5)


def test_length_weights_by_hand():
    """Lengths 1, 3 and none: the mean is 2."""
    mask = jnp.asarray([[True, False, False], [True, True, True], [False] * 3])
    np.testing.assert_allclose(length_weights(mask), [2, 2 / 3, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "scale"), [("none", 1.0), ("linear", 0.25), ("sqrt", 0.5), ("rho", 0.9)]
)
def test_loss_scales(name, scale):
    entry = compiled(FILTER_LOSS_SCALES[name])
    assert entry(jnp.asarray(0.25)) == pytest.approx(scale)
    entry(jnp.asarray(0.5))
    assert entry._cache_size() == 1


def test_all_scales_are_tried():
    assert set(FILTER_LOSS_SCALES) == {"none", "linear", "sqrt", "rho"}


def weighed(rewards, loss_mask, **changes):
    settings = {"weigh_groups": False, "weigh_lengths": False, "zero_task": False}
    advantages = jnp.where(loss_mask, 1.0, 0.0)
    scale = jnp.asarray(0.5)
    settings |= {"group_size": 4, "loss_scale": scale} | changes
    return weigh(advantages, rewards, loss_mask, **settings)


def test_weigh_multiplies_what_is_asked_for():
    rewards, loss_mask = make_random(0)
    mask = np.asarray(loss_mask)
    groups = np.asarray(group_std_weights(rewards, loss_mask, group_size=4))[:, None]
    lengths = np.asarray(length_weights(loss_mask))[:, None]
    for changes, factor in [
        ({}, 1.0),
        ({"weigh_groups": True}, groups),
        ({"weigh_lengths": True}, lengths),
        ({"weigh_groups": True, "weigh_lengths": True}, groups * lengths),
        ({"weigh_lengths": True, "zero_task": True}, 0.0),
    ]:
        actual = weighed(rewards, loss_mask, **changes)
        np.testing.assert_allclose(actual, 0.5 * factor * mask, rtol=1e-6)
