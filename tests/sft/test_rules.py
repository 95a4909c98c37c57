"""Configurations of fine-tuning: which are refused, and with which words."""

import functools
import re

import pytest

from configs import frozen_lake, pocket, sft, sokoban, world
from ragen_jax.sft.data import build_demo_tasks
from ragen_jax.sft.rules import num_steps, validate
from ragen_jax.sft.train import train
from ragen_jax.text.tokenizer import load_tokenizer
from tests import commands
from tests.sft import tiny

BAD_NEW = {
    "optimizer.warmup_steps": (5, "it must be below the number of steps, 5"),
    "train.microbatch_episodes": (3, "4 episodes per step"),
    "mixture.redraw": (1.5, "mixture.redraw = 1.5; it must be between 0 and 1"),
    "games.bandit.episodes": (0, "games.bandit.episodes = 0"),
    "games.bandit.noise": (2.0, "games.bandit.noise = 2.0"),
    "demonstrators.solver.share": (-0.25, "demonstrators.solver.share = -0.25"),
    "demonstrators.solver.first_share": (0.9, "first_share sum to 1.02; make it 1"),
    "model.num_attention_heads": (3, "not a multiple of model.num_attention_heads"),
}
BAD_LOADED = {
    "model.dtype": ("float16", "model.dtype = 'float16'; choose one of"),
    "games.bandit.episodes": (8, "more than its num_demonstrations = 6"),
    "games.bandit.num_demonstrations": (None, "has no data set to repeat"),
    "train.num_steps": (3, "train.num_steps = 3 and train.num_epochs = 4"),
    "train.num_epochs": (None, "train.num_steps = None and train.num_epochs = None"),
    "optimizer.warmup_steps": (6, "it must be below the number of steps, 6"),
    "demonstrators.solver.thought": (
        "deep",
        "choose one of misreading, none, pred",
    ),
}
CONFIGS = {"new": tiny.new_config, "loaded": functools.partial(tiny.tuning_config, "x")}
BAD = [("new", key) for key in BAD_NEW] + [("loaded", key) for key in BAD_LOADED]


@pytest.mark.parametrize(("model", "key"), BAD)
def test_bad_settings_are_refused(model, key):
    value, message = {"new": BAD_NEW, "loaded": BAD_LOADED}[model][key]
    config = CONFIGS[model](**{key.replace(".", "__"): value})
    with pytest.raises(ValueError, match=re.escape(message)):
        validate(config)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model__max_position_embeddings", 9, "max_position_embeddings = 9; raise it"),
        ("max_reply_tokens", 3, "max_reply_tokens = 3; raise it"),
        (
            "games__bandit__params",
            {"slip": 1.0},
            "games.bandit.params.slip: Bandit has",
        ),
        ("games__bandit__planning_params", {"slip": 1.0}, "planning_params.slip"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(
    key, value, message, tmp_path
):
    config = tiny.new_config(**{key: value})
    with pytest.raises(ValueError, match=re.escape(message)):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model__path", "no/such/model", "no folder no/such/model"),
        ("lora__targets", "q_proj,x_proj", "lora.targets holds 'x_proj'"),
        ("max_reply_tokens", 3, "max_reply_tokens = 3; raise it"),
        (
            "evaluation__max_reply_tokens",
            4000,
            "or lower evaluation.max_reply_tokens or",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    key, value, message, checkpoint, tmp_path
):
    config = tiny.tuning_config(checkpoint, **{key: value})
    with pytest.raises(ValueError, match=re.escape(message)):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_thoughts_without_facts_are_refused(checkpoint):
    """Without thoughts the same game is accepted."""
    config, tokenizer = sft.get_config("frozen_lake"), load_tokenizer(checkpoint)
    config.games.frozen_lake.kwargs = {"observation": "coord"}
    build_demo_tasks(config, tokenizer)
    config.demonstrators.solver.thought = "reading"
    with pytest.raises(ValueError, match="or set thoughts to 'none'"):
        build_demo_tasks(config, tokenizer)


def test_the_shipped_configurations_are_valid_and_a_task_s_is_refused():
    validate(pocket.get_config())
    for words in ("", "frozen_lake", "bandit,qwen2.5-3b", "pocket", "world,form"):
        validate(sft.get_config(words))
    with pytest.raises(ValueError, match=r"lacks games; use configs/pocket\.py"):
        validate(sokoban.get_config())


def test_the_command_answers_with_one_sentence(tmp_path):
    run = tmp_path / "run"
    for words, sentence in (
        (["--config=configs/sokoban.py", f"--workdir={run}"], "it lacks games"),
        (["--config=configs/pocket.py"], "add e.g. --workdir=runs/sft"),
    ):
        assert sentence in commands.refusal("sft", *words)
    assert not run.exists()


def test_the_recipe_is_the_paper_s():
    config = sft.get_config()
    (game,) = config.games.values()
    assert (game.num_demonstrations, game.episodes) == (1000, 128)
    assert (config.lora.rank, config.lora.alpha, config.lora.targets) == (64, 32, "all")
    assert config.optimizer.learning_rate == 1e-4
    assert (game.max_turns, game.max_actions_per_turn) == (5, 5)
    assert num_steps(config) == 40


def test_the_form_alone_is_shown_by_random_players():
    config = sft.get_config("sokoban,pocket,form")
    (player,) = config.demonstrators.values()
    assert (player.noise, player.share, player.first_share) == (1.0, 1.0, 1.0)
    assert player.thought == "none"
    assert num_steps(config) == 16
    # The pocket model keeps its own rate.
    solver = sft.get_config("sokoban,pocket")
    assert config.optimizer.learning_rate == solver.optimizer.learning_rate > 1e-3
    real = sft.get_config("sokoban,smollm2-135m,form")
    assert (real.optimizer.learning_rate, real.lora.rank) == (5e-4, 32)


def test_smollm2_plays_boards_as_it_was_shown_them():
    """The form is shown on the wording and the boards of training."""
    for task in (sokoban, frozen_lake):
        training = task.get_config("smollm2-135m")
        shown = sft.get_config(f"{training.env.name},smollm2-135m,form")
        (game,) = shown.games.values()
        assert shown.prompt.to_dict() == training.prompt.to_dict()
        assert game.kwargs.to_dict() == {"observation": "relative"}
        assert game.params.to_dict() == training.env.params.to_dict()
        assert training.prompt.style == "terse"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("grpo", "no preset 'grpo'; presets are task: sokoban, "),
        ("bandit,sokoban", "'bandit' and 'sokoban' both choose the task"),
    ],
)
def test_other_words_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        sft.get_config(words)


@pytest.mark.parametrize("size", ["pocket", "qwen2.5-0.5b"])
def test_games_of_users_are_tasks(size):
    """With the keys of `configs/game.py` and `configs/world.py`, under clean names."""
    array = sft.get_config(f"game,{size}")
    python = sft.get_config(f"world,{size}")
    assert (list(array.games), list(python.games)) == (["game"], ["world"])
    assert array.max_reply_tokens >= 48
    assert (python.games.world.host, python.games.world.max_actions_per_turn) == (
        "echo",
        1,
    )
    task = world.get_config(size)
    assert python.host.to_dict() == task.host.to_dict()
    assert python.games.world.max_turns == task.rollout.max_turns
    # Embeddings of letters have no adapters.
    ranks = [array.lora.rank, python.lora.rank]
    assert ranks == ([None] * 2 if size == "pocket" else [64] * 2)
    for config in (array, python):
        validate(config)
