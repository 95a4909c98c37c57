"""Environments written for RAGEN play as they are."""

import pytest

from ragen_jax.host_games.adapters import ragen
from ragen_jax.host_games.adapters.common import spread_seed
from ragen_jax.host_games.adapters.ragen import RagenGame
from ragen_jax.host_games.wrappers import wrap
from tests.host_games.adapters.games import LINE, RAGENS, SUM
from tests.host_games.adapters.ragen_environments import LineConfig, LineEnv, SumEnv


def inside(game):
    return game._env


def play_line(text):
    step = "Right" if text.index("F") > text.index("P") else "Left"
    return [step] * abs(text.index("F") - text.index("P"))


# --- discrete actions


def test_names_are_looked_up():
    game = RagenGame(**LINE)
    for seed in range(50):
        replies = play_line(game.reset(seed).text)
        *before, last = [game.step(f" {reply.upper()}\n") for reply in replies]
        assert [step.reward for step in before] == [-0.1] * len(before)
        assert not any(step.terminated for step in before)
        assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
        assert last.info == {"success": True, "valid": True}


def test_what_is_shown_is_rendered():
    game = RagenGame(**LINE)
    shown = game.reset(0).text
    assert sorted(shown) == sorted("P__F_")
    other = LineEnv(LineConfig())
    other.reset(seed=spread_seed("training", 0))
    assert shown == other.render()
    other.step(1)
    assert game.step("left").observation.text == other.render()


def test_done_without_success_is_no_success():
    game = RagenGame(**LINE, config_kwargs={"length": 99, "max_steps": 2})
    game.reset(0)
    first, second = game.step("left"), game.step("left")
    assert not first.terminated
    assert second.terminated
    assert second.info["success"] is False


def test_an_answer_with_several_actions_is_split():
    game = wrap(RagenGame(**LINE), [("split", 3), ("penalize", -0.1)])
    shown = game.reset(1).text
    replies = play_line(shown)
    assert len(replies) == 3
    step = game.step(" || ".join(replies))
    assert step.info["success"]
    assert step.reward == pytest.approx(1 - 0.1 * 2)
    game.reset(1)
    # An unknown action is skipped, the others are played, as RAGEN's manager does.
    step = game.step(f"{replies[0]} || jump || {replies[0]}")
    assert step.reward == pytest.approx(-0.3)
    assert inside(game.game.game.game).num_steps == 2


def test_names_may_change_with_the_episode():
    game = RagenGame(env=f"{RAGENS}:NamesEnv", instruction="Choose.")
    assert game.instruction == "Choose."
    assert game.reset(0).text == "Fox or Owl"
    assert game.step("elm").info["valid"] is False
    step = game.step("owl")
    # Its `info` is empty.
    assert (step.reward, step.info) == (1.0, {"success": False, "valid": True})
    assert game.reset(1).text == "Elm or Oak"
    assert game.step("owl").info["valid"] is False
    assert game.step("elm").terminated


# --- language actions


def test_texts_are_given_to_the_environment():
    game = RagenGame(**SUM)
    for seed in range(50):
        first, second = map(int, game.reset(seed).text.split("+"))
        wrong = game.step(f"{first + second + 1}")
        assert wrong.observation.text == "Wrong"
        odd = game.step("seven")
        assert odd.observation.text == "'seven' is no number"
        assert odd.info == {"success": False, "valid": False}
        right = game.step(f" {first + second}\n")
        assert (right.reward, right.terminated) == (1.0, True)
        assert right.info == {"success": True, "valid": True}


def test_empty_replies_are_no_actions():
    game = RagenGame(**SUM)
    game.reset(0)
    assert game.step(" \n").info["valid"] is False
    assert inside(game).attempts == 0


def test_what_is_observed_is_shown_where_nothing_is_rendered():
    """As in RAGEN's `StaticEnv`, whose `reset` knows no modes either."""
    game = RagenGame(env=f"{RAGENS}:QuestionEnv")
    question = game.reset(0).text
    assert question == "What is 1 + 1?"
    odd = game.step("two")
    assert odd.observation.text == "Incorrect."
    assert odd.info == {"success": False, "valid": False}
    right = game.step("2")
    assert (right.observation.text, right.reward) == ("Correct!", 0.5)
    assert right.info == {"success": True, "valid": True}


