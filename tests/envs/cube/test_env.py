"""The 2x2x2 cube: turns, numbers of states, distances, levels, rules and text."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.base import NEVER, PlayBudget
from envs.cube import tables as cube_tables
from envs.cube.env import EnvState
from tests.envs.levels import sample
from tests.reference import cube_oracle as oracle

pytestmark = pytest.mark.optimized

AMPLE = PlayBudget(max_turns=20, max_actions_per_turn=1, max_actions_per_episode=20)
turns = st.lists(st.sampled_from(cube_tables.TURNS), max_size=30)


@pytest.fixture(scope="module")
def table():
    return cube_tables.distances()


@pytest.fixture(scope="module")
def env():
    return envs.make("cube2x2")


def states_of(cubes, time=0):
    stickers = jnp.asarray(np.array(cubes, np.int32).reshape(-1, 24))
    return EnvState(time=jnp.full(len(stickers), time, jnp.int32), stickers=stickers)


@functools.cache
def step_of(env):
    return jax.jit(env.step_env)


@functools.cache
def facts_of_the_cube():
    env = envs.make("cube2x2")
    facts = env.facts()
    return facts, jax.jit(lambda state: facts.read(state, env.default_params))


numbers_of = jax.jit(jax.vmap(cube_tables.state_number))
stickers_of = jax.jit(jax.vmap(cube_tables.stickers_of))


def test_turns_are_those_of_a_real_cube():
    assert tuple(oracle.TURNS) == cube_tables.TURNS
    for name, source in zip(cube_tables.TURNS, cube_tables.TURN_TABLE, strict=True):
        assert tuple(source) == oracle.TURNS[name], name


def test_turns_keep_corners_whole():
    corners = {frozenset(corner) for corner in cube_tables.CORNERS.tolist()}
    assert len(corners) == 8
    for source in (*cube_tables.TURN_TABLE, *cube_tables.ROTATIONS):
        assert {frozenset(source[list(corner)]) for corner in corners} == corners


@pytest.mark.parametrize(
    ("sequence", "order"),
    [(["U"], 4), (["B"], 4), (["R", "U"], 15), (["R", "U", "R'", "U'"], 6)],
)
def test_sequences_have_their_orders(sequence, order):
    stickers = identity = tuple(range(24))
    for count in range(1, order + 1):
        stickers = oracle.turn(stickers, *sequence)
        assert (stickers == identity) == (count == order)


def test_rotations_are_the_ways_to_hold_a_cube():
    held = {tuple(p.tolist()) for p in cube_tables.ROTATIONS}
    assert held == set(oracle.holds(tuple(range(24))))


def test_counts_of_states(table):
    assert tuple(np.bincount(table)) == cube_tables.STATES_AT
    assert sum(cube_tables.STATES_AT) == cube_tables.NUM_STATES == table.size


def test_distances_are_those_of_a_plain_search(table):
    expected = oracle.distances(4)
    assert len(expected) == 1 + 6 + 27 + 120 + 534
    numbers = np.asarray(numbers_of(jnp.asarray(list(expected), jnp.int32)))
    assert table[numbers].tolist() == list(expected.values())
    assert len(set(numbers.tolist())) == len(expected)


def test_distances_far_away_change_by_one_with_every_turn(table):
    rng = np.random.default_rng(0)
    rare = np.flatnonzero(table >= 13)
    numbers = np.append(rng.choice(rare, 500), rng.integers(0, table.size, 4000))
    near = stickers_of(jnp.asarray(numbers, jnp.int32))[:, cube_tables.TURN_TABLE]
    near = table[np.asarray(jax.vmap(numbers_of)(near))].astype(int)
    here = table[numbers].astype(int)
    assert (abs(near - here[:, None]) == 1).all()
    # A turn nearer from everywhere: no distance is too large; none is too small, as
    # every way to solved changes by one.
    assert ((near.min(axis=1) == here - 1) | (here == 0)).all()


@given(st.integers(0, cube_tables.NUM_STATES - 1), st.integers(0, 23))
@settings(deadline=None)
def test_numbers_do_not_depend_on_how_a_cube_is_held(number, hold):
    stickers = stickers_of(jnp.int32(number)[None])[:, cube_tables.ROTATIONS[hold]]
    assert int(numbers_of(stickers)[0]) == number


@given(turns)
@settings(deadline=None)
def test_stepping_turns_the_cube(env, sequence):
    state = jax.tree.map(lambda x: x[0], sample(env, 1, seed=len(sequence)))
    params = env.default_params.replace(max_steps_in_episode=30)
    cube = tuple(state.stickers.tolist())
    for count, name in enumerate(sequence):
        is_over = oracle.is_solved(cube)
        action = jnp.int32(cube_tables.TURNS.index(name))
        _, after, reward, terminated, info = step_of(env)(
            jax.random.key(0), state, action, params
        )
        if is_over:
            assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, after, state)))
            assert float(reward) == 0.0
            return
        cube = oracle.turn(cube, name)
        assert tuple(after.stickers.tolist()) == cube
        assert int(after.time) == count + 1
        assert bool(terminated) == bool(info["success"]) == oracle.is_solved(cube)
        assert float(reward) == float(oracle.is_solved(cube))
        assert bool(info["effective"])
        state = after


def test_solved_pays_in_every_hold(env):
    params = env.default_params.replace(solved_reward=2.5)
    for held in oracle.holds(oracle.turn(oracle.SOLVED, "F'")):
        state = jax.tree.map(lambda x: x[0], states_of([held]))
        outcomes = [
            env.step_env(jax.random.key(0), state, a, params)[2:]
            for a in range(env.num_actions)
        ]
        # The face back, or the opposite one forth.
        rewards = [float(reward) for reward, _, _ in outcomes]
        assert sorted(rewards)[-3:] == [0.0, 2.5, 2.5]
        assert [bool(info["success"]) for _, _, info in outcomes] == [
            reward > 0 for reward in rewards
        ]


@pytest.mark.parametrize(
    ("low", "high", "count"), [(1, 4, 6000), (3, 3, 3000), (6, 11, 3000), (13, 14, 900)]
)
def test_levels_are_at_their_distances(table, low, high, count):
    env = envs.make("cube2x2", min_distance=low, max_distance=high)
    stickers = sample(env, count).stickers
    counts = np.bincount(table[np.asarray(numbers_of(stickers))], minlength=15)
    assert counts[low : high + 1].sum() == count
    share = 1 / (high - low + 1)
    # 5 standard deviations on up to 6 counts: a false alarm once in 200,000 seeds.
    margin = 5 * np.sqrt(count * share * (1 - share))
    assert (abs(counts[low : high + 1] - count * share) <= margin).all()


def test_levels_are_uniform_at_a_distance(table):
    env = envs.make("cube2x2", min_distance=2, max_distance=2)
    stickers = np.asarray(sample(env, 27 * 24 * 20).stickers)
    counts = collections.Counter(map(bytes, stickers.astype(np.uint8)))
    # Chi-squared of 648 equal shares: mean 647, deviation 36; 5.5 of them.
    assert len(counts) == 27 * 24
    assert abs(sum((n - 20) ** 2 / 20 for n in counts.values()) - 647) < 5.5 * 36


def test_levels_found_by_trial_are_uniform(table):
    env = envs.make("cube2x2", min_distance=13, max_distance=13)
    numbers = np.asarray(numbers_of(sample(env, 8000).stickers))
    assert (table[numbers] == 13).all()
    # Of 8,000 out of 90,280 about 7,656 are different, with a deviation of 18.
    assert abs(len(set(numbers.tolist())) - 7656) < 100
    places = np.searchsorted(np.flatnonzero(table == 13), numbers) / 90_280
    assert abs(places.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 8000)


def test_solutions_follow_from_distances(env, table):
    cubes = [
        oracle.SOLVED,
        oracle.turn(oracle.SOLVED, "R"),
        oracle.turn(oracle.SOLVED, "R", "U", "F'"),
        oracle.turn(oracle.SOLVED, *"RUFLDBRU"),
    ]
    expected = oracle.distances(4)

    def steps_of(cube):
        return expected.get(min(oracle.holds(cube)), None)

    budget = PlayBudget(max_turns=2, max_actions_per_turn=1, max_actions_per_episode=9)
    solution = env.solve(
        states_of(cubes), env.default_params, budget=budget, discount=0.5
    )
    assert solution.best_success.tolist() == [1.0, 1.0, 0.0, 0.0]
    for cube, values in zip(cubes[1:3], solution.action_values[1:3], strict=True):
        after = [steps_of(oracle.turn(cube, name)) for name in cube_tables.TURNS]
        assert values.tolist() == [0.5**steps for steps in after]
    assert not solution.action_values[0].any()
    fewest = env.fewest_actions(states_of(cubes), env.default_params)
    assert fewest.tolist()[:3] == [0, 1, 3]
    late = env.fewest_actions(states_of(cubes, time=18), env.default_params)
    assert late.tolist()[:3] == [0, 1, NEVER]
    late = env.solve(
        states_of(cubes, time=20), env.default_params, budget=AMPLE, discount=1.0
    )
    assert late.best_success.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert not late.action_values.any()


def test_the_solver_solves_within_a_program(env):
    """Its best action, taken again and again, takes as many turns as it says."""
    params = env.default_params
    hard = envs.make("cube2x2", min_distance=9, max_distance=14)
    states = sample(hard, 200)
    fewest = np.asarray(env.fewest_actions(states, params))
    assert fewest.min() == 9
    assert fewest.max() == 14

    @jax.jit
    def play(states):
        def act(states, _):
            solution = env.solve(states, params, budget=AMPLE, discount=0.9)
            actions = jnp.argmax(solution.action_values, axis=1)
            step = jax.vmap(env.step_env, in_axes=(None, 0, 0, None))
            states = step(jax.random.key(0), states, actions, params)[1]
            return states, jax.vmap(env.is_success, in_axes=(0, None))(states, params)

        return jax.lax.scan(act, states, length=14)[1]

    is_solved = np.asarray(play(states))
    assert (is_solved.argmax(axis=0) + 1 == fewest).all()
    assert is_solved[-1].all()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["U", "U'", "L", "L'", "F", "F'"]), max_size=8),
    st.integers(0, 23),
)
def test_facts_say_where_stickers_belong(plan, hold):
    """Where each is after a plan that solves the cube, which is known."""
    undone = [turn[0] + ("" if "'" in turn else "'") for turn in reversed(plan)]
    solved = oracle.holds(oracle.SOLVED)[hold]
    cube = oracle.turn(solved, *undone)
    # Stickers named by their place now, as they stand after the plan.
    after = oracle.turn(list(range(24)), *plan)
    face_of = {sticker: place // 4 for place, sticker in enumerate(after)}
    state = jax.tree.map(lambda x: x[0], states_of([cube]))
    facts, read = facts_of_the_cube()
    values = read(state).tolist()
    names = [w.options[value] for w, value in zip(facts.words, values, strict=True)]
    colors, stickers = names[:6], names[6:]
    homes = [" " + "WOGRBY"[color] for color in solved[::4]]
    assert colors == [f"{h} {f}" for h, f in zip(homes, "ulfrbd", strict=True)]
    right, down = (4 * "ULFRBD".index(face) for face in "RD")
    places = [right, right + 1, right + 2, down, down + 1, down + 2]
    expected = [
        text
        for i in places
        for text in (f" {'WOGRBY'[cube[i]]}", f" {'ulfrbd'[face_of[i]]}")
    ]
    assert stickers == expected


def test_text(env):
    state = jax.tree.map(lambda x: x[0], states_of([oracle.turn(oracle.SOLVED, "U")]))
    assert env.render(state, env.default_params) == (
        "WWWW\nGGOO\nRRGG\nBBRR\nOOBB\nYYYY\n"
    )
    assert env.instruction.endswith(
        "\nSymbols: W white, O orange, G green, R red, B blue, Y yellow."
    )
    named = [env.action_text(a, state, env.default_params) for a in range(12)]
    assert tuple(named) == cube_tables.TURNS
