"""Levels of validation and levels of training: never the same, whatever their keys."""

import jax
import numpy as np
import pytest

import envs
from configs import frozen_lake, sokoban
from envs.base import SPLITS, TRAINING, VALIDATION
from envs.contract import checks as contract
from envs.contract.subject import Subject
from ragen_jax import rngs
from ragen_jax.rollout.keys import rollout_keys, validation_keys

TASKS = {"sokoban": sokoban, "frozen_lake": frozen_lake}


def reset_function(env, split):
    return jax.jit(
        lambda keys: jax.vmap(
            lambda key: env.reset_split(key, env.default_params, split)
        )(keys)
    )


def contents(env, states):
    boards = jax.vmap(lambda s: env.observe(None, s, None, None))(states)
    return [np.asarray(board).tobytes() for board in boards]


@pytest.mark.parametrize("name", TASKS)
def test_a_default_run_never_plays_a_validation_level(name):
    config = TASKS[name].get_config()
    env = envs.make(name)
    keys = validation_keys(config.evaluation.seed, config.evaluation.num_prompts)
    assert keys.split == VALIDATION
    held_out = contents(env, reset_function(env, keys.split)(keys.level))
    assert len(held_out) == 256
    reset, trained = reset_function(env, TRAINING), []
    for step in range(config.train.num_iterations):
        step_key = rngs.step_key(rngs.root_key(config.seed), step)
        keys = rollout_keys(step_key, config.rollout.num_groups, 1)
        assert keys.split == TRAINING
        trained += contents(env, reset(keys.level))
    assert len(trained) == 1280
    assert not set(held_out) & set(trained)
    # Drawn without a split, they have levels in common.
    any_level = jax.jit(jax.vmap(env.reset_env, (0, None)))
    many = jax.random.split(jax.random.key(5), 1024)
    drawn = contents(env, any_level(many, env.default_params)[1])
    assert set(drawn) & set(held_out)
    assert set(drawn) & set(trained)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("sokoban", {"rows": 5, "cols": 5}), ("frozen_lake", {})],
)
def test_a_quarter_of_the_levels_is_held_out(name, kwargs):
    env = envs.make(name, **kwargs)
    params = env.default_params
    assert env.holds_out_levels
    keys = jax.random.split(jax.random.key(0), 512)
    any_state = jax.jit(jax.vmap(env.reset_env, (0, None)))(keys, params)[1]
    any_level = contents(env, any_state)
    is_held_out = jax.vmap(env.is_held_out, (0, None))(any_state, params)
    assert 0.1 < np.mean(is_held_out) < 0.4
    for split in SPLITS:
        states = reset_function(env, split)(keys)
        belongs = jax.vmap(env.is_held_out, (0, None))(states, params)
        np.testing.assert_array_equal(belongs, split == VALIDATION)
        # A level that belongs to the split is the one that its key always made.
        same = np.asarray(is_held_out) == (split == VALIDATION)
        pairs = zip(contents(env, states), any_level, same, strict=True)
        assert all(level == first for level, first, is_same in pairs if is_same)


def test_a_level_does_not_depend_on_its_neighbours():
    env = envs.make("frozen_lake")
    keys = jax.random.split(jax.random.key(1), 64)
    reset = reset_function(env, VALIDATION)
    together, turned = contents(env, reset(keys)), contents(env, reset(keys[::-1]))
    assert together == turned[::-1]
    assert contents(env, reset(keys[:1])) == together[:1]


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("bandit", {}),
        ("frozen_lake", {"size": 2}),
        ("sokoban", {"rows": 3, "cols": 5}),
        ("sokoban", {"rows": 5, "cols": 5, "num_boxes": 3}),
    ],
)
def test_games_of_few_levels_say_that_they_hold_none_out(name, kwargs):
    env = envs.make(name, **kwargs)
    assert not env.holds_out_levels
    contract.few_levels_hold_none_out(Subject(env))


def test_a_game_that_draws_its_own_levels_overrides_what_rollouts_call():
    class Latecomer(type(envs.make("sokoban"))):
        def draw_level(self, key, params, is_held_out):
            return super().draw_level(key, params, is_held_out).replace(time=50)

    env = Latecomer()
    level = env.reset_split(jax.random.key(0), env.default_params, VALIDATION)
    assert level.time == 50
    with pytest.raises(TypeError, match=r"Silent overrides reset_split.*draw_level"):
        type("Silent", (Latecomer,), {"reset_split": lambda *_: None})
