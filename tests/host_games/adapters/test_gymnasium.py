"""Environments of Gymnasium play as games: what is shown, read, and when it ends."""

import sys

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_jax.host_games.adapters.common import spread_seed
from ragen_jax.host_games.adapters.gymnasium import GymnasiumGame, uncolor
from ragen_jax.host_games.base import SPLITS, Observation
from tests.host_games.adapters import gymnasium_environments
from tests.host_games.adapters.games import (
    CLIFF,
    COMPASS,
    GUESS,
    LAKE,
    MEANINGS,
    TAXI,
    THROUGH_THE_LAKE,
    TORUS,
)

# --- discrete actions


def test_the_lake_is_crossed():
    game = GymnasiumGame(**LAKE)
    shown = game.reset(0).text
    assert shown == "[red S]FFF\nFHFH\nFFFH\nHFFG"
    *before, last = [game.step(name) for name in THROUGH_THE_LAKE]
    assert not any(step.terminated or step.truncated for step in before)
    assert before[0].observation.text == "  (Down)\nSFFF\n[red F]HFH\nFFFH\nHFFG"
    assert [step.reward for step in before] == [0.0] * 5
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
    assert last.info == {"success": True, "valid": True}


def test_a_hole_is_no_success():
    game = GymnasiumGame(**LAKE)
    game.reset(0)
    game.step("down")
    step = game.step(" RIGHT\n")
    assert (step.terminated, step.info["success"]) == (True, False)
    game = GymnasiumGame(success="terminated", **LAKE)
    game.reset(0)
    game.step("down")
    assert game.step("right").info["success"]


def test_a_time_limit_truncates():
    kwargs = {**LAKE["make_kwargs"], "max_episode_steps": 3}
    game = GymnasiumGame(**(LAKE | {"make_kwargs": kwargs}), success="terminated")
    game.reset(0)
    steps = [game.step("left") for _ in range(3)]
    assert [step.truncated for step in steps] == [False, False, True]
    assert not any(step.terminated or step.info["success"] for step in steps)


@pytest.mark.parametrize("environment", [TAXI, CLIFF, "Blackjack-v1"])
def test_toy_texts_are_played_as_gymnasium_plays_them(environment):
    """Seeds, rewards and ends are those of the environment with the same actions."""
    game = GymnasiumGame("validation", id=environment)
    env = gymnasium.make(environment)
    num_actions = int(env.action_space.n)
    for seed in range(5):
        env.reset(seed=2 * seed + 1)
        game.reset(seed)
        for i in range(50):
            action = (seed + i * i) % num_actions
            _, reward, terminated, truncated, _ = env.step(action)
            step = game.step(str(action))
            assert (step.reward, step.terminated, step.truncated) == (
                reward,
                terminated,
                truncated,
            )
            assert step.info["success"] == (terminated and reward > 0)
            if terminated or truncated:
                break


def test_boards_without_text_are_numbers():
    game = GymnasiumGame(id="Blackjack-v1", action_names=("Stick", "Hit"))
    env = gymnasium.make("Blackjack-v1")
    for seed in range(20):
        seen, _ = env.reset(seed=2 * seed)
        assert game.reset(seed).text == " ".join(map(str, map(int, seen)))


def test_names_that_the_environment_has():
    game = GymnasiumGame(id=MEANINGS, success="terminated")
    assert game.instruction == (
        f"You are playing {MEANINGS}.\nReply with one action: STAY, GO."
    )
    assert game.reset(0) == Observation("7 0 1 3 2")
    assert game.step("5").info["valid"] is False
    assert not game.step("stay").terminated
    step = game.step("go")
    assert (step.reward, step.info["success"]) == (-1.0, True)


def test_numbers_where_there_are_no_names():
    game = GymnasiumGame(id=CLIFF, instruction="Walk to T.")
    assert game.instruction == "Walk to T.\nReply with one action: 0, 1, 2, 3."
    game.reset(0)
    assert game.step("1").reward == -100.0
    for reply in ("4", "-1", "01", "1.0", "\u0661"):
        assert game.step(reply).info["valid"] is False


# --- texts


