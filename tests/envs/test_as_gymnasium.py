"""The games as Gymnasium environments play like the array games."""

import subprocess
import sys
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs.as_gymnasium import ACTIONS, GYMNASIUM_IDS, register_with_gymnasium
from envs.base import SPLITS

NUM_SEEDS = 6
# Small and quick variants besides the defaults.
VARIANTS = {
    "ragen_jax/Sokoban-v0": {"observation": "grid_coord", "num_boxes": 2},
    "ragen_jax/FrozenLake-v0": {"observation": "relative"},
    "ragen_jax/Countdown-v0": {"num_numbers": 4},
}
CASES = [(name, {}) for name in GYMNASIUM_IDS] + list(VARIANTS.items())
# The others take seconds each to compile.
QUICK = ("ragen_jax/Bandit-v0", "ragen_jax/FrozenLake-v0")
QUICK_IDS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in GYMNASIUM_IDS
]
QUICK_CASES = [
    pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.slow)
    for case in CASES
]


def compiled(game):
    return (
        jax.jit(game.reset_split, static_argnums=2),
        jax.jit(game.step_env),
        jax.jit(game.text_fields),
    )


def test_every_game_is_registered():
    assert set(GYMNASIUM_IDS.values()) == set(envs.ENVIRONMENTS)
    assert set(GYMNASIUM_IDS) <= set(gymnasium.registry)
    spec = gymnasium.registry["ragen_jax/Sokoban-v0"]
    register_with_gymnasium()
    assert gymnasium.registry["ragen_jax/Sokoban-v0"] is spec


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("name", QUICK_IDS)
def test_gymnasiums_checker_finds_nothing(name, actions):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(name, actions=actions, disable_env_checker=True)
        check_env(env.unwrapped)


@pytest.mark.parametrize(("name", "kwargs"), QUICK_CASES)
def test_play_is_that_of_the_array_game(name, kwargs):
    env = gymnasium.make(name, actions="index", **kwargs)
    game = envs.make(GYMNASIUM_IDS[name], **kwargs)
    params, (reset, step_env, text_fields) = game.default_params, compiled(game)
    draw = np.random.default_rng(0)
    for seed in range(NUM_SEEDS):
        split = SPLITS[seed % 2]
        level_key, noise_key = jax.random.split(jax.random.key(seed))
        state = reset(level_key, params, split)
        text, info = env.reset(seed=seed, options={"split": split})
        assert text == game.template.render(jax.device_get(text_fields(state, params)))
        assert info == {"success": False, "effective": False, "valid": True}
        for i in range(20):
            action = int(draw.integers(game.num_actions))
            key = jax.random.fold_in(noise_key, i)
            _, state, reward, terminated, expected = step_env(
                key, state, action, params
            )
            text, paid, is_terminated, is_truncated, info = env.step(action)
            fields = jax.device_get(text_fields(state, params))
            assert text == game.template.render(fields)
            assert text in env.observation_space
            assert paid == float(reward)
            assert info == {**{n: bool(v) for n, v in expected.items()}, "valid": True}
            is_over = bool(game.is_finished(state, params))
            assert (is_terminated or is_truncated) == is_over
            if params.max_steps_in_episode > 1:
                assert is_terminated == bool(terminated)
                assert is_truncated == bool(game.is_truncated(state, params))
            if is_over:
                break


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_texts_and_numbers_are_the_same_actions(name, kwargs):
    by_number = gymnasium.make(name, actions="index", **kwargs)
    by_text = gymnasium.make(name, actions="text", **kwargs)
    game = by_text.unwrapped.game
    for seed in range(NUM_SEEDS):
        start = by_number.reset(seed=seed)
        assert by_text.reset(seed=seed) == start
        action = 5 * seed % game.num_actions
        state = by_text.unwrapped._state
        text = game.action_text(action, state, game.default_params)
        assert text in by_text.action_space
        before = by_text.step("no such action")
        assert before[:4] == (start[0], 0.0, False, False)
        assert before[4]["valid"] is False
        assert by_text.step(f" {text.upper()}\n") == by_number.step(action)


def test_answers_that_are_too_long_or_empty_are_not_actions():
    for name in ("ragen_jax/Countdown-v0", "ragen_jax/Sokoban-v0"):
        env = gymnasium.make(name, actions="text", disable_env_checker=True)
        env.reset(seed=0)
        for answer in ("", "  ", "1" * 64, "☃" * 500, "\x00", "\ud800"):
            assert env.step(answer)[4]["valid"] is False


def test_games_whose_names_change_take_texts():
    spaces = {
        name: type(gymnasium.make(name).action_space).__name__ for name in GYMNASIUM_IDS
    }
    assert {name for name, space in spaces.items() if space == "Text"} == {
        "ragen_jax/Bandit-v0",
        "ragen_jax/Countdown-v0",
        "ragen_jax/Sudoku-v0",
    }


