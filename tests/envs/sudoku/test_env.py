"""Sudoku: rules, text and best play against plain Python."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import NEVER, PlayBudget
from envs.sudoku.env import EnvState
from tests.envs.levels import sample
from tests.reference import sudoku_oracle as oracle

AMPLE = PlayBudget(1000, 1, 1000)
SOLUTION = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)


@functools.cache
def env_of(size=4, **kwargs):
    return envs.make("sudoku", size=size, **kwargs)


def place(board, blanks, solution=SOLUTION, *, time=0):
    """A state of 4x4: `blanks` are the cells that are not given."""
    givens = [i not in blanks for i in range(16)]
    return EnvState(
        time=jnp.int32(time),
        board=jnp.array(board, jnp.int32).reshape(4, 4),
        givens=jnp.array(givens).reshape(4, 4),
        solution=jnp.array(solution, jnp.int32).reshape(4, 4),
    )


def stack(states):
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


def without(cells):
    return tuple(0 if i in cells else d for i, d in enumerate(SOLUTION))


def flat(board):
    return tuple(np.asarray(board).reshape(-1).tolist())


@pytest.mark.parametrize("kwargs", [{}, {"size": 9, "max_blanks": 40}])
def test_random_play_is_that_of_the_rules(kwargs):
    env = env_of(**kwargs)
    params = env.default_params.replace(max_steps_in_episode=60)
    rewards = (1.0, 0.5, -0.1, 10.0)
    num_games, num_steps = 16, 64
    start = sample(env, num_games)
    shape = (num_steps, num_games)
    anything = jax.random.randint(jax.random.key(1), shape, 0, env.num_actions)
    # Half of the actions are right, or games would hardly be solved.
    cells = jax.random.randint(jax.random.key(2), shape, 0, env.size**2)
    right = jnp.take_along_axis(start.solution.reshape(num_games, -1), cells.T, 1).T
    is_right = jax.random.bernoulli(jax.random.key(3), 0.6, shape)
    actions = jnp.where(is_right, cells * env.size + right - 1, anything)

    def play(states, actions):
        stepped = jax.vmap(env.step_env, (None, 0, 0, None))(
            jax.random.key(0), states, actions, params
        )
        return stepped[1], (stepped[1].board, *stepped[2:])

    played = jax.device_get(
        jax.jit(lambda s, a: jax.lax.scan(play, s, a))(start, actions)
    )
    boards, rewards_paid, terminated, info = played[1]
    for game in range(num_games):
        board, solution = flat(start.board[game]), flat(start.solution[game])
        givens = set(np.flatnonzero(np.asarray(start.givens[game])).tolist())
        for i, action in enumerate(actions[:, game].tolist()):
            is_over = board == solution or i >= 60
            after, reward = (board, 0.0)
            if not is_over:
                after, reward = oracle.step(
                    board, givens, solution, action, env.size, rewards
                )
            assert flat(boards[i, game]) == after
            assert np.isclose(rewards_paid[i, game], reward)
            assert info["effective"][i, game] == (after != board)
            assert info["success"][i, game] == terminated[i, game]
            assert terminated[i, game] == (after == solution)
            board = after
    if env.size == 4:
        assert terminated[-1].any()


def test_rules():
    env = env_of()
    params = env.default_params
    # Row 1 lacks 1 and 3, row 3 lacks 2 and 4.
    state = place(without({0, 2, 8, 10}), {0, 2, 8, 10})
    assert env.render(state, params) == ".2.4\n3412\n.1.3\n4321\n"

    def play(state, row, col, digit):
        action = jnp.int32(((row - 1) * 4 + col - 1) * 4 + digit - 1)
        assert env.action_text(int(action), state, params) == f"{row},{col},{digit}"
        _, after, reward, terminated, info = env.step_env(
            jax.random.key(0), state, action, params
        )
        facts = (bool(terminated), bool(info["success"]), bool(info["effective"]))
        assert int(after.time) == int(state.time) + (not bool(jnp.all(state.board)))
        return after, round(float(reward), 6), facts

    nothing = (False, False, False)
    assert play(state, 1, 2, 3)[1:] == (-0.1, nothing)  # a given cell
    assert play(state, 1, 1, 2)[1:] == (-0.1, nothing)  # 2 is given in the row
    assert play(state, 1, 1, 3)[1:] == (-0.1, nothing)  # 3 is given in the column
    state, reward, facts = play(state, 1, 1, 1)
    assert (reward, facts) == (1.0, (False, False, True))
    state, reward, facts = play(state, 1, 3, 3)
    assert (reward, facts) == (1.0, (False, False, True))
    state, reward, facts = play(state, 3, 1, 2)
    assert (reward, facts) == (1.0, (False, False, True))
    state, reward, facts = play(state, 3, 3, 4)
    assert (reward, facts) == (11.0, (True, True, True))
    assert env.render(state, params) == "1234\n3412\n2143\n4321\n"
    assert play(state, 3, 3, 4)[1:] == (0.0, (True, True, False))


def test_a_cell_pays_for_its_first_digit_only():
    env = env_of()
    params = env.default_params
    blanks = {0, 1, 2, 4, 5, 6}
    state = place(without(blanks), blanks)
    for text, expected in (
        ("1,1,3", (0.5, True)),
        ("1,1,1", (0.0, True)),
        ("1,1,3", (0.0, True)),
        ("1,1,1", (0.0, True)),
        ("1,1,1", (0.0, False)),
        ("1,2,1", (-0.1, False)),
        ("1,2,2", (1.0, True)),
    ):
        row, col, digit = map(int, text.split(","))
        action = jnp.int32(((row - 1) * 4 + col - 1) * 4 + digit - 1)
        _, state, reward, _, info = env.step_env(
            jax.random.key(0), state, action, params
        )
        assert (round(float(reward), 6), bool(info["effective"])) == expected


def most_open_blanks():
    """Four cells of 4x4 in which as many wrong digits as possible can be placed."""
    rng = np.random.default_rng(0)
    masks = [frozenset(rng.choice(16, 4, replace=False).tolist()) for _ in range(300)]

    def wrong_and_legal(blanks):
        board = without(blanks)
        return sum(len(oracle.candidates(board, i, 4)) - 1 for i in blanks)

    blanks = max(masks, key=wrong_and_legal)
    assert wrong_and_legal(blanks) >= 4
    return sorted(blanks)


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
@pytest.mark.parametrize(
    "rewards", [(1.0, 0.5, -0.1, 10.0), (1.0, 1.0, 0.0, 0.0), (0.3, 0.0, -1.0, 2.0)]
)
def test_best_play_is_that_of_value_iteration(discount, rewards):
    env, blanks = env_of(), most_open_blanks()
    fields = ("correct_reward", "legal_reward", "invalid_reward", "solved_reward")
    params = env.default_params.replace(**dict(zip(fields, rewards, strict=True)))
    givens = set(range(16)) - set(blanks)
    boards = []
    for digits in itertools.product(range(5), repeat=4):
        filled = dict(zip(blanks, digits, strict=True))
        boards.append(tuple(filled.get(i, d) for i, d in enumerate(SOLUTION)))
    number = {board: i for i, board in enumerate(boards)}
    outcomes = [
        [oracle.step(board, givens, SOLUTION, a, 4, rewards) for a in range(64)]
        for board in boards
    ]
    later = np.array([[number[board] for board, _ in row] for row in outcomes])
    paid = np.array([[reward for _, reward in row] for row in outcomes])
    is_solved = np.arange(len(boards)) == number[SOLUTION]
    values = np.zeros(len(boards))
    # More sweeps than best play has actions: they end at a fixed point.
    for _ in range(12):
        before, action_values = values, paid + discount * values[later]
        action_values[is_solved] = 0.0
        values = action_values.max(1)
    np.testing.assert_allclose(before, values, atol=1e-9)
    states = stack([place(board, blanks) for board in boards])
    solution = env.solve(states, params, budget=AMPLE, discount=discount)
    # Other boards cannot come up: a digit stands against a given one.
    free = {i: (0, *oracle.candidates(without(blanks), i, 4)) for i in blanks}
    is_possible = np.array([all(b[i] in free[i] for i in blanks) for b in boards])
    np.testing.assert_allclose(
        solution.action_values[is_possible], action_values[is_possible], atol=1e-5
    )
    np.testing.assert_array_equal(solution.value, solution.action_values.max(1))
    assert is_possible.sum() > 60
    np.testing.assert_array_equal(solution.best_success, 1)
    missing = [sum(a != b for a, b in zip(x, SOLUTION, strict=True)) for x in boards]
    np.testing.assert_array_equal(env.fewest_actions(states, params), missing)


@pytest.mark.parametrize(
    "kwargs", [{}, {"size": 9, "min_blanks": 20, "max_blanks": 45}]
)
def test_greedy_play_earns_the_value(kwargs):
    env = env_of(**kwargs)
    params, discount, num_levels = env.default_params, 0.95, 4

    def act(states, _):
        solution = env.solve(states, params, budget=AMPLE, discount=discount)
        actions = jnp.argmax(solution.action_values, axis=1).astype(jnp.int32)
        stepped = jax.vmap(env.step_env, (None, 0, 0, None))(
            jax.random.key(0), states, actions, params
        )
        return stepped[1], stepped[2]

    states = sample(env, num_levels)
    # A few digits of the player's own, right or wrong.
    for i in range(8):
        actions = jax.random.randint(
            jax.random.key(i), (num_levels,), 0, env.num_actions
        )
        states = jax.vmap(env.step_env, (None, 0, 0, None))(
            jax.random.key(0), states, actions, params
        )[1]
    value = env.solve(states, params, budget=AMPLE, discount=discount).value
    fewest = env.fewest_actions(states, params)
    ends, rewards = jax.jit(lambda s: jax.lax.scan(act, s, length=50))(states)
    weights = discount ** np.arange(50)[:, None]
    np.testing.assert_allclose((weights * rewards).sum(0), value, rtol=1e-4)
    np.testing.assert_array_equal(ends.time - states.time, fewest)
    assert bool(jnp.all(ends.board == ends.solution))


def test_budget_and_time_limit():
    env = env_of()
    params = env.default_params.replace(max_steps_in_episode=10)
    blanks = {0, 5, 10, 15}
    times = (0, 6, 7, 10)
    states = [place(without(blanks), blanks, time=t) for t in times]
    states = stack([*states, place(SOLUTION, blanks, time=10)])
    fewest = env.fewest_actions(states, params)
    np.testing.assert_array_equal(fewest, [4, 4, NEVER, NEVER, 0])
    for budget, enough in (((2, 2, 9), 1), ((3, 1, 9), 0), ((9, 9, 3), 0)):
        solution = env.solve(states, params, budget=PlayBudget(*budget), discount=1.0)
        expected = [enough, enough, 0, 0, 1]
        np.testing.assert_array_equal(solution.best_success, expected)
        assert not np.any(np.asarray(solution.action_values[3:]))


@pytest.mark.parametrize(
    "kwargs", [{}, {"size": 9, "min_blanks": 30, "max_blanks": 48}]
)
def test_a_thought_states_the_solved_board(kwargs):
    env = env_of(**kwargs)
    states = sample(env, 24)
    facts = env.facts()
    words = jax.jit(jax.vmap(facts.read, (0, None)))(states, env.default_params)
    for row, board in zip(words, states.board, strict=True):
        texts = [c.options[i] for c, i in zip(facts.words, row, strict=True)]
        (solution,) = oracle.solutions(flat(board), env.size)
        rows = [solution[i : i + env.size] for i in range(0, env.size**2, env.size)]
        lines = [
            letter + "".join(map(str, digits))
            for letter, digits in zip("abcdefghi", rows, strict=False)
        ]
        assert "".join(texts) == "".join(lines)