def test_texts_pass_through():
    game = GymnasiumGame(id=GUESS, make_kwargs={"largest": 4})
    assert game.instruction == f"You are playing {GUESS}."
    for seed in range(30):
        assert game.reset(seed).text == "0 to 4"
        number = game._env.unwrapped.number
        wrong = game.step(str(number + 1))
        assert (wrong.observation.text, wrong.reward) == ("less", 0.0)
        right = game.step(str(number))
        assert (right.observation.text, right.reward) == ("right", 1.0)
        assert right.info == {"success": True, "valid": True}


def test_texts_outside_the_space_are_no_actions():
    game = GymnasiumGame(id=GUESS)
    game.reset(0)
    for reply in ("", "123", "a", " 1", "1\n", "\ud800", "☃"):
        step = game.step(reply)
        assert step.info["valid"] is False
        assert step.observation.text == "0 to 9"
    steps = [game.step("77") for _ in range(3)]
    assert [step.truncated for step in steps] == [False, False, True]


# --- colours


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("plain", "plain"),
        ("", ""),
        ("\x1b[41mS\x1b[0mFF", "[red S]FF"),
        ("F\x1b[34;1mR\x1b[0m\nF", "F[blue R]\nF"),
        ("\x1b[43m \x1b[0m", "[yellow  ]"),
        ("\x1b[97mx\x1b[m", "[white x]"),
        ("\x1b[38mx\x1b[0m", "[crimson x]"),
        ("\x1b[31ma\x1b[32mb", "[red a][green b]"),
        ("\x1b[31m\x1b[0mx", "x"),
        ("\x1b[1mbold\x1b[0m", "bold"),
        ("\x1b[2J\x1b[Hx\x1b[?25l", "x"),
        ("\x1b[0;31mx\x1b[0m", "[red x]"),
        ("\x1b[31;0mx", "x"),
    ],
)
def test_colours_are_named(text, plain):
    assert uncolor(text) == plain


@given(st.text(alphabet="a\n[]", max_size=20), st.sampled_from(("red", "blue")))
def test_what_gymnasium_colours(text, color):
    from gymnasium.utils import colorize

    marked = f"[{color} {text}]" if text else ""
    for options in ({}, {"bold": True}, {"highlight": True}):
        coloured = colorize(text, color, **options)
        assert uncolor(f"x{coloured}y") == f"x{marked}y"


# --- described by a function of the user's


DESCRIBE = f"{gymnasium_environments.__name__}:describe"


def test_a_function_describes_what_has_no_text():
    game = GymnasiumGame(
        id=COMPASS, describe=f"{DESCRIBE}_compass", action_names=["Right", "Left"]
    )
    assert game.reset(1).text == "look west: north (0, -1)"
    assert game.step("up").observation.text == "look west: north (0, -1)"
    assert game.step("right").observation.text == "look west: east (1, 0)"
    game.step("right")
    step = game.step("right")
    assert step.observation.text == "look west: west (-1, 0)"
    assert (step.reward, step.terminated, step.info["success"]) == (1.0, True, True)


def test_a_function_describes_what_has_a_text_too():
    plain = GymnasiumGame(id=GUESS)
    game = GymnasiumGame(id=GUESS, describe="builtins:repr")
    assert game.reset(0).text == repr(plain.reset(0).text) == "'0 to 9'"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("badly", r"describe_badly', which raises KeyError: 'image' at the observ.*"),
        ("nothing", r"describe_nothing', which returns None for the observation"),
    ],
)
def test_a_function_that_does_not_describe_is_named(function, says):
    game = GymnasiumGame(id=COMPASS, describe=f"{DESCRIBE}_{function}")
    with pytest.raises(ValueError, match=rf"{says}.*'mission'.*to return a text"):
        game.reset(0)


def test_images_are_shown_in_place_of_text_or_beside_it():
    pixels = np.full((4, 6, 3), 9, np.uint8)
    game = GymnasiumGame(id=MEANINGS, images=True)
    for shown in (game.reset(0), game.step("stay").observation):
        assert shown.text == ""
        (image,) = shown.images
        np.testing.assert_array_equal(image, pixels)
    game = GymnasiumGame(id=MEANINGS, images=True, describe="builtins:repr")
    shown = game.reset(0)
    assert shown.text.startswith("(7, array(")
    assert len(shown.images) == 1
    with pytest.raises(ValueError, match="images"):
        GymnasiumGame(id=MEANINGS, images="no")
    with pytest.raises(ValueError, match=r"no render mode 'rgb_array'; it has 'ansi'"):
        GymnasiumGame(id=GUESS, images=True)