def test_names_of_actions():
    def meanings(name, **kwargs):
        return gymnasium.make(name, **kwargs).unwrapped.get_action_meanings()

    assert meanings("ragen_jax/Sokoban-v0") == ["Up", "Down", "Left", "Right"]
    assert meanings("ragen_jax/Bandit-v0", actions="index") == ["0", "1"]


def test_validation_levels_are_held_out():
    env = gymnasium.make("ragen_jax/Sokoban-v0").unwrapped
    for seed in range(10):
        for split in SPLITS:
            env.reset(seed=seed, options={"split": split})
            is_held_out = bool(env.game.is_held_out(env._state, env._params))
            assert is_held_out == (split == "validation")


def test_resets_without_a_seed_continue_the_stream():
    first, second = (gymnasium.make("ragen_jax/Sokoban-v0") for _ in range(2))
    levels = []
    for env in (first, second):
        env.reset(seed=1)
        levels.append([env.reset()[0] for _ in range(5)])
    assert levels[0] == levels[1]
    assert len(set(levels[0])) > 1


def test_seeds_may_be_large():
    env = gymnasium.make("ragen_jax/Cube2x2-v0")
    texts = [env.reset(seed=seed)[0] for seed in (2**31 - 1, 2**31, 2**32 - 1)]
    assert len(set(texts)) > 1
    with pytest.raises(ValueError, match="below"):
        env.reset(seed=2**32)


def test_params_change_rewards_and_limits():
    params = {"step_reward": -0.5, "max_steps_in_episode": 2}
    env = gymnasium.make("ragen_jax/Sokoban-v0", params=params)
    env.reset(seed=0)
    first, second = env.step(0), env.step(1)
    assert (first[1], second[1]) == (-0.5, -0.5)
    assert (first[3], second[3]) == (False, True)
    with pytest.raises(ValueError, match="has max_steps_in_episode"):
        gymnasium.make("ragen_jax/Sokoban-v0", params={"reward": 1})


def test_render_is_the_picture_of_the_board():
    env = gymnasium.make("ragen_jax/Sokoban-v0", render_mode="rgb_array")
    env.reset(seed=1)
    game = env.unwrapped
    for action in (0, 1):
        env.step(action)
        expected = game.game.pixels(game._state, game._params, 32)
        np.testing.assert_array_equal(env.render(), expected)
    assert env.render().shape == (192, 192, 3)
    with pytest.raises(ValueError, match="use ansi, or None"):
        gymnasium.make("ragen_jax/Bandit-v0", render_mode="rgb_array")


def test_render_is_the_observation():
    env = gymnasium.make("ragen_jax/Sokoban-v0", render_mode="ansi")
    text, _ = env.reset(seed=0)
    assert env.render() == text
    text = env.step(1)[0]
    assert env.render() == text


def test_programs_are_compiled_once():
    first, second = (
        gymnasium.make("ragen_jax/Sokoban-v0", symbols=list("#_OVXPS")).unwrapped
        for _ in range(2)
    )
    assert first.game is second.game
    other = gymnasium.make("ragen_jax/Sokoban-v0", rows=7).unwrapped
    assert other.game is not first.game


def test_batches_of_gymnasium():
    batch = gymnasium.make_vec("ragen_jax/FrozenLake-v0", num_envs=3)
    texts, _ = batch.reset(seed=4)
    alone = gymnasium.make("ragen_jax/FrozenLake-v0")
    assert list(texts) == [alone.reset(seed=4 + i)[0] for i in range(3)]
    _, rewards, *_ = batch.step(jnp.zeros(3, int).tolist())
    assert rewards.shape == (3,)
    batch.close()


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"actions": "names"}, "use index or text"),
        ({"render_mode": "human"}, "use ansi or rgb_array, or None"),
        ({"size": 4}, "takes no argument 'size'"),
        ({"rows": 1}, "rows"),
        ({"params": {"step_reward": "one"}}, "step_reward = 'one'; it must be a num"),
        ({"params": {"max_steps_in_episode": 0}}, "params: max_steps_in_episode"),
    ],
)
def test_bad_arguments_are_refused(kwargs, says):
    make = envs.as_gymnasium.GymnasiumText
    with pytest.raises(ValueError, match=says):
        make("sokoban", **kwargs)


@pytest.mark.parametrize(
    "options", [{"split": "test"}, {"level": 3}, {"split": "training", "level": 3}]
)
def test_bad_options_are_refused(options):
    env = gymnasium.make("ragen_jax/Sokoban-v0")
    with pytest.raises(ValueError, match="training, validation"):
        env.reset(seed=0, options=options)


@pytest.mark.parametrize("action", [-1, 4, "Up", 1.0, None])
def test_numbers_of_no_action_are_refused(action):
    env = gymnasium.make("ragen_jax/Sokoban-v0", disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="from 0 to 3"):
        env.step(action)


@pytest.mark.slow
def test_the_games_alone_do_not_import_gymnasiums():
    command = "import sys, envs; sys.exit('envs.as_gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
