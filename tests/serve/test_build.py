"""What a command line asks to be served, and what it may not ask."""

import importlib

import pytest

from configs import TASK_FILES, base, mix, sokoban
from envs import ENVIRONMENTS
from ragen_jax.host_games import HOST_GAMES
from ragen_jax.serve.build import build_game, choose_game
from ragen_jax.serve.games import ServedHostGame


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("frozen_lake", "name"),
        ("echo", "host"),
        ("envs.bandit.env:Bandit", "name"),
        ("ragen_jax.host_games.echo:Echo", "host"),
    ],
)
def test_games_are_of_arrays_or_in_python(name, key):
    config = base.get_config()
    choose_game(config, name)
    assert config.env[key] == name
    assert (config.env.host is None) == (key == "name")


def test_every_game_has_the_task_file_that_plays_it():
    assert TASK_FILES.keys() == {*ENVIRONMENTS, *HOST_GAMES}
    for game, file in TASK_FILES.items():
        config = importlib.import_module(f"configs.{file}").get_config()
        assert (config.env.host or config.env.name) == game


def test_a_misspelt_game_is_refused():
    with pytest.raises(ValueError, match=r"no game 'ecko'\. Did you mean 'echo'\?"):
        choose_game(base.get_config(), "ecko")


def test_a_game_in_python_takes_its_options():
    config = base.get_config()
    choose_game(config, "echo")
    config.env.kwargs = {"num_words": 5}
    config.host.step_seconds = 3.0
    game = build_game(config, ["env.kwargs", "host.step_seconds"])
    assert isinstance(game, ServedHostGame)
    assert game.step_seconds == 3.0
    player = game.player()
    assert len(player.reset(0, None, "training").shown.split()) == 5
    player.close()


@pytest.mark.parametrize(
    ("module", "name", "keys", "words"),
    [
        (mix, None, [], "env.mix plays several games"),
        (sokoban, None, ["train.num_iterations"], "has no effect on what is served"),
        (base, "echo", ["rollout.max_turns"], "host.step_seconds"),
        (sokoban, None, ["host.step_seconds"], "rollout.max_turns"),
    ],
)
def test_keys_that_change_nothing_are_refused(module, name, keys, words):
    config = module.get_config()
    if name is not None:
        choose_game(config, name)
    with pytest.raises(ValueError, match=words):
        build_game(config, keys)


def test_options_that_a_game_refuses():
    config = base.get_config()
    choose_game(config, "echo")
    config.env.kwargs = {"num_words": 99}
    with pytest.raises(ValueError, match="num_words=99"):
        build_game(config, ["env.kwargs.num_words"])
