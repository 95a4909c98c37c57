"""`step` is gymnax's to the bit, and makes levels for the games that ended alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.environment import Environment
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import envs
from envs.auto_reset import SMALLEST_BATCH, replace_where
from envs.base import TRAINING, VALIDATION
from tests.envs import example
from tests.pace import examples

NUM_ROWS = 64
NUM_STEPS = 25
TIME_LIMIT = 9
QUICK = ("bandit", "frozen_lake", "walk")
# Levels of the others take seconds to compile, twice; those of Countdown and Sokoban,
# which take longest, are left out.
GAMES = [*QUICK, "cube2x2", "game2048", "sudoku"]


@functools.cache
def game(name):
    env = example.walk()() if name == "walk" else envs.make(name)
    limit = min(TIME_LIMIT, env.default_params.max_steps_in_episode)
    return env, env.default_params.replace(max_steps_in_episode=limit)


def start(env, params, num_rows=NUM_ROWS, seed=0):
    """Levels, some of them begun some time ago."""
    reset_key, time_key = jax.random.split(jax.random.key(seed))
    keys = jax.random.split(reset_key, num_rows)
    _, states = jax.vmap(env.reset_env, in_axes=(0, None))(keys, params)
    limit = params.max_steps_in_episode
    times = jax.random.randint(time_key, (num_rows,), 0, limit, jnp.int32)
    return states.replace(time=jnp.where(jnp.arange(num_rows) < 20, 0, times))


@functools.partial(jax.jit, static_argnums=(0, 1))
def play(step, num_actions, keys, states, params):
    """Everything that random play shows, step by step; `keys` [steps, ..., rows]."""

    def advance(states, keys):
        actions = jax.vmap(lambda key: jax.random.randint(key, (), 0, num_actions))
        outcome = step(keys, states, actions(keys.reshape(-1)), params)
        return outcome[1], outcome

    return jax.lax.scan(advance, states, keys)[1]


def step_rows(step):
    return jax.vmap(step, in_axes=(0, 0, 0, None))


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.weak_type == b.weak_type
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "name",
    # Levels of the others take seconds to compile, twice.
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in GAMES],
)
def test_random_play_is_that_of_gymnax(name):
    env, params = game(name)
    states = start(env, params)
    keys = jax.random.split(jax.random.key(1), (NUM_STEPS, NUM_ROWS))
    gymnax_step = functools.partial(Environment.step, env)
    ours, theirs = (
        play(step_rows(step), env.num_actions, keys, states, params)
        for step in (env.step, gymnax_step)
    )
    assert_same(ours, theirs)
    ended = np.asarray(ours[3] | ours[4]).sum(axis=1)
    assert ended.sum() > NUM_ROWS
    if params.max_steps_in_episode > 1:  # else games end at every step
        # One batch, several, and all rows at once have been met.
        assert (ended > NUM_ROWS // 4).any()
        assert (ended[ended > 0] < NUM_ROWS // 4).any()
        assert np.asarray(ours[4]).any()


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
def test_one_game_and_default_parameters(raw):
    env, params = game("walk")
    make_key = jax.random.PRNGKey if raw else jax.random.key
    state = start(env, params, 1)
    state = jax.tree.map(lambda leaf: leaf[0], state)
    for time in (0, params.max_steps_in_episode - 1):
        begun = state.replace(time=jnp.int32(time))
        arguments = (make_key(3), begun, jnp.int32(0))
        for chosen in ({}, {"params": params}):
            ours = env.step(*arguments, **chosen)
            assert_same(ours, Environment.step(env, *arguments, **chosen))


@pytest.mark.parametrize(
    ("are_batched", "raw"), [(False, False), (True, True)], ids=["shared", "own-raw"]
)
def test_runs_of_many_games(are_batched, raw):
    """Seeds x games, each seed with other parameters or all with the same."""
    env, params = game("walk")
    states = start(env, params, 3 * NUM_ROWS)
    keys = jax.random.split(jax.random.key(4), 3 * NUM_ROWS)
    keys = jax.random.key_data(keys) if raw else keys
    actions = jnp.arange(3 * NUM_ROWS, dtype=jnp.int32) % env.num_actions
    rows = jax.tree.map(
        lambda x: x.reshape(3, NUM_ROWS, *x.shape[1:]), (keys, states, actions)
    )
    if are_batched:
        params = params.replace(max_steps_in_episode=jnp.array([9, 3, 99], jnp.int32))
    axes = (0, 0, 0, 0 if are_batched else None)
    gymnax_step = functools.partial(Environment.step, env)
    ours, theirs = (
        jax.jit(jax.vmap(step_rows(step), in_axes=axes))(*rows, params)
        for step in (env.step, gymnax_step)
    )
    assert_same(ours, theirs)
    assert len(set(np.asarray(ours[4]).sum(axis=1).tolist())) > 1


def test_shared_states_and_keys():
    """A state and a key for all rows: what each action would do."""
    env, params = game("walk")
    state = jax.tree.map(lambda leaf: leaf[0], start(env, params, 1))
    state = state.replace(position=state.flag + jnp.where(state.flag > 0, -1, 1))
    gymnax_step = functools.partial(Environment.step, env)
    ours, theirs = (
        jax.vmap(step, in_axes=(None, None, 0, None))(
            jax.random.key(0), state, jnp.arange(2), params
        )
        for step in (env.step, gymnax_step)
    )
    assert_same(ours, theirs)
    assert sorted(np.asarray(ours[3]).tolist()) == [False, True]


def test_every_device_with_other_games():
    env, params = game("walk")
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    states = start(env, params, 8 * NUM_ROWS)
    keys = jax.random.split(jax.random.key(1), (NUM_STEPS, 8 * NUM_ROWS))

    def on_a_device(keys, states):
        return play(step_rows(env.step), env.num_actions, keys, states, params)

    by_step, by_row = PartitionSpec(None, "rows"), PartitionSpec("rows")
    sharded = jax.shard_map(
        on_a_device, mesh=mesh, in_specs=(by_step, by_row), out_specs=by_step
    )
    assert_same(jax.jit(sharded)(keys, states), on_a_device(keys, states))


@jax.jit
def replaced_and_selected(conditions, keys):
    """What `replace_where` gives for rows of numbers and keys, and what is right."""
    old = (jnp.arange(conditions.size, dtype=jnp.int32), keys)

    def make(key):
        number = jax.random.randint(key, (), 0, 9, jnp.int32)
        return number, jax.random.fold_in(key, 1)

    rows = jax.vmap(lambda c, k, o: replace_where(c, make, (k,), o))
    new = jax.vmap(make)(keys)
    selected = jax.tree.map(lambda n, o: jnp.where(conditions, n, o), new, old)
    return rows(conditions, keys, old), selected


@given(
    num_rows=st.sampled_from([1, SMALLEST_BATCH, SMALLEST_BATCH + 1, 600]),
    share=st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(60), deadline=None)
def test_any_rows_are_replaced(num_rows, share, seed):
    conditions = np.random.default_rng(seed).random(num_rows) < share
    keys = jax.random.split(jax.random.key(seed), num_rows)
    assert_same(*replaced_and_selected(conditions, keys))


@functools.cache
def counting():
    """A step of rows of "walk", compiled once, and the keys of levels it has made."""
    levels = []

    class Counting(example.walk()):
        def reset_env(self, key, params):
            jax.debug.callback(levels.append, jax.random.key_data(key))
            return super().reset_env(key, params)

    return jax.jit(step_rows(Counting().step)), levels


@pytest.mark.parametrize(
    ("ended", "made"), [(0, 0), (1, 8), (8, 8), (9, 16), (64, 64), (65, 256)]
)
def test_levels_are_made_for_the_games_that_ended(ended, made):
    """256 rows make levels in batches of 8; from a quarter of the rows on, at once."""
    step, levels = counting()
    levels.clear()
    env, params = game("walk")
    states = start(env, params, 256)
    is_last = jax.random.permutation(jax.random.key(0), jnp.arange(256)) < ended
    time = jnp.where(is_last, params.max_steps_in_episode - 1, 0)
    states = states.replace(
        time=time, position=jnp.zeros_like(time), flag=jnp.full_like(time, 9)
    )
    keys = jax.random.split(jax.random.key(2), 256)
    outcome = step(keys, states, jnp.ones_like(time), params)
    jax.block_until_ready(outcome)
    jax.effects_barrier()
    assert int((outcome[3] | outcome[4]).sum()) == ended
    assert len(levels) == made


def test_other_types_than_those_of_a_step_are_refused():
    with pytest.raises(TypeError, match="int32"):
        replace_where(jnp.bool_(True), jnp.float32, (1,), jnp.int32(0))


def test_levels_made_beforehand():
    env, params = game("frozen_lake")
    keys = jax.random.split(jax.random.key(6), 100)
    draw = jax.vmap(functools.partial(env.reset_split, split=TRAINING), (0, None))
    levels = draw(keys, params)
    few = env.with_levels(levels)
    play_keys = jax.random.split(jax.random.key(1), (NUM_STEPS, NUM_ROWS))
    states = start(few, params)
    ours, theirs = (
        play(step_rows(step), env.num_actions, play_keys, states, params)
        for step in (few.step, functools.partial(Environment.step, few))
    )
    assert_same(ours, theirs)
    # Every new level is one of the set, so none is held out; most of them are drawn.
    begins = np.asarray(ours[3] | ours[4])
    boards = np.asarray(ours[0])[begins]
    given = jax.vmap(env.observe, (None, 0, None, None))(None, levels, None, params)
    known = {board.tobytes() for board in np.asarray(given)}
    drawn = {board.tobytes() for board in boards}
    assert drawn <= known
    assert len(drawn) > len(known) / 2
    # Its splits are still those of all levels.
    held_out = jax.vmap(functools.partial(few.reset_split, split=VALIDATION), (0, None))
    is_held_out = jax.vmap(env.is_held_out, (0, None))(held_out(keys, params), params)
    assert bool(is_held_out.all())


@pytest.mark.parametrize("chosen", [0, slice(0, 0)], ids=["one state", "no state"])
def test_levels_without_an_axis_are_refused(chosen):
    env, params = game("walk")
    states = start(env, params)
    with pytest.raises(ValueError, match="states on one axis, at least one"):
        env.with_levels(jax.tree.map(lambda leaf: leaf[chosen], states))
