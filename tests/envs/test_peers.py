"""The rules of games against libraries that have them, too.

The program does not require them; continuous integration installs them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import PlayBudget
from envs.countdown import env as countdown
from envs.cube import tables as cube_tables
from envs.game2048 import slides
from envs.sudoku import env as sudoku
from tests import commands
from tests.reference import cube_oracle

pytestmark = pytest.mark.live

ANSWERS = PlayBudget(1, 1, 1)


@pytest.fixture
def reasoning_gym():
    commands.need("reasoning_gym")
    import reasoning_gym

    return reasoning_gym


def levels(env, num_levels):
    keys = jax.random.split(jax.random.key(0), num_levels)
    return jax.jit(jax.vmap(env.reset_env, (0, None)))(keys, env.default_params)[1]


def take(states, i):
    return jax.tree.map(lambda x: x[i], states)


def test_turns_of_the_cube_are_those_of_magiccube():
    commands.need("magiccube")
    from magiccube import cube
    from magiccube.cube_base import Face

    faces = [Face.U, Face.L, Face.F, Face.R, Face.B, Face.D]
    solved = "".join("WOGRBY"[color] for color in cube_oracle.SOLVED)
    rng = np.random.default_rng(0)
    for length in range(100):
        sequence = rng.choice(cube_tables.TURNS, length % 30)
        theirs = cube.Cube(2, solved)
        for name in sequence:
            theirs.rotate(str(name))
        shown = [color.name for face in faces for color in theirs.get_face_flat(face)]
        ours = cube_oracle.turn(cube_oracle.SOLVED, *sequence)
        assert shown == ["WOGRBY"[color] for color in ours]


@pytest.mark.parametrize("num_numbers", [3, 4])
def test_our_countdown_answers_solve_their_levels(reasoning_gym, num_numbers):
    """Problems of reasoning-gym: our solver finds an answer that it scores as right."""
    env = envs.make("countdown", num_numbers=num_numbers)
    problems = reasoning_gym.create_dataset(
        "countdown",
        seed=1,
        size=60,
        min_numbers=num_numbers,
        max_numbers=num_numbers,
        max_value=99,
        min_target=1,
        max_target=99,
    )
    entries = list(problems)
    states = countdown.EnvState(
        time=jnp.zeros(len(entries), jnp.int32),
        numbers=jnp.array([e["metadata"]["numbers"] for e in entries], jnp.int32),
        target=jnp.array([e["metadata"]["target"] for e in entries], jnp.int32),
        outcome=jnp.zeros(len(entries), jnp.int32),
    )
    assert_answers_solve(env, states, problems, entries)


@pytest.mark.parametrize("kwargs", [{}, {"num_numbers": 4}, {"signs_only": True}])
def test_our_countdown_answers_solve_our_levels(reasoning_gym, kwargs):
    env = envs.make("countdown", **kwargs)
    states = levels(env, 60)
    entries = [
        {
            "metadata": {
                "numbers": states.numbers[i].tolist(),
                "target": int(states.target[i]),
            }
        }
        for i in range(60)
    ]
    problems = reasoning_gym.create_dataset("countdown", seed=0, size=1)
    assert_answers_solve(env, states, problems, entries)


def assert_answers_solve(env, states, problems, entries):
    params = env.default_params
    solution = env.solve(states, params, budget=ANSWERS, discount=1.0)
    assert (np.asarray(solution.best_success) == 1.0).all()
    best = np.asarray(solution.action_values).argmax(axis=1)
    worst = np.asarray(solution.action_values).argmin(axis=1)
    for i, entry in enumerate(entries):
        state = take(states, i)
        right = env.action_text(int(best[i]), state, params)
        assert problems.score_answer(right, entry) == 1.0
        wrong = env.action_text(int(worst[i]), state, params)
        paid = env.step_env(jax.random.key(0), state, int(worst[i]), params)[2]
        # Theirs is 0.05 where ours is 0.1: the right numbers, another value.
        assert (problems.score_answer(wrong, entry) == 1.0) == (paid == 1.0), wrong


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("mini_sudoku", {"min_blanks": 8, "max_blanks": 12}),
        ("sudoku", {"size": 9, "min_blanks": 40, "max_blanks": 40}),
    ],
)
def test_our_sudoku_levels_have_one_solution_by_their_solver(
    reasoning_gym, name, kwargs
):
    env = envs.make("sudoku", **kwargs)
    states = levels(env, 30)
    solver = reasoning_gym.create_dataset(name, seed=0, size=1)
    for i in range(30):
        board = states.board[i].tolist()
        assert solver._count_solutions(board, limit=2) == 1
        assert solver._solve(board)
        assert board == states.solution[i].tolist()


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("mini_sudoku", 4, {"min_empty": 4, "max_empty": 12}),
        ("sudoku", 9, {"min_empty": 30, "max_empty": 50}),
    ],
)
def test_playing_their_sudokus_ends_on_their_solution(
    reasoning_gym, name, size, options
):
    env = envs.make("sudoku", size=size)
    params = env.default_params
    problems = reasoning_gym.create_dataset(name, seed=2, size=20, **options)
    entries = list(problems)
    puzzles = np.array([e["metadata"]["puzzle"] for e in entries], np.int32)
    solutions = np.array([e["metadata"]["solution"] for e in entries], np.int32)
    states = sudoku.EnvState(
        time=jnp.zeros(len(entries), jnp.int32),
        board=jnp.asarray(puzzles),
        givens=jnp.asarray(puzzles > 0),
        solution=jnp.asarray(solutions),
    )
    step = jax.jit(jax.vmap(env.step_env, in_axes=(None, 0, 0, None)))
    for _ in range((puzzles == 0).sum(axis=(1, 2)).max()):
        solution = env.solve(states, params, budget=ANSWERS, discount=0.9)
        actions = jnp.argmax(solution.action_values, axis=1)
        states = step(jax.random.key(0), states, actions, params)[1]
    assert jax.vmap(env.is_success, (0, None))(states, params).all()
    for board, entry in zip(np.asarray(states.board), entries, strict=True):
        answer = "\n".join(" ".join(map(str, row)) for row in board)
        assert problems.score_answer(answer, entry) == 1.0


@pytest.mark.parametrize("size", [2, 3, 4])
def test_slides_of_2048_are_those_of_jumanji(size):
    commands.need("jumanji")
    from jumanji.environments.logic.game_2048 import utils

    rng = np.random.default_rng(size)
    boards = jnp.asarray(rng.integers(0, 5, (2000, size, size)), jnp.int32)
    actions = jnp.asarray(rng.integers(0, 4, 2000), jnp.int32)
    ours, merged = jax.jit(jax.vmap(slides.slide))(boards, actions)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        theirs, reward = jax.jit(jax.vmap(utils.move))(boards, actions)
        can_move = jax.jit(jax.vmap(utils.can_move))(boards, actions)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(merged, reward)
    changes = (np.asarray(ours) != np.asarray(boards)).any(axis=(1, 2))
    np.testing.assert_array_equal(changes, can_move)
