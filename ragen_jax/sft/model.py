"""The model that is fine-tuned: newly initialised, or loaded from a checkpoint.

In: the sections `model` and `lora` of the configuration. Out: an `SFTModel`: network,
tokenizer, and the part of the network that is trained. Only `SFTModel.write_tokenizer`
writes files.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array
from ml_collections import ConfigDict

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.families import new_config
from ragen_jax.models.hf.files import identity, weights_digest
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.lora import LoraConfig, read_lora
from ragen_jax.models.policy import Policy, build_policy, computation
from ragen_jax.models.trainable import Trainable, adapters, whole
from ragen_jax.models.vision_config import VisionConfig
from ragen_jax.program.build import (
    model_folder,
    num_ids,
    warn_of_pocket_settings,
)
from ragen_jax.sft import pocket_tokenizer
from ragen_jax.sft.data import dialogue_texts
from ragen_jax.tasks.build import show_to
from ragen_jax.tasks.task import Task
from ragen_jax.text import chat
from ragen_jax.text.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from ragen_jax.types import Params

# Of a tower, in the section `model` of a new model.
_TOWER_KEYS = ("vision_hidden_size", "vision_num_heads", "vision_patch_size")
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
      lora: its adapters; None: the whole network is trained.
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
    lora: LoraConfig | None = None
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

    def showing(self, tasks: Sequence[Task]) -> "SFTModel":
        """The model, for what the tasks show it.

        Raises:
          ValueError: see `tasks.build.pictures_of`.
        """
        policy = show_to(self.policy, tasks)
        trainable = _trainable(policy, self.lora)
        return dataclasses.replace(self, policy=policy, trainable=trainable)

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
    check_vocabulary(config.model.path, tokenizer, model.vocab_size)
    warn_of_pocket_settings(config, tokenizer)
    how = computation(config.model, model, jax.default_backend())
    policy = build_policy(model, **how, num_ids=num_ids(config.model.path, tokenizer))
    lora, frozen, digest = read_lora(**config.lora), None, None
    if lora is not None:
        frozen, digest = jax.jit(policy.cast_params)(weights), weights_digest(folder)
    return SFTModel(
        config=model,
        policy=policy,
        tokenizer=tokenizer,
        tokenizer_folder=folder,
        identity=identity(model, tokenizer.folder, tokenizer.stop_ids, digest),
        trainable=_trainable(policy, lora),
        lora=lora,
        weights=weights,
        frozen=frozen,
    )


def _trainable(policy: Policy, lora: LoraConfig | None) -> Trainable:
    return whole(policy) if lora is None else adapters(policy, lora)


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


def _describe_new(
    tokenizer: Tokenizer, *, vision_layers: int | None, **sizes
) -> ModelConfig:
    vocabulary = -(-tokenizer.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    of_tower = {key: sizes.pop(key) for key in list(sizes) if key in _TOWER_KEYS}
    if vision_layers is not None:
        sizes |= _describe_tower(tokenizer, vision_layers, of_tower, sizes)
    return new_config(
        vocab_size=vocabulary,
        head_dim=sizes["hidden_size"] // sizes["num_attention_heads"],
        tie_word_embeddings=True,
        eos_token_ids=(tokenizer.id_of(chat.END),),
        pad_token_id=tokenizer.id_of(pocket_tokenizer.END_OF_TEXT),
        **sizes,
    )


def _describe_tower(
    tokenizer: Tokenizer,
    num_layers: int,
    of_tower: Mapping[str, int],
    of_text: Mapping[str, Any],
) -> dict[str, Any]:
    """What a network that sees has beside the sizes of its text."""
    width, patch = of_tower["vision_hidden_size"], of_tower["vision_patch_size"]
    half = of_text["hidden_size"] // of_text["num_attention_heads"] // 2
    # Pairs turn the more slowly the later they come: few for time and rows leave to
    # columns some that tell neighbours apart.
    time, rows = half // 8, 3 * half // 16
    vision = VisionConfig(
        depth=num_layers,
        hidden_size=width,
        intermediate_size=3 * width,
        num_heads=of_tower["vision_num_heads"],
        out_hidden_size=of_text["hidden_size"],
        patch_size=patch,
        window_size=8 * 2 * patch,
        # Boards are small: all layers see all of them.
        fullatt_block_indexes=tuple(range(num_layers)),
    )
    ids = (f"<|{name}|>" for name in ("image_pad", "vision_start", "vision_end"))
    names = ("image_token_id", "vision_start_token_id", "vision_end_token_id")
    return {
        "model_type": "qwen2_5_vl",
        "vision": vision,
        "mrope_section": (time, rows, half - time - rows),
        "video_token_id": tokenizer.id_of("<|video_pad|>"),
        **dict(zip(names, map(tokenizer.id_of, ids), strict=True)),
    }


def _has_tokenizer(folder: pathlib.Path) -> bool:
    # The settings are written last: with them the files are complete.
    return (folder / pocket_tokenizer.SETTINGS_FILE).is_file()
