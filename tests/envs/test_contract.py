"""What every environment of the table promises (see `TextEnvironment`)."""

import functools

import chex
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import FEWEST_LEVELS, PlayBudget
from envs.templates import Cells, Choice, Grid, Number
from tests.envs import example

CASES = {name: (name, {}) for name in envs.ENVIRONMENTS} | {
    "walk": ("walk", {}),
    "bandit_test_reversed": ("bandit", {"split": "test", "reverse": True}),
    "frozen_lake_3": (
        "frozen_lake",
        {"size": 3, "observation": "grid_coord", "symbols": tuple("@.~*%!")},
    ),
    "sokoban_5x6": (
        "sokoban",
        {"rows": 5, "observation": "grid_coord", "symbols": tuple("W.GCBA@")},
    ),
}
NUM_ROWS = 64
NUM_STEPS = 10
BUDGET = PlayBudget(max_turns=3, max_actions_per_turn=2, max_actions_per_episode=6)

every_case = pytest.mark.parametrize("case", CASES)


@functools.cache
def build(case):
    name, kwargs = CASES[case]
    env = example.walk()() if name == "walk" else envs.make(name, **kwargs)
    # A short time limit, so that random play sees it.
    limit = min(7, env.default_params.max_steps_in_episode)
    return env, env.default_params.replace(max_steps_in_episode=limit)


@functools.cache
def reset_function(case):
    env, _ = build(case)
    return jax.jit(jax.vmap(env.reset_env, in_axes=(0, None)))


@functools.cache
def step_function(case):
    env, _ = build(case)
    # chex counts by the function's name, which all environments share.
    chex.clear_trace_counter()
    step = chex.assert_max_traces(env.step_env, n=1)
    return jax.jit(jax.vmap(step, in_axes=(0, 0, 0, None)))


def reset(case, seed=0):
    keys = jax.random.split(jax.random.key(seed), NUM_ROWS)
    return reset_function(case)(keys, build(case)[1])


@functools.cache
def random_play(case):
    """[(states, outcome of `step_env`)], more steps than any episode has."""
    env, params = build(case)
    _, states = reset(case)
    history = []
    for i in range(NUM_STEPS):
        noise_key, action_key = jax.random.split(
            jax.random.fold_in(jax.random.key(1), i)
        )
        actions = jax.random.randint(action_key, (NUM_ROWS,), 0, env.num_actions)
        keys = jax.random.split(noise_key, NUM_ROWS)
        outcome = step_function(case)(keys, states, actions, params)
        history.append((states, outcome))
        states = outcome[1]
    return history


def fact(case, name, states):
    """One of the environment's predicates, per row."""
    env, params = build(case)
    return np.asarray(jax.vmap(getattr(env, name), in_axes=(0, None))(states, params))


def rows(tree):
    """One pytree of NumPy arrays per row."""
    leaves, structure = jax.tree.flatten(jax.device_get(tree))
    return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]


def test_every_entry_is_covered():
    names = {name for name, _ in CASES.values()}
    assert names == set(envs.ENVIRONMENTS) | {"walk"}
    assert set(envs.GYMNAX_IDS.values()) == set(envs.ENVIRONMENTS.values())


@every_case
def test_the_same_key_gives_the_same_level(case):
    chex.assert_trees_all_equal(reset(case, seed=5), reset(case, seed=5))
    _, states = reset(case, seed=5)
    levels = {
        tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(s)) for s in rows(states)
    }
    # The walk has one level.
    assert len(levels) > (0 if case == "walk" else 10)


@every_case
def test_games_of_few_levels_hold_none_out(case):
    env, _ = build(case)
    boards = [np.asarray(reset(case, seed)[0]) for seed in range(16)]
    num_levels = len({board.tobytes() for board in np.concatenate(boards)})
    assert env.holds_out_levels == (num_levels >= FEWEST_LEVELS)


@every_case
def test_rows_do_not_depend_on_their_neighbours(case):
    _, params = build(case)
    keys = jax.random.split(jax.random.key(5), NUM_ROWS)
    among_others = reset_function(case)(keys[::-1], params)[1]
    chex.assert_trees_all_equal(rows(among_others)[::-1], rows(reset(case, seed=5)[1]))


