"""Both searches against a plain forward search, and the values made of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.base import NEVER, PlayBudget
from envs.sokoban.env import Sokoban
from envs.sokoban.solver import action_distances, host_action_distances
from tests.envs.sokoban.pictures import states_of
from tests.reference.sokoban_oracle import STEPS, move, read_level, solution_length

NUM_LEVELS = 32
AMPLE = PlayBudget(max_turns=100, max_actions_per_turn=1, max_actions_per_episode=100)
# One push up solves the level.
ONE_PUSH = ("######", "#____#", "#_O__#", "#_X__#", "#_P__#", "######")
# The box is in a corner.
LOST = ("######", "#X___#", "#_O__#", "#____#", "#_P__#", "######")


@functools.cache
def env_of(num_boxes):
    return Sokoban(num_boxes=num_boxes)


@functools.cache
def played_states(num_boxes, num_steps=6):
    """States after a few random actions: solvable ones, lost ones and solved ones."""
    env = env_of(num_boxes)
    params = env.default_params

    def play(key):
        level_key, play_key = jax.random.split(key)
        _, state = env.reset_env(level_key, params)
        actions = jax.random.randint(play_key, (num_steps,), 0, env.num_actions)

        def step(state, action):
            return env.step_env(key, state, action, params)[1], None

        return jax.lax.scan(step, state, actions)[0]

    keys = jax.random.split(jax.random.key(num_boxes), NUM_LEVELS)
    return jax.jit(jax.vmap(play))(keys)


def expected_distances(env, state):
    level = read_level(np.asarray(env.observe(None, state, None, env.default_params)))
    if level.is_solved:
        return [0] * len(STEPS)
    lengths = [solution_length(move(level, action)) for action in STEPS]
    return [NEVER if n is None else n + 1 for n in lengths]


@pytest.mark.parametrize("num_boxes", [1, 2])
def test_distances_are_those_of_a_forward_search(num_boxes):
    env, states = env_of(num_boxes), played_states(num_boxes)
    count = NUM_LEVELS if num_boxes == 1 else 6
    states = jax.tree.map(lambda x: x[:count], states)
    distances = np.asarray(env.action_distances(states))
    rows = [jax.tree.map(lambda x, i=i: x[i], states) for i in range(count)]
    np.testing.assert_array_equal(
        distances, [expected_distances(env, row) for row in rows]
    )
    # The sample covers what matters.
    assert (distances == NEVER).any()
    assert (distances[:, 0] < NEVER).any()


def test_host_and_device_searches_agree():
    env, states = env_of(1), played_states(1)
    walls = np.asarray(states.walls).reshape(-1, env.rows, env.cols)
    targets = np.asarray(states.targets).reshape(walls.shape)
    on_host = host_action_distances(
        walls, targets, np.asarray(states.boxes), np.asarray(states.player)
    )
    np.testing.assert_array_equal(on_host, env.action_distances(states))


def test_action_distances_works_inside_jit_on_a_rectangle():
    picture = ("########", "#P_X__O#", "########")
    state = jax.tree.map(lambda x: x[0], states_of(picture))
    target = jnp.argmax(state.targets).astype(jnp.int32)
    distances = jax.jit(action_distances)(
        state.walls.reshape(3, 8), target, state.boxes[0], state.player
    )
    # Right, right, right, right; the other actions run into walls.
    assert distances.tolist() == [5, 5, 5, 4]


def test_values_of_one_push():
    env = env_of(1)
    solution = env.solve(
        states_of(ONE_PUSH), env.default_params, budget=AMPLE, discount=1.0
    )
    up, down, left, right = solution.action_values[0].tolist()
    assert up == pytest.approx(10.9, abs=1e-5)
    # Down is blocked; the sides cost the way back.
    assert down == pytest.approx(10.8, abs=1e-5)
    assert left == right == pytest.approx(10.7, abs=1e-5)
    assert solution.value[0] == solution.action_values[0, 0]


def test_a_lost_level_has_no_value():
    env = env_of(1)
    solution = env.solve(
        states_of(LOST), env.default_params, budget=AMPLE, discount=1.0
    )
    assert (np.asarray(solution.action_values) == -np.inf).all()
    assert solution.best_success.tolist() == [0.0]


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_value_is_the_return_of_playing_the_best_action(discount):
    env, states = env_of(1), played_states(1, num_steps=1)
    params = env.default_params
    solution = env.solve(states, params, budget=AMPLE, discount=discount)
    step = jax.jit(jax.vmap(env.step_env, in_axes=(None, 0, 0, None)))
    total, weight, key = np.zeros(NUM_LEVELS), 1.0, jax.random.key(0)
    lengths = np.asarray(env.shortest_solution_length(states))
    is_solvable = lengths < NEVER
    for _ in range(lengths[is_solvable].max()):
        best = env.solve(states, params, budget=AMPLE, discount=discount)
        actions = best.action_values.argmax(axis=1)
        _, states, reward, _, _ = step(key, states, actions, params)
        total += weight * np.asarray(reward)
        weight *= discount
    success = jax.vmap(env.is_success, (0, None))(states, params)
    np.testing.assert_array_equal(success, is_solvable)
    np.testing.assert_allclose(
        solution.value[is_solvable], total[is_solvable], atol=1e-4
    )


@pytest.mark.parametrize(
    ("budget", "time", "expected"),
    [
        (PlayBudget(4, 1, 10), 0, 1.0),
        (PlayBudget(3, 1, 10), 0, 0.0),
        (PlayBudget(2, 2, 10), 0, 1.0),
        (PlayBudget(9, 9, 3), 0, 0.0),
        (PlayBudget(9, 9, 10), 96, 1.0),
        (PlayBudget(9, 9, 10), 97, 0.0),
    ],
)
def test_success_respects_every_budget(budget, time, expected):
    env = Sokoban(rows=3, cols=8)
    states = states_of(("########", "#P_X__O#", "########"), time=time)
    solution = env.solve(states, env.default_params, budget=budget, discount=1.0)
    assert solution.best_success.tolist() == [expected]


@pytest.mark.parametrize("time", [0, 100])
def test_a_finished_state_pays_nothing(time):
    env = env_of(1)
    solved = tuple(row.replace("X", "_").replace("O", "√") for row in ONE_PUSH)
    states = states_of(solved if time == 0 else ONE_PUSH, time=time)
    solution = env.solve(states, env.default_params, budget=AMPLE, discount=1.0)
    assert solution.action_values.tolist() == [[0.0] * 4]
    assert solution.best_success.tolist() == [1.0 if time == 0 else 0.0]


def test_what_cannot_be_searched_is_refused():
    env = env_of(2)
    states = played_states(2)
    with pytest.raises(ValueError, match=r"discount=1\.0"):
        env.solve(states, env.default_params, budget=AMPLE, discount=0.9)
    walls = np.asarray(states.walls).reshape(-1, 6, 6)
    targets = np.asarray(states.targets).reshape(-1, 6, 6)
    with pytest.raises(ValueError, match="use fewer boxes or a smaller board"):
        host_action_distances(
            walls,
            targets,
            np.asarray(states.boxes),
            np.asarray(states.player),
            max_states=10,
        )
