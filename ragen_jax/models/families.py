"""The families of models, by the `model_type` of their `config.json`.

To add one: a class of its config here, a line in `MODELS`, and a file of its network
unless `Decoder` computes it. Everything else reads `ModelConfig` and calls
`build_policy`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flax import nnx

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.decoder import Decoder


@dataclasses.dataclass(frozen=True)
class Qwen3Config(ModelConfig):
    """Sizes and constants of a dense Qwen-3."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    qkv_bias = False
    qk_norm = True
    hf_constants = {"attention_bias": False, "use_sliding_window": False}  # noqa: RUF012
    default_head_dim = 128


@dataclasses.dataclass(frozen=True)
class Qwen2Config(ModelConfig):
    """Sizes and constants of a Qwen-2 or Qwen-2.5."""

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
    qkv_bias = True
    qk_norm = False
    hf_constants = {"use_sliding_window": False}  # noqa: RUF012  (never changed)


@dataclasses.dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """Sizes and constants of a Llama (2, 3.x), SmolLM2 or TinyLlama."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    qkv_bias = False
    qk_norm = False
    hf_constants = {"attention_bias": False, "mlp_bias": False}  # noqa: RUF012
    hf_defaults = ModelConfig.hf_defaults | {"max_position_embeddings": 2048}


class Family(NamedTuple):
    """A family of models.

    Attributes:
      config: its description, a subclass of `ModelConfig`.
      network: `(config, *, dtype, remat, attention, rngs)` -> its module, with the
        methods of `Decoder`.
    """

    config: type[ModelConfig]
    network: Callable[..., nnx.Module]


def read_config(hf: Mapping[str, Any]) -> ModelConfig:
    """Config of a parsed `config.json` (transformers 4 or 5).

    Raises:
      ValueError: of a family that is not in `MODELS`, or see `ModelConfig.from_hf`.
    """
    model_type = hf.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODELS:
        raise ValueError(
            f"model_type = {model_type!r} is not implemented; only "
            f"{', '.join(map(repr, MODELS))} are"
        )
    return MODELS[model_type].config.from_hf(hf)


def new_config(model_type: str = "qwen2", **fields) -> ModelConfig:
    """Config of a model that is made from nothing.

    Args:
      model_type: entry of `MODELS`.
      fields: of `ModelConfig`.
    """
    return MODELS[model_type].config(**fields)


def build_network(config: ModelConfig, **how) -> nnx.Module:
    """The module of a model; `how` are the keyword arguments of `Family.network`."""
    return MODELS[config.model_type].network(config, **how)


MODELS = {
    "qwen2": Family(Qwen2Config, Decoder),
    "qwen3": Family(Qwen3Config, Decoder),
    "llama": Family(LlamaConfig, Decoder),
}
