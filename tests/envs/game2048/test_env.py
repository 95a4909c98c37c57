"""2048: slides, new tiles, rules, text, and best play against trying everything."""

import collections
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.base import EXACT, NEVER, REFERENCE, PlayBudget
from envs.game2048.env import ACTIONS, EnvState, _fewest_by_sum, slides
from tests.reference import game2048_oracle as oracle

pytestmark = pytest.mark.optimized

slide_boards = jax.jit(jax.vmap(jax.vmap(slides.slide, (None, 0)), (0, None)))
add_tiles = jax.jit(jax.vmap(slides.add_tile, in_axes=(0, None, None)))


def allowing(count):
    return PlayBudget(count, 1, count)


def exponents(board):
    return [[int(math.log2(tile)) if tile else 0 for tile in row] for row in board]


def tiles(board):
    return tuple(tuple(2**e if e else 0 for e in row) for row in board.tolist())


def states_of(boards, time=0):
    boards = jnp.asarray(np.array(list(map(exponents, boards)), np.int32))
    return EnvState(time=jnp.full(len(boards), time, jnp.int32), board=boards)


@functools.cache
def game(**kwargs):
    return envs.make("game2048", **kwargs)


@functools.cache
def step(env):
    return jax.jit(env.step_env)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_slides_are_those_of_the_rules(size):
    rng = np.random.default_rng(size)
    boards = rng.integers(0, 4, (500, size, size), np.int32)
    after, merged = slide_boards(jnp.asarray(boards), jnp.arange(4, dtype=jnp.int32))
    for i, board in enumerate(boards):
        for action in range(4):
            expected = oracle.slide(tiles(board), action)
            assert (tiles(after[i, action]), int(merged[i, action])) == expected


@given(st.lists(st.integers(0, 5), min_size=9, max_size=9))
@settings(deadline=None)
def test_a_board_can_slide_if_a_slide_changes_it(cells):
    board = np.array([*cells, 1], np.int32)[:9].reshape(3, 3)
    if not board.any():
        return
    changes = [oracle.slide(tiles(board), a)[0] != tiles(board) for a in range(4)]
    assert bool(slides.can_slide(jnp.asarray(board))) == any(changes)


def test_new_tiles_come_as_often_as_they_should():
    board = jnp.array([[1, 0, 2], [0, 3, 0], [1, 1, 0]], jnp.int32)
    keys = jax.random.split(jax.random.key(0), 20_000)
    counts = collections.Counter(map(tiles, np.asarray(add_tiles(keys, board, 0.75))))
    expected = oracle.new_tiles(tiles(board), 0.75)
    assert set(counts) == {after for _, after in expected}
    for chance, after in expected:
        # 5.5 standard deviations on 8 counts: a false alarm once in 3 million seeds.
        margin = 5.5 * math.sqrt(chance * (1 - chance) * 20_000)
        assert abs(counts[after] - chance * 20_000) < margin


@given(st.lists(st.integers(0, 3), min_size=30, max_size=60), st.integers(0, 2**31))
@settings(deadline=None, max_examples=40)
def test_games_follow_the_rules(actions, seed):
    env = game(goal=16)
    params = env.default_params.replace(max_steps_in_episode=50, goal_reward=3.0)
    keys = jax.random.split(jax.random.key(seed), 61)
    state = env.reset_env(keys[60], params)[1]
    assert sorted(np.asarray(state.board).reshape(-1))[:-2] == [0] * 7
    for count, action in enumerate(actions):
        before = tiles(state.board)
        stuck = all(oracle.slide(before, a)[0] == before for a in range(4))
        is_over = stuck or oracle.has(before, 16) or count >= 50
        after, merged = oracle.slide(before, action)
        _, state, reward, terminated, info = step(env)(
            keys[count], state, jnp.int32(action), params
        )
        now = tiles(state.board)
        if is_over:
            assert (now, float(reward)) == (before, 0.0)
            assert not bool(info["effective"])
            return
        assert int(state.time) == count + 1
        assert bool(info["effective"]) == (after != before)
        if after == before:
            assert now == before
            assert float(reward) == pytest.approx(-0.1)
        else:
            assert now in [board for _, board in oracle.new_tiles(after, 0.9)]
            pays = 0.1 * math.log2(merged + 1) + 3.0 * oracle.has(now, 16)
            assert float(reward) == pytest.approx(pays)
        stuck = all(oracle.slide(now, a)[0] == now for a in range(4))
        assert bool(info["success"]) == oracle.has(now, 16)
        assert bool(terminated) == (stuck or oracle.has(now, 16))


