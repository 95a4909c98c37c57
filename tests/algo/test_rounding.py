"""Differences that are rounding: no spread, no advantage, nothing kept."""

import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.credit import group_std_weights
from ragen_jax.algo.filters import FILTERS, SCORES, within_group
from ragen_jax.algo.masked import masked_deviation, masked_variance
from ragen_jax.algo.rewards import (
    NORMALIZATIONS,
    REWARD_PLACEMENTS,
    episode_rewards,
)
from ragen_jax.registry.functions import data_names
from tests.algo import calls

SIZE = 8
# What twelve actions pay that push two boxes onto their goals in Sokoban.
ACTIONS = np.float32([-0.1] * 12)
ACTIONS[5] += np.float32(1.0)
ACTIONS[11] += np.float32(11.0)
# Where the same actions are cut into three turns.
CUTS = [(a, b) for a in (2, 4, 6, 8) for b in (9, 11)]
COMPARING = [n for n, x in ADVANTAGES.items() if "group_size" in data_names(x)]


def nearly_equal(value, rows=SIZE):
    """The number and its neighbours in float32, in turns."""
    value = np.float32(value)
    below, above = (np.nextafter(value, np.float32(x)) for x in (-1e9, 1e9))
    return jnp.asarray(np.resize([value, below, value, above], rows))


def played(turn_rewards):
    """Data of episodes whose turns, a token each, pay these rewards, [B, K]."""
    turn_rewards = jnp.asarray(turn_rewards, jnp.float32)
    rows, num_turns = turn_rewards.shape
    everywhere = jnp.ones((rows, num_turns), bool)
    nothing = jnp.zeros_like(turn_rewards)
    return {
        "mask": everywhere,
        "turn_index": jnp.tile(jnp.arange(num_turns), (rows, 1)),
        "num_turns": num_turns,
        "turn_rewards": turn_rewards,
        "totals": episode_rewards(turn_rewards, nothing, nothing, everywhere),
        "state_hash": jnp.zeros((rows, num_turns, 2), jnp.uint32),
        "env_index": None,
        "group_size": SIZE,
    }


@pytest.mark.parametrize("placement", REWARD_PLACEMENTS)
@pytest.mark.parametrize("name", COMPARING)
def test_the_same_actions_cut_differently_have_no_advantage(name, placement):
    data = played([[part.sum() for part in np.split(ACTIONS, cut)] for cut in CUTS])
    assert 0 < np.ptp(data["totals"]) < 1e-5
    rewards = calls.run(REWARD_PLACEMENTS[placement], data, normalization="identity")
    # GiGPO's steps do differ; the episodes do not.
    options = {"step_weight": 0.0} if name == "gigpo" else {}
    estimate = calls.run(ADVANTAGES[name], data | {"rewards": rewards}, **options)
    assert not np.any(estimate.advantages)
    assert not np.any(group_std_weights(rewards, data["mask"], group_size=SIZE))


def test_steps_of_equal_value_have_no_advantage():
    """GiGPO compares what is paid from a state on."""
    data = played(nearly_equal(10.5)[:, None])
    assert np.ptp(data["totals"]) > 0
    data["rewards"] = calls.run(REWARD_PLACEMENTS["turn"], data)
    assert not np.any(calls.run(ADVANTAGES["gigpo"], data).advantages)


@pytest.mark.parametrize("value", [9.1, 10.1, 10.5, 10.7, 10.9, -1000.1, 0.3, 1e-7])
@pytest.mark.parametrize("rule", FILTERS)
def test_no_filter_keeps_groups_that_differ_by_rounding(rule, value):
    rewards = jnp.concatenate([nearly_equal(value)] * 16)
    assert np.ptp(rewards) > 0
    for score in ("reward_std", "reward_variance"):
        scores = SCORES[score](rewards, group_size=SIZE)
        assert not np.any(scores)
        options = calls.options_of(FILTERS[rule])
        options |= {"keep_zero": False}
        options |= {"top_p_epsilon": 0.0} if "top_p_epsilon" in options else {}
        data = {"group_size": SIZE, "rewards": rewards.reshape(16, SIZE)}
        taken = {n: x for n, x in data.items() if n in data_names(FILTERS[rule])}
        assert not np.any(FILTERS[rule](scores, **taken, **options))


