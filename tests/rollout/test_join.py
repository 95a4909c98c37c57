"""One batch of several rollouts: whose row is whose, and padding that nobody learns."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.devices import sharding
from ragen_jax.learner.batch import to_rows
from ragen_jax.rollout.join import join_rollouts, make_join
from ragen_jax.types import Windows
from tests.learner import tiny
from tests.trajectories import make_dialogues

KEY = jax.random.key(3)
TOKEN_ARRAYS = ("tokens", "loss_mask", "turn_index", "sample_log_probs")


@pytest.fixture(scope="module")
def rollouts():
    """Three groups of four rows, then one group, of other length."""
    return make_dialogues(12, num_tokens=20), make_dialogues(4, num_tokens=26, seed=1)


@pytest.fixture(scope="module")
def batch(rollouts):
    return join_rollouts(rollouts)


def by_hand(rollouts, filler):
    """The rows below each other, `filler(shape)` where the first has no tokens."""
    short, long = (jax.device_get(r) for r in rollouts)
    missing = long.tokens.shape[1] - short.tokens.shape[1]
    columns = {}
    for name in TOKEN_ARRAYS:
        column = getattr(short, name)
        padding = filler(name, (len(column), missing)).astype(column.dtype)
        wide = np.concatenate([column, padding], axis=1)
        columns[name] = np.concatenate([wide, getattr(long, name)])
    rest = {f.name for f in dataclasses.fields(short)} - {*TOKEN_ARRAYS, "env_index"}
    for name in rest:
        pair = getattr(short, name), getattr(long, name)
        columns[name] = jax.tree.map(lambda a, b: np.concatenate([a, b]), *pair)
    env_index = np.repeat(np.arange(2, dtype=np.int32), [12, 4])
    return jax.tree.map(jnp.asarray, short.replace(**columns, env_index=env_index))


def quiet(name, shape):
    return np.full(shape, -1 if name == "turn_index" else 0)


def hostile(name, shape):
    """Padding with tokens in it, which a batch of one environment may have, too."""
    random = np.random.default_rng(0)
    return random.integers(1, 13, shape) if name == "tokens" else quiet(name, shape)


def test_equals_the_rows_put_together_by_hand(rollouts, batch):
    expected = by_hand(rollouts, quiet)
    chex.assert_trees_all_equal(batch, expected.replace(initial_state=None))
    assert batch.tokens.shape == (16, 26)


def test_nothing_beyond_a_row_s_length_is_trained_or_belongs_to_a_turn(batch):
    beyond = np.arange(26)[None] >= np.asarray(batch.lengths)[:, None]
    assert beyond[:12, 20:].all()
    assert not np.asarray(batch.loss_mask)[beyond].any()
    assert (np.asarray(batch.turn_index)[beyond] == -1).all()


def test_windows_of_every_rollout_stay_its_own(rollouts):
    """Values of a batch's tokens reach the windows that they would reach alone."""
    seen = []
    for rollout, width in zip(rollouts, (7, 9), strict=True):
        shape = rollout.turns.played.shape
        windows = Windows(
            tokens=jnp.ones((*shape, width), jnp.int32),
            lengths=jnp.full(shape, 5, jnp.int32),
            reply_start=jnp.full(shape, 2, jnp.int32),
            of_turn=jnp.broadcast_to(jnp.arange(shape[1]), shape),
        )
        turns = rollout.turns.replace(
            reply_start=jnp.full(shape, 4, jnp.int32),
            reply_length=jnp.full(shape, 3, jnp.int32),
        )
        seen.append(rollout.replace(windows=windows, turns=turns))
    batch = join_rollouts(seen)
    assert batch.windows.tokens.shape == (16, 3, 9)
    assert not batch.windows.tokens[:12, :, 7:].any()
    joined, *alone = (
        to_rows(x.sample_log_probs, x).reshape(x.windows.tokens.shape)
        for x in (batch, *seen)
    )
    np.testing.assert_array_equal(joined[:12, :, :7], alone[0])
    np.testing.assert_array_equal(joined[12:], alone[1])


def test_a_single_rollout_is_left_alone(rollouts):
    join = make_join(sharding.by_rows(sharding.make_mesh(data=1, fsdp=1, tensor=1)))
    assert join(rollouts[:1]) is rollouts[0]


def test_other_budgets_are_refused(rollouts):
    shorter = make_dialogues(4, num_turns=2)
    with pytest.raises(ValueError, match="one budget"):
        join_rollouts([rollouts[0], shorter])


def learn(batch, mesh=(1, 1, 1), **settings):
    state, update = tiny.build(mesh, **settings)
    state, stats, _ = update(state, batch, KEY)
    return tiny.host(state).params, jax.device_get(stats)


def test_an_update_on_it_is_the_one_on_rows_put_together_by_hand(rollouts, batch):
    expected = learn(by_hand(rollouts, hostile))
    chex.assert_trees_all_equal(learn(batch), expected)


def test_eight_devices(rollouts, batch):
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    joined = make_join(sharding.by_rows(mesh))(rollouts)
    assert len(joined.tokens.sharding.device_set) == 8
    chex.assert_trees_all_equal(jax.device_get(joined), jax.device_get(batch))
    params, _ = learn(joined, (2, 2, 2))
    chex.assert_trees_all_close(params, learn(batch)[0], atol=1e-6)


def test_rewards_are_compared_within_an_environment(batch):
    """Normalised by environment: as if each row had been paid that much less."""
    settings = {"advantage": "reinforce", "keep_fraction": 1.0}
    by_environment = {"normalization": "mean", "grouping": "environment"}
    turns = batch.turns
    totals = np.where(turns.played, turns.reward + turns.penalty + turns.bonus, 0).sum(
        axis=1
    )
    means = np.array([totals[:12].mean(), totals[12:].mean()])
    assert abs(means[0] - means[1]) > 0.1
    first = turns.reward[:, 0] - means[np.asarray(batch.env_index)]
    paid = turns.replace(reward=turns.reward.at[:, 0].set(first))
    expected, _ = learn(batch.replace(turns=paid), **settings)
    params, _ = learn(batch, **settings, **by_environment)
    chex.assert_trees_all_close(params, expected, atol=1e-5)
