"""The model that is fine-tuned: newly initialised, or loaded from a checkpoint.

In: the sections `model` and `lora` of the configuration. Out: an `SFTModel`: network,
tokenizer, and the part of the network that is trained. Only `SFTModel.write_tokenizer`
writes files.
"""

import dataclasses
import pathlib
import tempfile
from typing import Any

import jax
from jaxtyping import Array
from ml_collections import ConfigDict

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.families import check_reads_text_alone, new_config
from ragen_jax.models.hf.files import identity, weights_digest
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.lora import read_lora
from ragen_jax.models.policy import Policy, build_policy, computation
from ragen_jax.models.trainable import Trainable, adapters, whole
from ragen_jax.program.build import (
    model_folder,
    num_ids,
    warn_of_pocket_settings,
)
from ragen_jax.sft import pocket_tokenizer
from ragen_jax.sft.data import dialogue_texts
from ragen_jax.text import chat
from ragen_jax.text.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from ragen_jax.types import Params

# The embedding's rows are padded to a multiple of this, so that devices can share them.
VOCABULARY_MULTIPLE = 64


@dataclasses.dataclass(frozen=True)
class SFTModel:
    """A model that learns from demonstrations.

    Attributes:
      config, policy: description and pure functions of the plain network.
      tokenizer: its tokenizer.
      tokenizer_folder: the tokenizer's files; those of a new model are written by
        `write_tokenizer`.
      identity: see `models.hf.files.identity`.
      trainable: the part that is trained.
      weights: float32 parameters of the checkpoint; None: a new model.
      frozen: `weights` in the computation's dtype, under adapters; None: the whole
        network is trained.
    """

    config: ModelConfig
    policy: Policy
    tokenizer: Tokenizer
    tokenizer_folder: pathlib.Path
    identity: dict[str, Any]
    trainable: Trainable
    weights: Params | None = None
    frozen: Params | None = None

    @property
    def is_new(self) -> bool:
        """Newly initialised: it cannot play before it is trained."""
        return self.weights is None

    def init(self, key: Array) -> Params:
        """Parameters of the trained part before the first step."""
        weights = jax.jit(self.policy.init)(key) if self.is_new else self.weights
        return self.trainable.init(weights, key)

    def merge(self, trained: Params) -> Params:
        """Float32 parameters of the plain network, adapters included.

        Adapters are added to the weights as they were read, not to `frozen`, which may
        be rounded to bfloat16.
        """
        return self.trainable.play_params(self.weights, trained)

    def write_tokenizer(self) -> None:
        """Write the tokenizer of a new model, unless its folder is complete."""
        if self.is_new and not _has_tokenizer(self.tokenizer_folder):
            pocket_tokenizer.save_tokenizer(
                self.tokenizer.backend, self.tokenizer_folder
            )


def build_model(config: ConfigDict, new_tokenizer: pathlib.Path) -> SFTModel:
    """The model that `config.model` describes, or the checkpoint that its `path` names.

    Args:
      config: of `launch.sft`.
      new_tokenizer: folder for the tokenizer of a new model; read if it is complete.

    Raises:
      ValueError: a file or a value cannot be used.
    """
    if "path" in config.model:
        return _load_model(config)
    return _new_model(config, new_tokenizer)


def _load_model(config: ConfigDict) -> SFTModel:
    folder = model_folder(config.model.path)
    tokenizer = load_tokenizer(folder)
    model, weights = load_checkpoint(folder)
    check_reads_text_alone(model)
    check_vocabulary(config.model.path, tokenizer, model.vocab_size)
    warn_of_pocket_settings(config, tokenizer)
    how = computation(config.model, model, jax.default_backend())
    policy = build_policy(model, **how, num_ids=num_ids(config.model.path, tokenizer))
    lora, frozen, digest = read_lora(**config.lora), None, None
    trainable = whole(policy)
    if lora is not None:
        trainable = adapters(policy, lora)
        frozen, digest = jax.jit(policy.cast_params)(weights), weights_digest(folder)
    return SFTModel(
        config=model,
        policy=policy,
        tokenizer=tokenizer,
        tokenizer_folder=folder,
        identity=identity(model, tokenizer.folder, tokenizer.stop_ids, digest),
        trainable=trainable,
        weights=weights,
        frozen=frozen,
    )


def _new_model(config: ConfigDict, folder: pathlib.Path) -> SFTModel:
    with tempfile.TemporaryDirectory() as scratch:
        source = folder
        if not _has_tokenizer(folder):
            source = pathlib.Path(scratch)
            backend = pocket_tokenizer.build_tokenizer(dialogue_texts(config))
            pocket_tokenizer.save_tokenizer(backend, source)
        tokenizer = load_tokenizer(source)
        model = _describe_new(tokenizer, **config.model)
        # Computed here, before the temporary files are deleted.
        owner = identity(model, source, tokenizer.stop_ids)
    policy = build_policy(model)
    return SFTModel(
        config=model,
        policy=policy,
        tokenizer=tokenizer,
        tokenizer_folder=folder,
        identity=owner,
        trainable=whole(policy),
    )


def _describe_new(tokenizer: Tokenizer, **sizes) -> ModelConfig:
    vocabulary = -(-tokenizer.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    return new_config(
        vocab_size=vocabulary,
        head_dim=sizes["hidden_size"] // sizes["num_attention_heads"],
        tie_word_embeddings=True,
        eos_token_ids=(tokenizer.id_of(chat.END),),
        pad_token_id=tokenizer.id_of(pocket_tokenizer.END_OF_TEXT),
        **sizes,
    )


def _has_tokenizer(folder: pathlib.Path) -> bool:
    # The settings are written last: with them the files are complete.
    return (folder / pocket_tokenizer.SETTINGS_FILE).is_file()