@every_case
def test_steps_trace_once_and_return_five_values(case):
    _, params = build(case)
    for states, (obs, after, reward, terminated, info) in random_play(case):
        chex.assert_trees_all_equal_shapes_and_dtypes(states, after)
        chex.assert_trees_all_equal_shapes_and_dtypes(obs, reset(case)[0])
        chex.assert_shape([reward, terminated, *info.values()], (NUM_ROWS,))
        assert reward.dtype == jnp.float32
        assert terminated.dtype == jnp.bool_
        assert set(info) == {"success", "effective"}
        assert all(value.dtype == jnp.bool_ for value in info.values())
        assert np.isfinite(reward).all()
        assert after.time.dtype == jnp.int32
    assert params.max_steps_in_episode < NUM_STEPS


@every_case
def test_terminated_truncated_and_success_are_separate_facts(case):
    _, params = build(case)
    for _, (_, after, _, terminated, info) in random_play(case):
        np.testing.assert_array_equal(terminated, fact(case, "is_terminated", after))
        np.testing.assert_array_equal(info["success"], fact(case, "is_success", after))
        np.testing.assert_array_equal(
            fact(case, "is_truncated", after),
            np.asarray(after.time) >= params.max_steps_in_episode,
        )
        assert (np.asarray(terminated) | ~np.asarray(info["success"])).all()


@every_case
def test_a_finished_state_is_frozen(case):
    num_finished = 0
    for states, (_, after, reward, _, info) in random_play(case):
        finished = fact(case, "is_terminated", states) | fact(
            case, "is_truncated", states
        )
        num_finished += finished.sum()
        for row, (before, now) in enumerate(
            zip(rows(states), rows(after), strict=True)
        ):
            if finished[row]:
                chex.assert_trees_all_equal(before, now)
            else:
                assert now.time == before.time + 1
        assert not np.asarray(reward)[finished].any()
        assert not np.asarray(info["effective"])[finished].any()
    assert num_finished >= NUM_ROWS


@every_case
def test_an_ineffective_action_moves_only_the_clock(case):
    for states, (_, after, _, _, info) in random_play(case):
        resting = ~np.asarray(info["effective"])
        for row, (before, now) in enumerate(
            zip(rows(states), rows(after), strict=True)
        ):
            same_clock = now.replace(time=before.time)
            changed = any(
                (a != b).any()
                for a, b in zip(
                    *(
                        map(np.atleast_1d, jax.tree.leaves(s))
                        for s in (before, same_clock)
                    ),
                    strict=True,
                )
            )
            assert changed != resting[row]


@every_case
def test_levels_are_solvable_and_unsolved(case):
    env, params = build(case)
    params = params.replace(
        max_steps_in_episode=env.default_params.max_steps_in_episode
    )
    _, states = reset(case)
    assert not fact(case, "is_success", states).any()
    assert not fact(case, "is_terminated", states).any()
    solution = env.solve(states, params, budget=BUDGET, discount=0.99)
    chex.assert_shape(solution.action_values, (NUM_ROWS, env.num_actions))
    chex.assert_shape([solution.value, solution.best_success], (NUM_ROWS,))
    np.testing.assert_array_equal(solution.value, solution.action_values.max(1))
    assert np.isfinite(solution.value).all()
    assert (np.asarray(solution.value) > 0).all()
    best_success = np.asarray(solution.best_success)
    assert ((best_success >= 0) & (best_success <= 1)).all()
    assert best_success.max() > 0


@every_case
def test_text_fields_fit_the_template(case):
    env, params = build(case)
    states = [s for s, _ in random_play(case)]
    fields = jax.jit(jax.vmap(env.text_fields, in_axes=(0, None)))
    for values in (jax.device_get(fields(s, params)) for s in states):
        assert set(values) == set(env.template.fields)
        for part in env.template.parts:
            if isinstance(part, str):
                continue
            value = values[part.name]
            assert np.issubdtype(value.dtype, np.integer) or value.dtype == np.bool_
            if isinstance(part, Choice):
                assert value.shape == (NUM_ROWS,)
                assert ((value >= 0) & (value < len(part.options))).all()
            elif isinstance(part, Number):
                assert value.shape == (NUM_ROWS,)
                assert ((value >= part.minimum) & (value <= part.maximum)).all()
            elif isinstance(part, Grid):
                assert value.shape == (NUM_ROWS, part.rows, part.cols)
                assert ((value >= 0) & (value < len(part.symbols))).all()
            elif isinstance(part, Cells):
                assert value.shape == (NUM_ROWS, part.rows, part.cols)
                assert ((value != 0).sum((1, 2)) <= part.max_cells).all()


