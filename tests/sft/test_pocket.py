"""The shipped models: their wording, tokenizers and files."""

import dataclasses
import hashlib
from types import ModuleType

import pytest

from configs import (
    countdown,
    cube2x2,
    game2048,
    lean,
    mathqa,
    pocket,
    pocket_host,
    pocket_vision,
    pocket_worlds,
    search,
    sudoku,
)
from ragen_jax.config import validate
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.program.build import BUILT_IN
from ragen_jax.sft.data import dialogue_texts
from ragen_jax.sft.pocket_tokenizer import build_tokenizer, save_tokenizer

MAX_BYTES = 8_000_000


@dataclasses.dataclass(frozen=True)
class Model:
    """A shipped model.

    Attributes:
      config: of its training.
      tasks: configurations whose preset "pocket" names it.
      wording: SHA-256 of all texts of its games' messages and replies.
    """

    config: ModuleType
    tasks: tuple[ModuleType, ...]
    wording: str


MODELS = {
    "pocket": Model(
        pocket,
        (),
        "0442b9d4e9cbdb62a99eb8b83eeed79b9d1bc043fd7f38bfacfe18a97585513c",
    ),
    "pocket_worlds": Model(
        pocket_worlds,
        (countdown, cube2x2, game2048, sudoku),
        "36143c03cc38dcbc5c4de12aba2b316993e3c19f9ad129178688978108a7337c",
    ),
    "pocket_host": Model(
        pocket_host,
        (lean, mathqa, search),
        "489f944c11952c54ee2030ca0e76d3fa906e8b243955fa8584eb6677569c0df3",
    ),
    "pocket_vision": Model(
        pocket_vision,
        (),
        "aa9b6b0f18aac124bd5abe7094f0bb8a8752261c0cf3249f891eeb347374a329",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_wording_and_tokenizer_are_those_of_its_training(name, tmp_path):
    """A word the model never saw in training makes it play badly, without an error."""
    texts = dialogue_texts(MODELS[name].config.get_config())
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    assert digest == MODELS[name].wording, (
        "the terse wording, the games' words or the demonstrated replies have changed: "
        "undo the change, or train the model again (python -m launch.sft "
        f"--config=configs/{name}.py --workdir=runs/{name}), copy runs/{name}/model "
        f"to ragen_jax/{name}, measure it again and put the new digest here"
    )
    save_tokenizer(build_tokenizer(texts), tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / file).read_bytes() == (BUILT_IN[name] / file).read_bytes()


@pytest.mark.parametrize("name", MODELS)
def test_the_files_are_small_and_described(name):
    folder = BUILT_IN[name]
    assert (folder / "model.safetensors").stat().st_size < MAX_BYTES
    readme = (folder / "README.md").read_text()
    assert f"python -m launch.sft --config=configs/{name}.py" in readme
    config, _ = load_checkpoint(folder)
    sizes = MODELS[name].config.get_config().model
    assert config.hidden_size == sizes.hidden_size
    assert config.num_hidden_layers == sizes.num_hidden_layers


@pytest.mark.parametrize("name", MODELS)
def test_its_games_use_it_and_real_models_stay(name):
    for task in MODELS[name].tasks:
        config = task.get_config("pocket")
        validate(config)
        assert config.model.path == name
        path = task.get_config("qwen2.5-0.5b").model.path
        assert path == "Qwen/Qwen2.5-0.5B-Instruct"
