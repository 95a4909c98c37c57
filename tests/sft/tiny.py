"""Small configurations, checkpoints and tokenizers for tests of fine-tuning."""

import hashlib
import pathlib
import tempfile

from ml_collections import ConfigDict

from configs import pocket, sft
from ragen_jax.runs import reader
from ragen_jax.sft import pocket_tokenizer
from ragen_jax.sft.data import dialogue_texts
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer
from tests import commands
from tests.models import random_models
from tests.reference.tokenizers import train_qwen_style

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
HF_CONFIG = random_models.CASES["small_tied"] | {
    "vocab_size": 640,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
}


def write_checkpoint(folder: pathlib.Path) -> pathlib.Path:
    """Random weights and a byte-level BPE, in the files of a published checkpoint."""
    tensors = random_models.make_tensors(HF_CONFIG)
    random_models.write_folder(folder, HF_CONFIG, tensors)
    return train_qwen_style(folder, stop_tokens=["<|im_end|>", "<|endoftext|>"])


def demo_config(game: str, **changes) -> ConfigDict:
    """The pocket model's configuration with one game; `changes` are of its section."""
    config = pocket.get_config()
    config.games = ConfigDict({game: config.games[game]})
    config.games[game].update(changes)
    return config


def new_config(**changes) -> ConfigDict:
    """Five steps of a new model on Bandit; `changes` are keys with `__` for the dot."""
    config = demo_config("bandit", episodes=4)
    config.model.update(SHAPE)
    config.optimizer.warmup_steps = 1
    config.train.update(
        num_steps=5, microbatch_episodes=2, log_every=2, checkpoint_every=3
    )
    config.evaluation.num_prompts = 8
    return _changed(config, changes)


def tuning_config(checkpoint: pathlib.Path, **changes) -> ConfigDict:
    """Adapters on six demonstrations of Bandit, four times: six steps of four."""
    config = sft.get_config("bandit")
    keys = {
        "model__path": str(checkpoint),
        "lora__rank": 4,
        "max_reply_tokens": 60,
        "games__bandit__episodes": 4,
        "games__bandit__num_demonstrations": 6,
        "optimizer__learning_rate": 2e-2,
        "optimizer__warmup_steps": 1,
        "train__num_epochs": 4,
        "train__microbatch_episodes": 4,
        "train__logprob_chunk_tokens": 256,
        "train__log_every": 2,
        "train__checkpoint_every": 3,
        "evaluation__num_prompts": 4,
        "evaluation__max_reply_tokens": 8,
    }
    return _changed(config, keys | changes)


def _changed(config: ConfigDict, changes: dict[str, object]) -> ConfigDict:
    config.update_from_flattened_dict(commands.dotted(changes))
    return config


def new_tokenizer(config: ConfigDict) -> Tokenizer:
    backend = pocket_tokenizer.build_tokenizer(dialogue_texts(config))
    with tempfile.TemporaryDirectory() as folder:
        pocket_tokenizer.save_tokenizer(backend, folder)
        return load_tokenizer(folder)


def record_of(workdir: pathlib.Path) -> list[dict]:
    """The metrics of a run without their times."""
    return [{**r, "time": None} for r in reader.read_metrics(workdir)]


def digests(folder: pathlib.Path) -> dict[str, bytes]:
    return {p.name: hashlib.sha256(p.read_bytes()).digest() for p in folder.iterdir()}