@pytest.mark.parametrize(
    ("describe", "says"),
    [
        ("describe_compass", "use package.module:function"),
        ("no_such_module:f", "there is no module no_such_module"),
        (f"{DESCRIBE}_mountains", "has no function describe_mountains"),
        ("string:digits", "string has no function digits"),
    ],
)
def test_functions_that_are_not_there(describe, says):
    with pytest.raises(ValueError, match=says):
        GymnasiumGame(id=COMPASS, describe=describe)


# --- our own games


OWN = "envs.as_gymnasium:ragen_jax"


@pytest.mark.parametrize("split", SPLITS)
def test_our_games_come_back_as_they_went(split):
    """The array game, through Gymnasium, as a host game."""
    reset_options = {"validation": {"split": "validation"}}
    game = GymnasiumGame(split, id=f"{OWN}/Sokoban-v0", reset_options=reset_options)
    assert game.instruction.endswith("one action: Up, Down, Left, Right.")
    env = gymnasium.make(f"{OWN}/Sokoban-v0")
    for seed in range(10):
        number = spread_seed(split, seed)
        text, _ = env.reset(seed=number, options={"split": split})
        assert game.reset(seed).text == text
        for action, name in enumerate(["up", "DOWN", "Left", "right"]):
            text, reward, terminated, truncated, _ = env.step(action)
            step = game.step(name)
            assert step.observation.text == text
            assert (step.reward, step.terminated, step.truncated) == (
                reward,
                terminated,
                truncated,
            )
            if terminated or truncated:
                break


def test_our_games_of_texts_come_back():
    game = GymnasiumGame(id=f"{OWN}/Bandit-v0")
    shown = game.reset(0).text
    assert game.step("no arm").observation.text == shown
    names = game._env.unwrapped.game.action_vocabulary
    arms = [name for name in names if name in shown]
    assert game.step(arms[0].lower()).terminated


# --- options


def test_splits_begin_otherwise():
    """Where a seed chooses the problem; hands of Blackjack are few."""
    shown = {}
    for split in SPLITS:
        game = GymnasiumGame(split, id=TAXI)
        shown[split] = [game.reset(seed).text for seed in range(20)]
    assert shown["training"] != shown["validation"]


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install .*\[gymnasium\]"):
        GymnasiumGame(id="FrozenLake-v1")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({**LAKE, "split": "test"}, "use training or validation"),
        ({**LAKE, "success": "goal"}, "use reward or terminated"),
        ({"id": "NoLake-v0"}, "pprint_registry"),
        ({"id": "Taxi-v0"}, "pprint_registry"),
        ({"id": "CartPole-v1"}, "shows Box.*Text, Discrete, MultiDiscrete.*describe"),
        ({"id": TORUS}, "takes Box.*Discrete or Text"),
        ({"id": GUESS, "action_names": ["a"]}, "leave it out"),
        ({**LAKE, "action_names": ["Left"]}, "has 4 actions"),
        ({**LAKE, "action_names": "LDRU"}, "use a list"),
        ({**LAKE, "action_names": ["a", "b", "c", "A"]}, "two actions have the name"),
        ({**LAKE, "action_names": ["a", "b", "c", " d"]}, "without blanks"),
        ({**LAKE, "action_names": ["a", "b", "c", 4]}, "use a text"),
        ({**LAKE, "make_kwargs": {"render_mode": "human"}}, "without render_mode"),
        ({**LAKE, "make_kwargs": "slippery"}, "use a mapping"),
        ({**LAKE, "reset_options": {"split": "validation"}}, "use a mapping from"),
        ({**LAKE, "reset_options": {"test": {}}}, "use a mapping from"),
        ({**LAKE, "reset_options": "validation"}, "use a mapping from"),
    ],
)
def test_bad_options_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        GymnasiumGame(**options)


def test_the_environment_is_closed(monkeypatch):
    game = GymnasiumGame(id=GUESS)
    closed = []
    monkeypatch.setattr(game._env.unwrapped, "close", lambda: closed.append(1))
    game.close()
    assert closed == [1]
