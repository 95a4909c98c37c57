"""The shipped model of the newer games: its wording, its tokenizer, its files."""

import hashlib

import pytest

from configs import countdown, cube2x2, game2048, pocket_worlds, sudoku
from ragen_jax.config import validate
from ragen_jax.models.hf_weights import load_checkpoint
from ragen_jax.program import BUILT_IN
from ragen_jax.sft.data import dialogue_texts
from ragen_jax.sft.pocket_tokenizer import build_tokenizer, save_tokenizer

FOLDER = BUILT_IN["pocket_worlds"]
MAX_BYTES = 8_000_000
# Of all texts of its games' messages and replies.
WORDING = "36143c03cc38dcbc5c4de12aba2b316993e3c19f9ad129178688978108a7337c"


def test_the_wording_is_that_of_its_training():
    """A word the model never saw in training makes it play badly, without an error."""
    texts = "\n".join(dialogue_texts(pocket_worlds.get_config()))
    assert hashlib.sha256(texts.encode()).hexdigest() == WORDING, (
        "the terse wording, the games' words or the demonstrated replies have changed: "
        "take the change back, or train the model anew (python -m launch.sft "
        "--config=configs/pocket_worlds.py --workdir=runs/pocket_worlds), copy "
        "runs/pocket_worlds/model to ragen_jax/pocket_worlds, measure it again and put "
        "the new digest here"
    )


def test_the_tokenizer_is_the_one_that_the_games_ask_for(tmp_path):
    texts = dialogue_texts(pocket_worlds.get_config())
    save_tokenizer(build_tokenizer(texts), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_the_files_are_small_and_described():
    assert (FOLDER / "model.safetensors").stat().st_size < MAX_BYTES
    readme = (FOLDER / "README.md").read_text()
    assert "python -m launch.sft --config=configs/pocket_worlds.py" in readme
    config, _ = load_checkpoint(FOLDER)
    assert config.hidden_size == pocket_worlds.get_config().model.hidden_size


@pytest.mark.parametrize("task", [countdown, cube2x2, game2048, sudoku])
def test_its_games_use_it_and_real_models_stay(task):
    config = task.get_config("pocket")
    validate(config)
    assert config.model.path == "pocket_worlds"
    path = task.get_config("qwen2.5-0.5b").model.path
    assert path == "Qwen/Qwen2.5-0.5B-Instruct"
