"""Demonstrations of host games: what is played, learned and refused."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import base, pocket, world
from ragen_jax import rngs
from ragen_jax.config import changed_keys
from ragen_jax.host_games.echo import Echo
from ragen_jax.rollout.host.env import make_host_game
from ragen_jax.rollout.host.rows import draw_problems
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.sft import rules
from ragen_jax.sft.data import (
    build_data_sets,
    build_demo_tasks,
    build_mixtures,
    dialogue_texts,
    make_demonstrate,
)
from ragen_jax.sft.host_games import sample_texts
from ragen_jax.sft.pocket_tokenizer import common_words
from ragen_jax.sft.sampler import make_draw
from ragen_jax.sft.train import build_program, train
from tests import commands
from tests.host_games import solved_games
from tests.sft import tiny
from tests.sft.faults import built, in_parts

ROOT = rngs.root_key(3)
NUM = 70


def echo_config(**changes) -> ConfigDict:
    """Echo alone, for a new model of one layer."""
    config = tiny.new_config()
    config.host = base.get_config().host
    config.host.update(max_observation_tokens=16, num_workers=1)
    game = pocket.game(world.get_config(), episodes=4)
    game.update(num_demonstrations=NUM, max_turns=1)
    game.update(max_actions_per_turn=1, max_actions_per_episode=1)
    config.games = ConfigDict({"echo": game})
    config.demonstrators = ConfigDict(
        {"solver": pocket.demonstrator("none", 0.0, share=1.0, first=0.0)}
    )
    config.demonstrators.slipper = pocket.demonstrator(
        "none", 1.0, share=0.0, first=1.0
    )
    config.update_from_flattened_dict(commands.dotted(changes))
    return config


@pytest.fixture(scope="module")
def played():
    """Tasks, tokenizer and the data sets of slips and of solutions."""
    config = echo_config()
    tokenizer = tiny.new_tokenizer(config)
    tasks = build_demo_tasks(config, tokenizer)
    mixtures = build_mixtures(config.demonstrators, redraw=0.0)
    sets = [build_data_sets(tasks, mixture, ROOT)["echo"] for mixture in mixtures]
    return tasks, tokenizer, sets


def test_a_game_without_room_for_the_demonstrators_is_refused():
    name, settings = "tests.host_games.broken_games:Long", base.get_config().host
    env = make_host_game(name, {}, max_failed_fraction=1.0, **settings)
    with pytest.raises(ValueError, match=r"can play 2 .* this needs 64 .*sessions=64"):
        sample_texts(env)


def text_of(tokenizer, rows, episode):
    length = int(rows.lengths[episode, 0])
    return tokenizer.decode(np.asarray(rows.tokens[episode, 0, :length]).tolist())


def replies_of(tokenizer, rows, episode):
    mask = np.asarray(rows.loss_mask[episode, 0])
    return tokenizer.decode(np.asarray(rows.tokens[episode, 0])[mask].tolist())


def test_solutions_win_and_slips_are_other_problems_solutions(played):
    _, tokenizer, (slips, solutions) = played
    assert solutions.success.shape == (NUM,)
    assert solutions.success.all()
    # One of four words is right by chance.
    assert 0.05 < float(slips.success.mean()) < 0.5
    replies = {replies_of(tokenizer, slips.rows, i) for i in range(NUM)}
    words = ("Up", "Down", "Left", "Right")
    assert replies == {f"</think><answer>{word}</answer><|im_end|>" for word in words}


def test_an_episode_is_the_problem_of_its_key_in_the_words_of_a_rollout(played):
    tasks, tokenizer, (_, solutions) = played
    draw = make_draw(tasks, ROOT, num_epochs=None)(1)["echo"]
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    level = fold(rngs.stream(draw.key, "level"), jnp.arange(NUM))
    keys = rollout_keys(ROOT, 1, 1).replace(level=level)
    game = Echo("training")
    for episode, seed in enumerate(draw_problems(keys, None)[0]):
        shown = game.reset(seed).text
        (word,) = game.solution()
        assert text_of(tokenizer, solutions.rows, episode) == (
            "<|im_start|>system\necho<|im_end|>\n<|im_start|>user\n"
            f"Turn 1\n{shown}\nLeft 1<|im_end|>\n<|im_start|>assistant\n"
            f"<think></think><answer>{word}</answer><|im_end|>"
        )


def test_a_step_takes_the_episodes_of_its_draw(played):
    tasks, _, (_, solutions) = played
    draws = make_draw(tasks, ROOT, num_epochs=1)
    numbers = [np.asarray(draws(step)["echo"].numbers) for step in range(1, 18)]
    assert len(np.unique(np.concatenate(numbers))) == 17 * 4
    demonstrate = make_demonstrate(tasks, tokenization="rows", discount=1.0)
    draw = draws(18)
    batch, success = demonstrate(draw, None, {}, {"echo": solutions})
    # 70 episodes are 17 steps of four and one of two.
    assert draw["echo"].mask.tolist() == [True, True, False, False]
    assert (batch.lengths > 0).tolist() == [True, True, False, False]
    assert not batch.loss_mask[2:].any()
    assert success["echo"] == 1.0
    first = int(draw["echo"].numbers[0])
    np.testing.assert_array_equal(batch.tokens[0], solutions.rows.tokens[first, 0])


def test_common_words_become_tokens_and_rare_ones_bytes():
    texts = ["Say warm Qzxv", "Say cold Wpkt", "Say warm Bvnm"]
    words = common_words(texts, 0.5)
    assert words == ["Say", " warm"]


@pytest.mark.slow
def test_a_new_model_learns_a_game_in_python_and_resumes_to_the_same_bits(tmp_path):
    changes = {"train__num_steps": 40, "optimizer__learning_rate": 2e-2}
    config = echo_config(**changes)
    program = build_program(config, tmp_path / "tokenizer")
    with built(program):
        assert train(config, tmp_path / "whole") == 0
    record = tiny.record_of(tmp_path / "whole")
    assert record[-1]["loss"] < 0.5 * record[0]["loss"]
    # The first part of the steps is played by slips, the last by the solver.
    assert record[0]["demonstrated/echo"] < 1 == record[-1]["demonstrated/echo"]
    scores = json.loads((tmp_path / "whole" / "scores.json").read_text())
    assert scores["after"]["echo"]["ceiling"] == 1.0
    in_parts(config, tmp_path / "parts", program)
    assert tiny.record_of(tmp_path / "parts") == record
    models = [tiny.digests(tmp_path / name / "model") for name in ("whole", "parts")]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"games__echo__num_demonstrations": None},
            "games.echo.num_demonstrations = None, but echo is a host game",
        ),
        ({"host__step_seconds": 0.0}, "host.step_seconds"),
        (
            {"games__echo__max_actions_per_turn": 4},
            "games.echo.max_actions_per_turn = 4, but echo is a host game",
        ),
        (
            {"games__echo__planning_params": {"noise": 1.0}},
            "games.echo.planning_params.noise has no effect",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rules.validate(echo_config(**changes))


def test_thoughts_are_refused():
    config = echo_config(demonstrators__solver__thought="reading")
    with pytest.raises(ValueError, match=r"cannot think about Echo.*set the `thought`"):
        dialogue_texts(config)


def test_a_game_without_solutions_is_refused():
    name = f"{solved_games.__name__}:NoSolution"
    with pytest.raises(ValueError, match="NoSolution cannot be demonstrated"):
        dialogue_texts(echo_config(games__echo__host=name))


def test_a_game_that_fails_is_refused():
    name = f"{solved_games.__name__}:Fails"
    with pytest.raises(ValueError, match=r"Fails cannot be demonstrated, .*on purpose"):
        dialogue_texts(echo_config(games__echo__host=name))


def test_a_resumed_run_keeps_what_its_demonstrations_depend_on():
    before = echo_config()
    cap = echo_config(host__wrappers=(("cap", 50),), host__max_observation_tokens=9)
    free = rules.declared(before).mutable
    changed = changed_keys(before, cap, free)
    assert changed.keys() == {"host.wrappers", "host.max_observation_tokens"}
    workers = echo_config(host__num_workers=7, host__step_seconds=1.0)
    assert changed_keys(before, workers, free) == {}


def test_a_run_of_before_games_in_python_is_resumed():
    config = pocket.get_config()
    before = config.copy_and_resolve_references()
    with before.unlocked():
        del before.host
        del before.train.prompt_loss_weight
        for game in before.games.values():
            del game["host"]
    assert changed_keys(before, config, rules.declared(config).mutable) == {}


def test_a_reply_that_is_too_long_is_refused():
    config = echo_config()
    tokenizer = tiny.new_tokenizer(config)
    config.max_reply_tokens = 3
    tasks = build_demo_tasks(config, tokenizer)
    (mixture, _) = build_mixtures(config.demonstrators, redraw=0.0)
    with pytest.raises(ValueError, match="max_reply_tokens = 3; raise it"):
        build_data_sets(tasks, mixture, ROOT)
