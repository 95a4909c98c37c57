"""Episode rewards: what counts, which token is told, and normalisation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.algo.rewards import (
    GROUPINGS,
    NORMALIZATIONS,
    REWARD_PLACEMENTS,
    adapt_kl_coeff,
    at_episode_end,
    at_turn_ends,
    episode_rewards,
    penalize_kl,
    raw_episode_rewards,
    rewards_per_turn,
)
from ragen_jax.learner.batch import named_arrays
from tests.algo import calls
from tests.reference import rewards_oracle as oracle
from tests.trajectories import make_dialogues, make_turns

TURNS = make_turns(
    [[1.0, -0.5, 99.0], [0.25, 99.0, 99.0]],
    penalty=[[0.0, -0.1, -99.0], [-0.1, -99.0, -99.0]],
    bonus=[[0.5, 0.25, 99.0], [0.0, 99.0, 99.0]],
    played=[[True, True, False], [True, False, False]],
)
ENVIRONMENTS = [0] * 4 + [1] * 4 + [0] * 4
LABELS = {"state": [0] * 4 + [1] * 4 + [2] * 4, "batch": [0] * 12}
LABELS["environment"] = ENVIRONMENTS
few = settings(max_examples=10, deadline=None)


def make_random(seed):
    """Dialogues, about a fifth of the rows silent."""
    random = np.random.default_rng(seed)
    trajectory = make_dialogues(12, seed=seed)
    silent = random.random((12, 1)) < 0.2
    return trajectory.replace(loss_mask=trajectory.loss_mask & ~silent)


def totals_of(trajectory):
    turns = jax.tree.map(np.asarray, trajectory.turns)
    paid = (turns.reward, turns.penalty, turns.bonus)
    rows = zip(*paid, turns.played, strict=True)
    return [oracle.total(*(x.tolist() for x in row)) for row in rows]


def place(name, trajectory, **options):
    return calls.run(REWARD_PLACEMENTS[name], arrays(trajectory), **options)


def arrays(trajectory, group_size=4):
    trajectory = trajectory.replace(env_index=jnp.asarray(ENVIRONMENTS))
    return named_arrays(trajectory, group_size=group_size)


def test_raw_rewards_are_the_games_alone():
    raw = raw_episode_rewards(TURNS.reward, TURNS.played)
    np.testing.assert_allclose(raw, [0.5, 0.25])


def test_rewards_include_penalties_and_bonuses():
    paid = TURNS.reward, TURNS.penalty, TURNS.bonus, TURNS.played
    np.testing.assert_allclose(episode_rewards(*paid), [1.15, 0.15], rtol=1e-6)
    expected = [[1.5, -0.35, 0.0], [0.15, 0.0, 0.0]]
    np.testing.assert_allclose(rewards_per_turn(*paid), expected, rtol=1e-6)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@few
@given(seed=st.integers(0, 2**16))
def test_episode_placement_equals_oracle(normalization, grouping, seed):
    trajectory = make_random(seed)
    mask = np.asarray(trajectory.loss_mask)
    normalized = oracle.normalize(
        totals_of(trajectory),
        LABELS[grouping],
        mask.any(axis=1).tolist(),
        normalization,
    )
    options = {"normalization": normalization, "grouping": grouping}
    actual = place("episode", trajectory, **options)
    assert actual.dtype == jnp.float32
    expected = oracle.at_episode_end(normalized, mask)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@few
@given(seed=st.integers(0, 2**16))
def test_turn_placement_equals_oracle(seed):
    trajectory = make_random(seed)
    turns = jax.tree.map(np.asarray, trajectory.turns)
    per_turn = turns.reward + turns.penalty + turns.bonus
    per_turn = np.where(turns.played, per_turn, 0.0)
    arrays = (trajectory.loss_mask, trajectory.turn_index)
    expected = oracle.at_turn_ends(per_turn, *map(np.asarray, arrays))
    np.testing.assert_allclose(place("turn", trajectory), expected, rtol=1e-6)


def test_both_placements_pay_out_the_same():
    trajectory = make_dialogues(12, seed=1)
    usual = place("episode", trajectory, normalization="identity")
    np.testing.assert_allclose(
        place("turn", trajectory).sum(axis=1), usual.sum(axis=1), atol=1e-6
    )


@pytest.mark.parametrize("name", REWARD_PLACEMENTS)
def test_padding_and_silent_rows_do_not_matter(name):
    trajectory = make_random(2)
    silent = ~trajectory.loss_mask.any(axis=1)
    turns = trajectory.turns
    padding = ((0, 0), (0, 4))
    noisy = trajectory.replace(
        loss_mask=jnp.pad(trajectory.loss_mask, padding),
        turn_index=jnp.pad(trajectory.turn_index, padding, constant_values=-1),
        turns=turns.replace(reward=jnp.where(silent[:, None], jnp.nan, turns.reward)),
    )
    assert silent.any()
    actual = place(name, noisy)
    np.testing.assert_allclose(actual[:, :-4], place(name, trajectory), rtol=1e-6)
    assert not actual[:, -4:].any()


def placed_totals(rewards, group_size, normalization, grouping="state"):
    placed = at_episode_end(
        jnp.asarray(rewards, jnp.float32),
        jnp.ones((len(rewards), 2), bool),
        group_size=group_size,
        env_index=None,
        normalization=normalization,
        grouping=grouping,
    )
    return np.asarray(placed).sum(axis=1)


def test_normalization_by_hand():
    """Mean 1, standard deviation 2 of 0, 0, 0, 4; then a group without spread."""
    rewards = [0, 0, 0, 4, 5, 5, 5, 5]
    centred = [-1, -1, -1, 3, 0, 0, 0, 0]
    np.testing.assert_allclose(placed_totals(rewards, 4, "mean"), centred)
    scaled = [-0.5, -0.5, -0.5, 1.5, 0, 0, 0, 0]
    np.testing.assert_allclose(placed_totals(rewards, 4, "mean_std"), scaled, rtol=1e-5)
    lucky = [0] * 19 + [10]
    clipped = placed_totals(lucky, 20, "asymmetric_clip")
    assert clipped.max() == 3.0
    unlucky = [0, 0, -9, 0]
    assert placed_totals(unlucky, 4, "asymmetric_clip").min() == -1.0


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_groups_of_one_are_left_alone(normalization):
    np.testing.assert_allclose(placed_totals([2, -3], 1, normalization), [2, -3])
    assert placed_totals([2, -3], 1, "mean", grouping="batch")[0] == 2.5


def test_grouping_by_environment_needs_to_know_them():
    with pytest.raises(ValueError, match="needs env_index"):
        placed_totals([1, 2], 2, "mean", grouping="environment")


def test_kl_is_charged_at_trained_tokens():
    mask = jnp.asarray([[False, True, True]])
    kl = jnp.asarray([[jnp.nan, 0.5, -1.0]])
    charged = penalize_kl(jnp.asarray([[0.0, 0.0, 2.0]]), kl, mask, kl_coeff=0.1)
    np.testing.assert_allclose(charged, [[0.0, -0.05, 2.1]], rtol=1e-6)


@pytest.mark.parametrize(
    ("kl", "error"), [(0.1, 0.0), (0.11, 0.1), (0.2, 0.2), (9.0, 0.2), (0.0, -0.2)]
)
def test_the_kl_coefficient_follows_the_kl(kl, error):
    """Target 0.1; the error is held within 0.2."""
    adapt = jax.jit(
        functools.partial(adapt_kl_coeff, num_rows=128, kl_target=0.1, kl_horizon=1e4)
    )
    actual = adapt(jnp.asarray(0.5), jnp.asarray(kl))
    assert actual == pytest.approx(0.5 * (1 + error * 128 / 1e4), rel=1e-6)


def test_turn_ends_follow_the_turn_index_not_the_rewards():
    """A turn that paid nothing has an end, and a turn's reward stays in the turn."""
    trajectory = make_dialogues(12, seed=4)
    played = trajectory.turns.played
    trajectory = trajectory.replace(
        turns=make_turns(np.where(played, [0.0, 2.0, 0.0], 0.0), played=played)
    )
    placed = np.asarray(calls.run(at_turn_ends, arrays(trajectory)))
    turn_index = np.asarray(trajectory.turn_index)
    assert (turn_index[placed != 0] == 1).all()
    assert (placed.sum(axis=1) == np.where(played[:, 1], 2.0, 0.0)).all()