def boards_met(goal, count, size=2, seed=0):
    """Boards of random play, as tiles; finished ones among them."""
    env = game(size=size, goal=goal)
    rng = np.random.default_rng(seed)
    found = set()
    while len(found) < count:
        key = jax.random.key(int(rng.integers(2**31)))
        state = env.reset_env(key, env.default_params)[1]
        for i in range(40):
            found.add(tiles(state.board))
            action = jnp.int32(rng.integers(4))
            key = jax.random.fold_in(key, i)
            state = step(env)(key, state, action, env.default_params)[1]
    return sorted(found)[:: max(1, len(found) // count)]


@pytest.mark.parametrize(
    ("goal", "discount", "goal_reward"), [(8, 1.0, 0.0), (16, 0.9, 2.5), (32, 1.0, 5.0)]
)
def test_values_on_tiny_boards(goal, discount, goal_reward):
    env = game(size=2, goal=goal)
    assert env.solves == EXACT
    boards = boards_met(goal, 25)
    best = oracle.BestPlay(goal, goal_reward=goal_reward, discount=discount)
    params = env.default_params.replace(goal_reward=goal_reward)
    solution = env.solve(
        states_of(boards), params, budget=allowing(1), discount=discount
    )
    for board, values in zip(boards, solution.action_values, strict=True):
        is_over = oracle.has(board, goal) or not best.returns(board)
        expected = [0.0] * 4 if is_over else best.action_values(board)
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "goal", "count"), [(2, 16, 9), (2, 16, 40), (3, 8, 4)]
)
def test_chances_on_tiny_boards(size, goal, count):
    env = game(size=size, goal=goal)
    boards = boards_met(goal, 25, size=size)
    best = oracle.BestPlay(goal)
    time = np.arange(len(boards)) % 3
    states = states_of(boards).replace(time=jnp.asarray(time, jnp.int32))
    # Every third board is one slide short of the budget, every other third two.
    params = env.default_params.replace(max_steps_in_episode=count)
    solution = env.solve(states, params, budget=allowing(count), discount=1.0)
    expected = [
        best.chance(b, count - int(t)) for b, t in zip(boards, time, strict=True)
    ]
    assert len(set(expected)) > 3
    np.testing.assert_allclose(solution.best_success, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("goal", [8, 16])
def test_fewest_actions_on_tiny_boards(goal):
    env = game(size=2, goal=goal)
    boards = boards_met(goal, 25)
    best = oracle.BestPlay(goal)
    fewest = env.fewest_actions(states_of(boards), env.default_params).tolist()
    expected = [best.fewest(board, 30) for board in boards]
    assert fewest == [NEVER if e is None else e for e in expected]


def test_boards_without_a_table_have_a_lower_bound_of_actions():
    """Of small boards, where the truth is known, it is never above it."""
    env = game(goal=16)
    states = states_of(boards_met(16, 200, size=3))
    fewest = np.asarray(env.fewest_actions(states, env.default_params))
    bound = np.asarray(_fewest_by_sum(states.board, 4))
    assert (bound <= np.where(fewest == 0, NEVER, fewest)).all()
    assert (bound == fewest).any()


@pytest.mark.slow
def test_best_play_earns_what_it_expects():
    """On the default board: mean return of play by the values, against the values."""
    env = game()
    params = env.default_params
    reset = jax.vmap(env.reset_env, in_axes=(0, None))
    states = reset(jax.random.split(jax.random.key(0), 2000), params)[1]
    one = allowing(1)

    @jax.jit
    def play(states):
        def act(states, i):
            solution = env.solve(states, params, budget=one, discount=1.0)
            actions = jnp.argmax(solution.action_values, axis=1)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(1), i), 2000)
            steps = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))
            _, states, reward, _, _ = steps(keys, states, actions, params)
            return states, reward

        return jax.lax.scan(act, states, jnp.arange(75))

    ends, rewards = play(states)
    assert jax.vmap(env.is_terminated, in_axes=(0, None))(ends, params).all()
    returns = np.asarray(rewards.sum(axis=0))
    expected = np.asarray(env.solve(states, params, budget=one, discount=1.0).value)
    # 4 standard errors.
    margin = 4 * (returns - expected).std() / math.sqrt(2000)
    assert abs((returns - expected).mean()) < margin