def test_a_pair_of_what_is_observed_and_info_is_read():
    game = RagenGame(env=f"{RAGENS}:QuestionEnv")
    plain = inside(game).reset
    inside(game).reset = lambda seed: (plain(seed), {})
    assert game.reset(0).text == "What is 1 + 1?"


# --- options


def test_configurations_are_built():
    game = RagenGame(**LINE, config_kwargs={"length": 20})
    assert len(game.reset(0).text) == 20
    assert len(RagenGame(env=LINE["env"]).reset(0).text) == 5
    config = {"env": f"{RAGENS}:SumEnv", "config": f"{RAGENS}:SumConfig"}
    assert RagenGame(**config, config_kwargs={"largest": 1}).reset(0).text == "1+1"


def test_maps_from_json_have_numbers_as_keys():
    """As the configuration of RAGEN's Sokoban has them beside its lookups."""
    assert ragen._configure("builtins:dict", {"action_map": {"1": 4, "2": 3}}) == (
        {"action_map": {1: 4, 2: 3}},
    )


def test_lookups_from_json_have_numbers_as_keys():
    lookup = {"1": "West", "2": "East"}
    game = RagenGame(**LINE, config_kwargs={"action_lookup": lookup})
    assert game.instruction.endswith("West, East.")
    game.reset(0)
    assert game.step("east").info["valid"]
    with pytest.raises(ValueError, match="whole numbers as keys"):
        RagenGame(**LINE, config_kwargs={"action_lookup": {"W": "West"}})


def test_the_instruction_has_the_names():
    assert RagenGame(**LINE, instruction="Go to F.").instruction == (
        "Go to F.\nReply with one action: Left, Right."
    )
    assert RagenGame(**SUM).instruction == "You are playing SumEnv."


def test_splits_have_their_own_seeds_and_modes():
    seeds = {}
    for split, mode in (("training", "train"), ("validation", "val")):
        game = RagenGame(split, **LINE)
        for seed in (*range(100), 2**30 - 1, 2**30, 2**31 - 1):
            game.reset(seed)
        called, modes = zip(*inside(game).calls, strict=True)
        assert set(modes) == {mode}
        assert 0 <= min(called) <= max(called) < 2**31
        assert len(set(called[:100])) == 100
        seeds[split] = set(called)
    assert not seeds["training"] & seeds["validation"]


def test_the_environment_is_closed():
    game = RagenGame(**LINE)
    game.close()
    assert inside(game).calls == ["close"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "test", **SUM}, "use training or validation"),
        ({"env": "SumEnv"}, "use package.module:Class"),
        ({"env": ":SumEnv"}, "use package.module:Class"),
        ({"env": f"{RAGENS}:"}, "use package.module:Class"),
        ({"env": "no_such_package.x:Env"}, "there is no module no_such_package"),
        ({"env": f"{RAGENS}:NoEnv"}, "has no class NoEnv"),
        ({"env": f"{RAGENS}:random"}, "has no class random"),
        ({**SUM, "config": f"{RAGENS}:NoConfig"}, "config is .* has no class NoConfig"),
        ({**SUM, "config_kwargs": {}}, "set config to package.module:Class"),
        ({**LINE, "config_kwargs": {"width": 3}}, "does not take.*width"),
        (
            {**LINE, "config_kwargs": {"action_lookup": {1: "Up", 2: "up"}}},
            "two actions have the name",
        ),
        (
            {**LINE, "config_kwargs": {"action_lookup": {1: " Up", 2: "Down"}}},
            "without blanks",
        ),
        ({**LINE, "config_kwargs": {"action_lookup": {1: ""}}}, "use a text without"),
        ({**LINE, "config_kwargs": {"render_mode": "rgb_array"}}, "'render_mode'"),
        ({"env": f"{RAGENS}:SilentEnv"}, "SilentEnv shows NoneType, .* give text from"),
    ],
)
def test_bad_options_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        RagenGame(**options).reset(0)


def test_sum_env_is_what_ragen_calls():
    """The same calls made by hand give the same texts and rewards."""
    game = RagenGame("validation", **SUM)
    for seed in range(20):
        env = SumEnv()
        env.reset(seed=2 * seed + 1, mode="val")
        assert game.reset(seed).text == env.render()
        for reply in ("3", "x", "9"):
            _, reward, done, info = env.step(reply)
            step = game.step(reply)
            assert (step.observation.text, step.reward) == (env.render(), reward)
            assert (step.terminated, step.info["success"]) == (done, info["success"])
            if done:
                break
