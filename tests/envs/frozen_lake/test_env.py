"""FrozenLake: levels, slip, rules and text."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.frozen_lake.env import EnvState
from tests.envs.levels import sample
from tests.reference import frozen_lake_oracle as oracle


def place(position, *, size=4, holes=(), goal=0, start=0):
    return EnvState(
        time=jnp.int32(0),
        position=jnp.int32(position),
        start=jnp.int32(start),
        goal=jnp.int32(goal),
        holes=jnp.isin(jnp.arange(size * size), jnp.array(holes, jnp.int32)),
    )


def levels(env, num_levels, seed=0):
    """[(holes, start, goal)] as the oracle writes them."""
    states = jax.device_get(sample(env, num_levels, seed))
    for holes, start, goal in zip(states.holes, states.start, states.goal, strict=True):
        tiles = [divmod(int(t), env.size) for t in np.flatnonzero(holes)]
        yield set(tiles), divmod(int(start), env.size), divmod(int(goal), env.size)


ENV = envs.make("frozen_lake")
STEP = jax.jit(jax.vmap(ENV.step_env, in_axes=(0, None, None, None)))


def landings(state, action, success_rate, num_draws=20_000):
    """Share of the draws that end on each tile."""
    params = ENV.default_params.replace(success_rate=success_rate)
    keys = jax.random.split(jax.random.key(11), num_draws)
    tiles = STEP(keys, state, action, params)[1].position
    return np.bincount(np.asarray(tiles), minlength=16) / num_draws


@pytest.mark.parametrize("success_rate", [1 / 3, 0.8, 1.0, 0.0])
@pytest.mark.parametrize("position", [5, 0, 11])
def test_slip_goes_to_the_two_sides_only(position, success_rate):
    state = place(position, goal=15)
    for action in range(4):
        expected = np.zeros(16)
        for chance, tile in oracle.outcomes(
            divmod(position, 4), action, 4, success_rate
        ):
            expected[tile[0] * 4 + tile[1]] += chance
        seen = landings(state, action, success_rate)
        # 5.5 standard deviations on each of 48 x 16 frequencies, most of them 0 or 1
        # exactly: a false alarm once in 10^5 seeds.
        margin = 5.5 * np.sqrt(expected * (1 - expected) / 20_000)
        assert (abs(seen - expected) <= margin + 1e-7).all(), (action, seen, expected)


def test_rules():
    env = envs.make("frozen_lake")
    params = env.default_params.replace(success_rate=1.0)
    state = place(5, holes=(4,), goal=6)

    def step(state, action):
        _, after, reward, terminated, info = env.step_env(
            jax.random.key(0), state, action, params
        )
        outcome = (float(reward), bool(terminated))
        return after, (*outcome, bool(info["success"]), bool(info["effective"]))

    assert step(state, 0)[1] == (0.0, True, False, True)  # Left, into the hole
    assert step(state, 1)[1] == (0.0, False, False, True)  # Down, over ice
    assert step(state, 2)[1] == (1.0, True, True, True)  # Right, to the goal
    blocked, facts = step(place(1, goal=6), 3)  # Up, off the board
    assert facts == (0.0, False, False, False)
    assert int(blocked.time) == 1
    late = state.replace(time=jnp.int32(99))
    after, facts = step(late, 1)
    assert facts == (0.0, False, False, True)
    assert bool(env.is_truncated(after, params))
    again, facts = step(after, 0)
    assert facts == (0.0, False, False, False)
    chex.assert_trees_all_equal(again, after)


@pytest.mark.parametrize(
    ("size", "frozen_probability"),
    [(4, 0.4), (2, 0.5), (3, 0.0), (7, 0.6)],
)
def test_every_level_has_a_path(size, frozen_probability):
    env = envs.make("frozen_lake", size=size, frozen_probability=frozen_probability)
    for holes, start, goal in levels(env, 200):
        assert start != goal
        assert not holes & {start, goal}
        assert oracle.has_path(holes, start, goal, size)


def test_levels_are_distributed_as_by_rejection_sampling():
    ours = list(levels(ENV, 4000))
    rng = np.random.default_rng(0)
    theirs = [oracle.sample_level(rng, 4, 0.9) for _ in range(4000)]

    def features(level):
        holes, start, goal = level
        distance = abs(start[0] - goal[0]) + abs(start[1] - goal[1])
        corners = sum(tile in holes for tile in ((0, 0), (0, 3), (3, 0), (3, 3)))
        return len(holes), distance, corners, *start, *goal

    ours, theirs = (np.array([features(x) for x in xs]) for xs in (ours, theirs))
    error = np.sqrt((ours.var(0) + theirs.var(0)) / 4000)
    # 5 standard errors on each of 7 means: a false alarm once in 200,000 seeds.
    assert (abs(ours.mean(0) - theirs.mean(0)) < 5 * error).all()
    # 1.6 tiles are drawn as holes; 1.37 are left once start, goal and path are free.
    assert abs(ours[:, 0].mean() - 1.37) < 0.1


def test_picture_and_legend_share_their_symbols():
    env = envs.make("frozen_lake", symbols=["@", ".", "~", "*", "%", "!"])
    params = env.default_params
    state = place(5, holes=(2, 3), goal=15, start=0)
    assert env.render(state, params) == "..~~\n.@..\n....\n...*\n"
    assert env.render(place(2, holes=(2, 3), goal=15), params).startswith("..%~\n")
    assert env.render(place(15, holes=(2, 3), goal=15), params).endswith("...!\n")
    assert "@ you, . ice, ~ hole, * goal, % you in a hole, ! you on the goal" in (
        env.instruction
    )


def test_coordinates():
    env = envs.make("frozen_lake", observation="grid_coord")
    params = env.default_params
    assert env.render(place(5, holes=(2, 3), goal=15, start=4), params) == (
        "Coordinates:\n"
        "Board: 4 rows and 4 columns, counted from 0.\n"
        "Start: (1, 0)\n"
        "Goal: (3, 3)\n"
        "Player: (1, 1)\n"
        "Holes: (0, 2), (0, 3)\n"
        "Map:\n"
        "__OO\n_P__\n____\n___G\n"
    )
    env = envs.make("frozen_lake", observation="coord")
    assert env.render(place(15, goal=15), params) == (
        "Board: 4 rows and 4 columns, counted from 0.\n"
        "Start: (0, 0)\nGoal: (3, 3)\nPlayer on the goal: (3, 3)\n"
    )
    text = env.render(place(2, holes=(2, 3), goal=15), params)
    assert text.endswith("Player in a hole: (0, 2)\nHoles: (0, 2), (0, 3)\n")


def test_steps_from_the_player():
    env = envs.make("frozen_lake", observation="relative")
    params = env.default_params
    assert "Other places are given in steps from where you are." in env.instruction
    assert env.render(place(5, holes=(2, 3, 13), goal=15, start=4), params) == (
        "Board: 4 rows and 4 columns, counted from 0.\n"
        "Start: 1 left\n"
        "Goal: 2 down, 2 right\n"
        "Player: (1, 1)\n"
        "Holes: 1 up, 1 right; 1 up, 2 right; 2 down\n"
    )
    text = env.render(place(15, holes=(0,), goal=15, start=12), params)
    assert text.endswith(
        "Start: 3 left\nGoal: here\nPlayer on the goal: (3, 3)\nHoles: 3 up, 3 left\n"
    )
    text = env.render(place(2, holes=(2, 3), goal=15), params)
    assert text.endswith("Player in a hole: (0, 2)\nHoles: here; 1 right\n")


def test_coordinates_list_the_whole_board_wherever_the_player_is():
    env = envs.make("frozen_lake", observation="coord")
    rng = np.random.default_rng(0)
    for _ in range(6):
        holes, start, goal = oracle.sample_level(rng, 4, 0.8)
        tiles = [4 * row + col for row, col in (start, goal, *sorted(holes))]
        for position in (tiles[0], tiles[1], *tiles[2:4]):
            state = place(position, holes=tiles[2:], goal=tiles[1], start=tiles[0])
            at = divmod(position, 4)
            where = (
                " on the goal" if at == goal else " in a hole" if at in holes else ""
            )
            holes_line = f"Holes: {', '.join(map(str, sorted(holes)))}\n"
            assert env.render(state, env.default_params) == (
                "Board: 4 rows and 4 columns, counted from 0.\n"
                f"Start: {start}\nGoal: {goal}\nPlayer{where}: {at}\n"
                f"{holes_line if holes else ''}"
            )


def test_rows_of_a_group_slip_independently():
    shares = landings(place(5, goal=15), 2, 0.8, num_draws=64)
    # All 64 moves agree with probability 0.8^64 = 6e-7.
    assert (shares > 0).sum() > 1
