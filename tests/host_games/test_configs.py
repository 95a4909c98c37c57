"""The configurations of host games can be used as they are, and train."""

import dataclasses
import importlib
import json

import pytest

from ragen_jax.config import validate
from ragen_jax.evaluation.load import open_trained
from ragen_jax.evaluation.terminal import episodes
from ragen_jax.models.hf.weights import load_config
from ragen_jax.program.build import BUILT_IN
from ragen_jax.tasks.build import build_task, check_fit
from ragen_jax.tasks.specs import env_specs
from ragen_jax.text.tokenizer import load_tokenizer
from ragen_jax.train import train
from tests import commands

NAMES = ("search", "lean", "mathqa", "coding", "webshop", "alfworld")


def config_of(name, presets="pocket"):
    return importlib.import_module(f"configs.{name}").get_config(presets)


@pytest.mark.parametrize("name", NAMES)
def test_the_pocket_model_holds_an_episode(name):
    validate(config_of(name, "pocket,starpo_s,grpo"))
    validate(config_of(name, "qwen2.5-0.5b"))
    config = config_of(name)
    (spec,) = env_specs(config)
    folder = BUILT_IN[config.model.path]
    task = build_task(config, spec, load_tokenizer(folder))
    check_fit(config, task, load_config(folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_iteration_trains(name, model, tmp_path):
    config = config_of(name)
    turns = min(config.rollout.max_turns, 2)
    limits = {
        "model.path": str(model),
        # Each width is a program, and so is each number of rows.
        "learner.num_widths": 1,
        "evaluation.num_prompts": 8,
        "evaluation.every": 2 if name == "search" else None,
        "rollout.max_turns": turns,
        "rollout.max_actions_per_episode": turns,
        "train.num_iterations": 1,
    }
    config.update_from_flattened_dict(commands.TINY | limits)
    assert train(config, tmp_path / "run") == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert first["iteration"] == (0 if name == "search" else 1)
    assert last["rollout/failed_rows"] == 0
    (file,) = (tmp_path / "run" / "trajectories").iterdir()
    assert len(file.read_text().splitlines()) == 8
    # What was written is read again as it is played.
    assert open_trained(tmp_path / "run", None).program.task.name == name_in(first)


def name_in(record):
    (name,) = [key.split("/")[1] for key in record if key.endswith("/success")]
    return name


def echo(model):
    config = config_of("world")
    limits = {
        "model.path": str(model),
        "rollout.max_reply_tokens": 8,
        "rollout.max_turns": 1,
        "rollout.max_actions_per_episode": 1,
    }
    config.update_from_flattened_dict(limits)
    return open_trained(None, config)


def by_solution(trained, level, say):
    solver = episodes.solver_of(trained, say)
    episodes.play_host_game(trained, level, solver, say)


def test_an_episode_by_hand_and_by_its_solution(model):
    trained, said = echo(model), []
    by_solution(trained, 3, said.append)
    reply = next(line for line in said if line.startswith("> "))[2:]
    assert said[0].startswith("Echo, level 3\nReply with the last word")
    assert said[-1] == "won in 1 action, return 1"
    for line, ending in (reply, "won in 1 action"), ("never", "not won after 1 action"):
        said = []
        player = lambda rows, output, line=line: line  # noqa: E731
        episodes.play_host_game(trained, 3, player, said.append)
        assert said[-1].startswith(ending)
        assert reply == said[1].split()[-1]


@pytest.mark.slow
def test_an_episode_of_the_policy(model):
    said = []
    episodes.say_policy_episode(echo(model), 3, said.append)
    assert "Turn 1" in said[0]
    assert said[-1].startswith(("won in", "not won after"))


def test_what_has_no_solution_says_so(model):
    trained = echo(model)
    task = trained.program.task
    spec = dataclasses.replace(
        task.env.spec, game="tests.host_games.games:Faulty", kwargs={}
    )
    task.env.spec = spec
    with pytest.raises(ValueError, match="Echo has no replies that win from here"):
        by_solution(trained, 0, [].append)
