"""Rules, rewards and text of Sokoban against sets of coordinates in plain Python."""

import functools

import jax
import numpy as np
import pytest

from envs.sokoban.env import EnvParams, Sokoban
from tests.envs.sokoban.pictures import states_of
from tests.reference.sokoban_oracle import play, read_level

NUM_LEVELS, NUM_STEPS = 16, 60


@functools.cache
def random_play(rows, cols, num_boxes):
    """Boards before the first and after every action, and what the steps returned."""
    env = Sokoban(rows=rows, cols=cols, num_boxes=num_boxes)
    params = env.default_params

    def episode(key):
        level_key, play_key = jax.random.split(key)
        board, state = env.reset_env(level_key, params)
        actions = jax.random.randint(play_key, (NUM_STEPS,), 0, env.num_actions)

        def step(state, action):
            board, state, reward, terminated, info = env.step_env(
                key, state, action, params
            )
            return state, (action, board, reward, terminated, info)

        return board, jax.lax.scan(step, state, actions)[1]

    keys = jax.random.split(jax.random.key(3), NUM_LEVELS)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(episode))(keys))


@pytest.mark.parametrize("size", [(6, 6, 1), (5, 7, 2), (7, 5, 3)])
def test_random_play_follows_the_rules(size):
    first, (actions, boards, rewards, terminated, info) = random_play(*size)
    num_pushes = 0
    for i in range(NUM_LEVELS):
        level = read_level(first[i])
        for t in range(NUM_STEPS):
            before, reward, is_effective = level, 0.0, False
            if not level.is_solved:
                level, reward, is_effective = play(level, int(actions[i, t]))
            num_pushes += level.boxes != before.boxes
            np.testing.assert_array_equal(boards[i, t], level.board())
            assert rewards[i, t] == pytest.approx(reward, abs=1e-5)
            assert terminated[i, t] == info["success"][i, t] == level.is_solved
            assert info["effective"][i, t] == is_effective
    assert num_pushes > NUM_LEVELS


def state_of(picture):
    return jax.tree.map(lambda x: x[0], states_of(picture))


UP, DOWN, LEFT, RIGHT = range(4)
STEPS = {
    "a push onto the target": ("#PXO#", RIGHT, "#_P√#", 10.9, True, True),
    "a push along the floor": ("#PX_O#", RIGHT, "#_PXO#", -0.1, True, False),
    "a wall": ("#PXO#", LEFT, "#PXO#", -0.1, False, False),
    "a box against a wall": ("#OPX#", RIGHT, "#OPX#", -0.1, False, False),
    "two boxes in a row": ("#PXX_OO#", RIGHT, "#PXX_OO#", -0.1, False, False),
    "one box of two": ("#PXO_XO#", RIGHT, "#_P√_XO#", 0.9, True, False),
    "a box off its target": ("#P√_XO#", RIGHT, "#_SXXO#", -1.1, True, False),
    "from target to target": ("#P√OX#", RIGHT, "#_S√X#", -0.1, True, False),
    "a step onto a target": ("#_PO_X#", RIGHT, "#__S_X#", -0.1, True, False),
}


@pytest.mark.parametrize("name", STEPS)
def test_single_steps(name):
    row, action, after, reward, is_effective, is_solved = STEPS[name]
    cols = len(row)
    picture = ("#" * cols, row, "#" * cols)
    env = Sokoban(rows=3, cols=cols)
    env.num_boxes = sum(row.count(symbol) for symbol in "X√")
    _, state, paid, terminated, info = env.step_env(
        None, state_of(picture), action, env.default_params
    )
    assert env.render(state, env.default_params).splitlines()[1] == after
    assert float(paid) == pytest.approx(reward, abs=1e-6)
    assert bool(info["effective"]) == is_effective
    assert bool(terminated) == bool(info["success"]) == is_solved
    assert int(state.time) == 1


def test_rewards_are_parameters():
    env = Sokoban(rows=3, cols=5)
    params = EnvParams(step_reward=-1.0, box_reward=2.0, solve_reward=30.0)
    state = state_of(("#####", "#PXO#", "#####"))
    _, _, reward, _, _ = env.step_env(None, state, RIGHT, params)
    assert float(reward) == 31.0


PICTURE = ("######", "#S_√_#", "#_X__#", "#_O__#", "#____#", "######")


def test_text_in_each_observation():
    texts = {}
    for observation in ("grid", "coord", "grid_coord", "relative"):
        env = Sokoban(num_boxes=2, observation=observation)
        texts[observation] = env.render(state_of(PICTURE), env.default_params)
    assert texts["grid"] == "".join(row + "\n" for row in PICTURE)
    assert texts["coord"] == (
        "Board: 6 rows and 6 columns, counted from 0.\n"
        "Targets: (1, 1), (1, 3), (3, 2)\n"
        "Boxes: (2, 2)\n"
        "Boxes on target: (1, 3)\n"
        "Player on target: (1, 1)\n"
    )
    expected = f"Coordinates:\n{texts['coord']}Map:\n{texts['grid']}"
    assert texts["grid_coord"] == expected
    assert texts["relative"] == (
        "Board: 6 rows and 6 columns, counted from 0.\n"
        "Targets: here; 2 right; 2 down, 1 right\n"
        "Boxes: 1 down, 1 right\n"
        "Boxes on target: 2 right\n"
        "Player on target: (1, 1)\n"
    )


def test_legend_and_picture_follow_the_symbols():
    env = Sokoban(num_boxes=2, symbols=tuple("W.GCBA@"))
    text = env.render(state_of(PICTURE), env.default_params)
    assert text.splitlines()[1:4] == ["W@.C.W", "W.B..W", "W.G..W"]
    legend = "W wall, . floor, G target, C box on target, B box, A you, @ you on a"
    assert legend in env.instruction
    assert "Symbols" not in Sokoban(observation="coord").instruction