@pytest.mark.slow
def test_large_boards_have_a_reference():
    env = game(size=4, goal=64)
    assert env.solves == REFERENCE
    params = env.default_params
    reset = jax.vmap(env.reset_env, in_axes=(0, None))
    states = reset(jax.random.split(jax.random.key(0), 8), params)[1]
    solution = env.solve(states, params, budget=allowing(200), discount=0.9)
    assert np.isfinite(solution.action_values).all()
    assert (solution.value == solution.action_values.max(axis=1)).all()
    assert float(solution.best_success.mean()) > 0.8
    none = env.solve(states, params, budget=allowing(3), discount=0.9)
    assert not none.best_success.any()
    fewest = env.fewest_actions(states, params)
    assert ((fewest >= 14) & (fewest <= 16)).all()


def test_the_reference_knows_won_lost_and_idle():
    env = game(size=4, goal=2048)
    row = (2, 4, 8, 16)
    stuck = (row, row[::-1], row, row[::-1])
    boards = [
        ((1024, 1024, 0, 0), (2, 0, 0, 0), (0,) * 4, (0,) * 4),
        ((2048, 2, 0, 0), (0,) * 4, (0,) * 4, (0,) * 4),
        stuck,
    ]
    solution = env.solve(
        states_of(boards), env.default_params, budget=allowing(1), discount=1.0
    )
    assert solution.best_success.tolist() == [1.0, 1.0, 0.0]
    up, right, down, left = solution.action_values[0].tolist()
    assert right == left == 1.0
    assert up == -1.0
    assert 0.0 < down < 1.0
    assert not solution.action_values[1:].any()


def test_text():
    env = game()
    state = jax.tree.map(
        lambda x: x[0], states_of([((2, 0, 16), (0, 4, 0), (8, 2, 0))])
    )
    text = env.render(state, env.default_params)
    assert text == "2 . 16\n. 4 .\n8 2 .\nValid: Up Right Down Left\n"
    assert env.template.read_boards(text)[0][0] == ["2", ".", "16"]
    assert env.instruction.endswith(
        "\nSymbols: . is an empty cell, 2, 4, 8, 16 and 32 are tiles."
    )
    names = [env.action_text(a, state, env.default_params) for a in range(4)]
    assert tuple(names) == ACTIONS == oracle.ACTIONS
    facts = env.facts()
    values = facts.read(state, env.default_params).tolist()
    words = [w.options[value] for w, value in zip(facts.words, values, strict=True)]
    assert words == [" Up.", " Right.", " Down.", " Left."]
    row = jax.tree.map(lambda x: x[0], states_of([((2, 2, 4), (0, 0, 0), (0, 0, 0))]))
    text = env.render(row, env.default_params)
    assert text.endswith("\nValid: Right Down Left\n")
    values = facts.read(row, env.default_params).tolist()
    words = [w.options[value] for w, value in zip(facts.words, values, strict=True)]
    assert words == [" Up-", " Right+", " Down.", " Left+"]


def test_traced_numbers_are_refused():
    env = game(size=2, goal=8)
    states = states_of([((2, 2), (0, 0))])

    @jax.jit
    def solve(params):
        return env.solve(states, params, budget=allowing(1), discount=1.0)

    with pytest.raises(ValueError, match="close over params"):
        solve(env.default_params)
