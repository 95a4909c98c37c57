"""Students: the model that a warm start trains, made from nothing or loaded.

In: the configuration's `model` and `lora`. Out: a `Student`: its network, its
tokenizer, and which part of it learns. Everything else about a warm start is the same
for both kinds. Nothing is written here.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import jax
from jaxtyping import Array
from ml_collections import ConfigDict

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.families import new_config
from ragen_jax.models.hf_files import weights_digest
from ragen_jax.models.hf_weights import load_checkpoint
from ragen_jax.models.lora import read_lora
from ragen_jax.models.policy import Policy, build_policy, logical_axes
from ragen_jax.models.trainable import Trainable, adapters, whole
from ragen_jax.program import computation, model_folder, warn_of_pocket_settings
from ragen_jax.sft import data as lessons
from ragen_jax.sft import pocket_tokenizer
from ragen_jax.sft.data import Game
from ragen_jax.tasks import check_vocabulary
from ragen_jax.text import chat
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer
from ragen_jax.types import Params

# The embedding is padded to a multiple of this, so that it splits over devices.
VOCABULARY_MULTIPLE = 64


@dataclasses.dataclass(frozen=True)
class Student:
    """A model that learns from demonstrations.

    Attributes:
      is_new: it is made from nothing; otherwise it was loaded and can play already.
      model, policy: its description and the plain network, which plays.
      tokenizer: its tokenizer.
      tokenizer_folder: where that is; for a new one, where it is to be written.
      trainable: the part that learns.
      begin: key -> parameters of that part.
      frozen: the rest as the learner reads it; None where all of it learns.
      frozen_digest: of the files it came from, see `checkpoint.identity`.
      finish: what was trained -> float32 parameters of the plain network.
    """

    is_new: bool
    model: ModelConfig
    policy: Policy
    tokenizer: Tokenizer
    tokenizer_folder: pathlib.Path
    trainable: Trainable
    begin: Callable[[Array], Params]
    frozen: Params | None
    frozen_digest: str | None
    finish: Callable[[Params], Params]


def build_student(
    config: ConfigDict, games: Mapping[str, Game], new_tokenizer: pathlib.Path
) -> Student:
    """The model that `config.model` describes, or that its `path` names.

    Args:
      config: of a warm start.
      games: whose words a new tokenizer has to know.
      new_tokenizer: its folder, in the run folder.

    Raises:
      ValueError: a file or a value cannot be used.
    """
    if "path" in config.model:
        return _load_student(config)
    return _new_student(config, games, new_tokenizer)


def _new_student(
    config: ConfigDict, games: Mapping[str, Game], folder: pathlib.Path
) -> Student:
    tokenizer = lessons.load_or_build_tokenizer(folder, games, config.prompt)
    model = _new_model(tokenizer, **config.model)
    policy = build_policy(model)
    return Student(
        is_new=True,
        model=model,
        policy=policy,
        tokenizer=tokenizer,
        tokenizer_folder=folder,
        trainable=whole(policy, logical_axes(model)),
        begin=jax.jit(policy.init),
        frozen=None,
        frozen_digest=None,
        finish=lambda trained: trained,
    )


def _load_student(config: ConfigDict) -> Student:
    folder = model_folder(config.model.path)
    tokenizer = load_tokenizer(folder)
    model, params = load_checkpoint(folder)
    check_vocabulary(config.model.path, tokenizer, model)
    warn_of_pocket_settings(config, tokenizer)
    how = computation(config)
    policy = build_policy(model, **how)
    lora, frozen = read_lora(**config.lora), None
    if lora is None:
        trainable = whole(policy, logical_axes(model))
    else:
        trainable = adapters(policy, lora)
        frozen = jax.jit(policy.cast_params)(params)

    def finish(trained: Params) -> Params:
        # Over the weights as they were read: the frozen ones may have lost digits.
        return trainable.play_params(params, trained)

    return Student(
        is_new=False,
        model=model,
        policy=policy,
        tokenizer=tokenizer,
        tokenizer_folder=folder,
        trainable=trainable,
        begin=lambda key: trainable.init(params, key),
        frozen=frozen,
        frozen_digest=None if lora is None else weights_digest(folder),
        finish=finish,
    )


def _new_model(tokenizer: Tokenizer, **sizes) -> ModelConfig:
    vocabulary = -(-tokenizer.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    return new_config(
        vocab_size=vocabulary,
        head_dim=sizes["hidden_size"] // sizes["num_attention_heads"],
        tie_word_embeddings=True,
        eos_token_ids=(tokenizer.id_of(chat.END),),
        pad_token_id=tokenizer.id_of(pocket_tokenizer.END_OF_TEXT),
        **sizes,
    )