@every_case
def test_the_legend_explains_the_picture(case):
    env, params = build(case)
    assert env.instruction
    assert not env.instruction.endswith("\n")
    words = env.instruction.replace(",", " ").replace(":", " ").split()
    for part in env.template.parts:
        if isinstance(part, Grid):
            assert all(symbol in words for symbol in part.symbols)
            _, states = reset(case)
            text = env.render(rows(states)[0], params)
            picture = text.rstrip("\n").split("\n")[-part.rows :]
            assert all(len(row) == part.cols for row in picture)
            assert set("".join(picture)) <= set(part.symbols)


@every_case
def test_rendered_text_is_whole_lines_and_shows_the_state(case):
    env, params = build(case)
    texts = [env.render(state, params) for state in rows(reset(case)[1])[:16]]
    assert all(text.endswith("\n") and "\n\n" not in text for text in texts)
    assert len(set(texts)) > (0 if case == "walk" else 4)


@every_case
def test_action_names_are_distinct_words_of_the_vocabulary(case):
    env, params = build(case)
    names = jax.vmap(env.action_names, in_axes=(0, None))(reset(case)[1], params)
    chex.assert_shape(names, (NUM_ROWS, env.num_actions))
    vocabulary = [name.strip().lower() for name in env.action_vocabulary]
    assert len(set(vocabulary)) == len(vocabulary)
    assert all(vocabulary)
    for row in np.asarray(names):
        assert len({env.action_vocabulary[i] for i in row}) == env.num_actions
        assert (row >= 0).all()


@every_case
def test_spaces_contain_what_the_environment_gives(case):
    env, params = build(case)
    space = env.observation_space(params)
    for _, (obs, *_) in random_play(case):
        assert obs.dtype == space.dtype
        assert obs.shape == (NUM_ROWS, *space.shape)
        assert all(bool(space.contains(o)) for o in obs[:8])
    assert env.action_space(params).n == env.num_actions


@pytest.mark.parametrize("env_id", envs.GYMNAX_IDS)
def test_gymnax_users_can_play(env_id):
    env, params = gymnax.make(env_id)
    assert type(env) is envs.GYMNAX_IDS[env_id]
    obs, state = env.reset(jax.random.key(0), params)
    for i in range(3):
        key = jax.random.key(i)
        action = env.action_space(params).sample(key)
        obs, state, reward, terminated, truncated, info = env.step(
            key, state, action, params
        )
        assert bool(env.observation_space(params).contains(obs))
        assert np.isfinite(reward)
        assert set(info) > {"success", "effective", "final_observation"}
        if terminated or truncated:
            assert int(state.time) == 0


def test_registration_leaves_present_ids_alone():
    before = list(gymnax.registered_envs)
    envs.register_with_gymnax()
    assert gymnax.registered_envs == before
    assert all(before.count(env_id) == 1 for env_id in envs.GYMNAX_IDS)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("frozenlake", {}, "did you mean 'frozen_lake'.*choose one of bandit, frozen"),
        ("chess", {}, "no environment 'chess'; choose one of bandit"),
        ("bandit", {"slit": "test"}, "'slit' .did you mean 'split'.*split, reverse"),
        ("bandit", {"split": "validation"}, "choose one of train, test"),
        ("bandit", {"reverse": 1}, "reverse=1 must be True or False"),
        ("frozen_lake", {"self": 1}, "takes no argument 'self'"),
        ("frozen_lake", {"size": 1}, "size=1 must be a whole number .* at least 2"),
        ("frozen_lake", {"size": 4.0}, "size=4.0 must be a whole number"),
        ("frozen_lake", {"frozen_probability": 90}, "must lie between 0 and 1"),
        ("frozen_lake", {"observation": "image"}, "one of grid, coord, grid_coord"),
        ("frozen_lake", {"symbols": "PPOGX√"}, "6 different characters"),
        ("frozen_lake", {"symbols": "P_O"}, "6 different characters"),
        ("frozen_lake", {"symbols": "P OGX√"}, "one visible character"),
        ("frozen_lake", {"symbols": ("P", "__", *"OGX√")}, "one visible character"),
        ("sokoban", {"rows": 2}, "2 rows x 6 cols has no room"),
        ("sokoban", {"num_boxes": 0}, "num_boxes=0"),
        ("sokoban", {"observation": "image"}, "one of grid, coord, grid_coord"),
        ("sokoban", {"symbols": "#_O"}, "7"),
        ("sokoban", {"size": 6}, "takes no argument 'size'.*rows, cols"),
    ],
)
def test_bad_arguments_are_explained(name, kwargs, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **kwargs)