@pytest.mark.parametrize("value", [9.1, 10.5, 10.9])
@pytest.mark.parametrize("name", ["mean", "mean_std", "asymmetric_clip"])
def test_normalised_rewards_that_differ_by_rounding_are_zero(name, value):
    peers = jnp.ones((SIZE, SIZE), bool)
    assert not np.any(NORMALIZATIONS[name](nearly_equal(value), peers))


def test_equal_entropies_have_no_spread():
    mask = jnp.ones((SIZE, 3), bool)
    entropies = jnp.stack([nearly_equal(2.3)] * 3, axis=1)
    entropies = entropies.at[:, 1].set(nearly_equal(0.7))
    assert np.ptp(entropies.mean(axis=1)) > 0
    assert not np.any(SCORES["entropy_std"](entropies, mask, group_size=SIZE))


def test_rewards_that_cancel_add_up_to_nothing():
    rewards = jnp.asarray([0.1, 0.2, -0.3, 0.7, -0.7, 0.1, 0.1, -0.2], jnp.float32)
    assert jnp.sum(rewards) != 0 or jnp.sum(rewards[::-1]) != 0
    assert SCORES["reward_sum"](rewards, num_groups=1)[0] == 0.0
    assert SCORES["reward_mean"](rewards, num_groups=1)[0] == 0.0


def test_rows_that_differ_by_rounding_are_chosen_by_their_order():
    rewards = jnp.concatenate([nearly_equal(10.5, 4), jnp.zeros(4)])[None]
    kept = within_group(jnp.ones(1), rewards=rewards, keep_zero=False, rows_per_group=4)
    # Of equal rewards the earlier row is the lower one: the last two of the high ones.
    assert np.flatnonzero(kept).tolist() == [2, 3, 4, 5]


def test_infinity_is_not_equal_to_a_number():
    x = jnp.asarray([jnp.inf, 0.0, 1.0])
    assert not np.isfinite(masked_variance(x, jnp.ones(3, bool), ddof=1))
    sums = SCORES["reward_sum"](jnp.asarray([jnp.inf, 1.0]), num_groups=1)
    assert np.isinf(sums[0])


@pytest.mark.parametrize("value", [1.0, 10.5, -300.0, 20_000.0])
def test_a_real_difference_remains_one(value):
    """A share of 1e-5 of the numbers, as fine as any game pays."""
    x = jnp.asarray([value, value * (1 + 1e-5)], jnp.float32)
    mask = jnp.ones(2, bool)
    assert masked_variance(x, mask, ddof=1) > 0
    difference = float(x[1] - x[0])
    np.testing.assert_allclose(
        masked_deviation(x, mask), [-difference / 2, difference / 2], rtol=0.2
    )


def test_whole_rewards_are_scored_as_numbers():
    """A game may count: its rewards may be whole numbers."""
    rewards = jnp.asarray([3, 1, 2, 2, 0, 0, 5, -5, 9, 1, 0, 0], jnp.int32)
    for name, values in {
        "reward_sum": [8, 0, 10],
        "reward_mean": [2, 0, 2.5],
        "reward_variance": [2 / 3, 50 / 3, 19],
    }.items():
        size = {"group_size": 4} if name == "reward_variance" else {"num_groups": 3}
        found = SCORES[name](rewards, **size)
        assert found.dtype == jnp.float32
        for one, value in zip(found, values, strict=True):
            assert float(one) == pytest.approx(value, rel=1e-6)
    kept = within_group(
        jnp.ones(3), rewards=rewards.reshape(3, 4), keep_zero=True, rows_per_group=2
    )
    assert kept.tolist() == [
        [True, True, False, False],
        [False, False, True, True],
        [True, False, True, False],
    ]
