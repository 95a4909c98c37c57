"""The other shipped models: their wording, their tokenizers, their files."""

import functools
import hashlib

import pytest

from configs import (
    alfworld,
    countdown,
    cube2x2,
    game2048,
    lean,
    pocket_host,
    pocket_worlds,
    search,
    sudoku,
)
from ragen_jax.config import validate
from ragen_jax.models.hf_weights import load_checkpoint
from ragen_jax.program import BUILT_IN
from ragen_jax.sft.data import dialogue_texts
from ragen_jax.sft.pocket_tokenizer import build_tokenizer, save_tokenizer

MAX_BYTES = 8_000_000
CONFIGS = {"pocket_worlds": pocket_worlds, "pocket_host": pocket_host}
# Of all texts of their games' messages and replies; of games in Python, the common
# words.
WORDINGS = {
    "pocket_worlds": "36143c03cc38dcbc5c4de12aba2b316993e3c19f9ad129178688978108a7337c",
    "pocket_host": "",
}
GAMES = {
    countdown: "pocket_worlds",
    cube2x2: "pocket_worlds",
    game2048: "pocket_worlds",
    sudoku: "pocket_worlds",
    lean: "pocket_host",
    search: "pocket_host",
    alfworld: "pocket_host",
}


@functools.cache
def texts_of(model):
    return dialogue_texts(CONFIGS[model].get_config())


@pytest.mark.parametrize("model", CONFIGS)
def test_the_wording_is_that_of_its_training(model):
    """A word the model never saw in training makes it play badly, without an error."""
    texts = "\n".join(texts_of(model))
    assert hashlib.sha256(texts.encode()).hexdigest() == WORDINGS[model], (
        "the terse wording, the games' words or the demonstrated replies have changed: "
        f"take the change back, or train the model anew (python -m launch.sft "
        f"--config=configs/{model}.py --workdir=runs/{model}), copy "
        f"runs/{model}/model to ragen_jax/{model}, measure it again and put the new "
        "digest here"
    )


@pytest.mark.parametrize("model", CONFIGS)
def test_the_tokenizer_is_the_one_that_the_games_ask_for(model, tmp_path):
    save_tokenizer(build_tokenizer(texts_of(model)), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shipped = BUILT_IN[model] / name
        assert (tmp_path / name).read_bytes() == shipped.read_bytes()


@pytest.mark.parametrize("model", CONFIGS)
def test_the_files_are_small_and_described(model):
    folder = BUILT_IN[model]
    assert (folder / "model.safetensors").stat().st_size < MAX_BYTES
    readme = (folder / "README.md").read_text()
    assert f"python -m launch.sft --config=configs/{model}.py" in readme
    config, _ = load_checkpoint(folder)
    assert config.hidden_size == CONFIGS[model].get_config().model.hidden_size


@pytest.mark.parametrize("task", GAMES)
def test_its_games_use_it_and_real_models_stay(task):
    config = task.get_config("pocket")
    validate(config)
    assert config.model.path == GAMES[task]
    path = task.get_config("qwen2.5-0.5b").model.path
    assert path == "Qwen/Qwen2.5-0.5B-Instruct"
