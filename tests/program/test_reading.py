"""The note about games in words that a built-in model has not learned."""

import importlib
import types

import pytest

import configs
from configs import base, countdown, sokoban
from envs.base import TextGame
from envs.templates import Template
from ragen_jax.host_games.base import HostGame, Observation, Step
from ragen_jax.program import build, reading
from ragen_jax.program.build import BUILT_IN
from ragen_jax.rollout.host.env import build_game, make_host_game
from ragen_jax.rollout.host.rows import WorkerResponse
from ragen_jax.tasks.specs import env_specs, make_env
from ragen_jax.text.tokenizer import load_tokenizer
from tests.envs import example

POCKET = load_tokenizer(BUILT_IN["pocket"])
# Host games whose texts no built-in model was trained on.
UNREADABLE = ("alfworld", "coding", "webshop")


def note_of(env, tokenizer=POCKET):
    return reading.unread_note(env, [tokenizer], "do this")


@pytest.mark.parametrize("game", configs.TASK_FILES)
def test_every_task_file_is_read_by_its_model_or_says_so(game, monkeypatch):
    file = importlib.import_module(f"configs.{configs.TASK_FILES[game]}")
    config = file.get_config()
    env, _ = make_env(env_specs(config)[0])
    monkeypatch.setattr(reading, "Pool", _InThisProcess)
    note = note_of(env, load_tokenizer(BUILT_IN[config.model.path]))
    assert bool(note) == (game in UNREADABLE), note


class _InThisProcess:
    """A pool of one row without its worker process."""

    def __init__(self, spec, split):
        self._game = build_game(spec, split)

    def reset(self, seeds, tasks):
        text = self._game.reset(seeds[0], tasks[0]).text
        return [WorkerResponse(text)]

    def close(self):
        self._game.close()


class Chess(TextGame):
    name = "Chess"
    action_vocabulary = ("Up", "Castle", "Resign")
    template = Template(("Turn\n",))


def test_names_of_actions_that_it_cannot_write():
    assert note_of(Chess()) == (
        "the actions of Chess have words that the built-in model has not learned "
        "(Castle, Resign): do this"
    )


class Few(Chess):
    action_vocabulary = ("Up", "Left")
    template = Template(("Turn ", "Left ", "Reward ", "knight\n"))


class Many(Few):
    template = Template(("Turn ", "knight ", "bishop ", "queen ", "king ", "rook\n"))


def test_one_of_the_models_is_enough():
    tokenizers = [load_tokenizer(folder) for folder in BUILT_IN.values()]
    env, _ = make_env(env_specs(countdown.get_config())[0])
    assert note_of(Many(), tokenizers[1])
    assert reading.unread_note(Many(), tokenizers, "")
    few = [note_of(env, tokenizer) for tokenizer in tokenizers]
    assert [bool(note) for note in few] == [True, False, True, True]
    assert not reading.unread_note(env, tokenizers, "")


def test_a_rare_word_is_none():
    assert reading.unread_words(Few.template.texts, POCKET) == ["knight"]
    assert not note_of(Few())
    assert "(knight, bishop, queen, king, ...)" in note_of(Many())


def test_the_example_of_the_pages_is_read():
    assert not note_of(example.walk()())


class Riddle(HostGame):
    instruction = "Guess."

    def __init__(self, split):
        del split

    def reset(self, seed, task=None):
        return Observation("what has roots that nobody sees")

    def step(self, reply):
        return Step(Observation("over"), 0.0, True, False, {})


class Broken(Riddle):
    def reset(self, seed, task=None):
        raise KeyError("gone")


class Counted(Riddle):
    max_rows = 4


def host(game):
    settings = base.get_config().host.to_dict()
    name = f"{__name__}:{game}"
    return make_host_game(name, {}, max_failed_fraction=1.0, **settings)


@pytest.mark.slow
def test_a_game_in_python_is_asked_for_its_first_text():
    assert "the first texts of Riddle have words" in note_of(host("Riddle"))
    assert not note_of(host("Broken"))
    # A server's sessions are for the run.
    assert not note_of(host("Counted"))


def test_the_note_of_each_game(capsys):
    reading.warn_of_unread_words([Chess(), Few()], POCKET)
    said = capsys.readouterr().err
    assert said.startswith("note: the actions of Chess")
    assert said.count("\n") == 1
    assert "docs/warm-start.md" in said
    assert set(BUILT_IN) == {"pocket", "pocket_worlds", "pocket_host", "pocket_vision"}


def test_only_the_first_process_asks_the_games(monkeypatch, capsys):
    monkeypatch.setattr(reading.exchange, "is_first", lambda: False)
    monkeypatch.setattr(reading, "unread_note", None)
    reading.warn_of_unread_words([Chess()], POCKET)
    assert capsys.readouterr().err == ""


class Reached(Exception):
    pass


@pytest.mark.parametrize("is_built_in", [True, False])
def test_only_built_in_models_are_spoken_of(is_built_in, monkeypatch, tmp_path, capsys):
    def stop(folder):
        raise Reached

    parts = types.SimpleNamespace(tasks=[types.SimpleNamespace(env=Chess())])
    monkeypatch.setattr(build, "build_parts", lambda *_, **__: parts)
    for check in ("check_memory", "check_sessions"):
        monkeypatch.setattr(build, check, lambda *_: None)
    monkeypatch.setattr(build, "load_checkpoint", stop)
    config = sokoban.get_config()
    if not is_built_in:
        # The same words in a folder of the user's.
        (tmp_path / "mine").symlink_to(BUILT_IN["pocket"])
        config.model.path = str(tmp_path / "mine")
    with pytest.raises(Reached):
        build.open_program(config)
    assert ("the actions of Chess" in capsys.readouterr().err) == is_built_in
