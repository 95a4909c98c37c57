"""The families of models, by the `model_type` of their `config.json`.

To add one: a class of its config here, a line in `MODELS`, and a file of its network
unless `Decoder` computes it. Everything else reads `ModelConfig` and calls
`build_policy`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flax import nnx

from ragen_jax.models.config import ModelConfig, token_ids
from ragen_jax.models.decoder import Decoder
from ragen_jax.models.vision_config import VisionConfig


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


_PICTURE_TOKENS = (
    *("image_token_id", "vision_start_token_id", "vision_end_token_id"),
    "video_token_id",
)


@dataclasses.dataclass(frozen=True)
class Qwen25VLConfig(ModelConfig):
    """Sizes and constants of a Qwen2.5-VL: a Qwen-2.5 that sees pictures.

    Attributes:
      vision: its tower.
      image_token_id: token that stands for a part of a picture.
      vision_start_token_id, vision_end_token_id: tokens around a picture.
      video_token_id: kept for export only.
      mrope_section: pairs of a head that turn by time, by row and by column.
    """

    model_type = "qwen2_5_vl"
    architecture = "Qwen2_5_VLForConditionalGeneration"
    qkv_bias = True
    qk_norm = False
    sees = True
    hf_constants = {"use_sliding_window": False}  # noqa: RUF012  (never changed)

    vision: VisionConfig | None = None
    image_token_id: int = 151_655
    vision_start_token_id: int = 151_652
    vision_end_token_id: int = 151_653
    video_token_id: int = 151_656
    mrope_section: tuple[int, int, int] = (16, 24, 24)

    def __post_init__(self):
        super().__post_init__()
        if self.vision is None:
            raise ValueError("config.json lacks vision_config")
        if self.vision.out_hidden_size != self.hidden_size:
            raise ValueError(
                f"vision_config has out_hidden_size = {self.vision.out_hidden_size}, "
                f"which must be hidden_size = {self.hidden_size}"
            )
        half = self.head_dim // 2
        if len(self.mrope_section) != 3 or sum(self.mrope_section) != half:
            raise ValueError(
                f"mrope_section = {list(self.mrope_section)} must be three numbers "
                f"whose sum is half of head_dim, {half}"
            )

    @classmethod
    def _own_fields(cls, hf: Mapping[str, Any]) -> dict[str, Any]:
        if "vision_config" not in hf:
            raise ValueError("config.json lacks vision_config")
        given = {name: hf[name] for name in _PICTURE_TOKENS if name in hf}
        for name, value in given.items():
            (given[name],) = token_ids(value) or (None,)
        sections = _rope_of(hf).get("mrope_section")
        if sections is not None:
            is_list = isinstance(sections, list)
            if not is_list or not all(type(x) is int and x >= 0 for x in sections):
                raise ValueError(
                    f"mrope_section = {sections!r} must be three whole numbers"
                )
            given["mrope_section"] = tuple(sections)
        vision = VisionConfig.from_hf(_object(hf, "vision_config"))
        return given | {"vision": vision}

    @classmethod
    def _text_keys(cls, hf: Mapping[str, Any]) -> Mapping[str, Any]:
        # transformers 5 writes them into a section of their own. Sections of heads are
        # this family's own way to turn them; the rest is as in Qwen-2.5.
        rope = dict(_rope_of(hf))
        rope.pop("mrope_section", None)
        if rope.get("rope_type", rope.get("type")) == "mrope":
            rope = {
                key: x for key, x in rope.items() if key not in ("rope_type", "type")
            }
        text = {**hf, **_object(hf, "text_config")}
        return text | {"rope_parameters": rope, "rope_scaling": None}

    def to_hf(self) -> dict[str, Any]:
        # Where the key is missing, transformers takes an id of Qwen's own vocabulary.
        hf = {"bos_token_id": None} | super().to_hf()
        del hf["vision"]
        sections = {"type": "mrope", "mrope_section": list(hf.pop("mrope_section"))}
        return hf | {"vision_config": self.vision.to_hf(), "rope_scaling": sections}


def _rope_of(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    text = _object(hf, "text_config") or hf
    return {**_object(text, "rope_scaling"), **_object(text, "rope_parameters")}


def _object(hf: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object of a file; empty where it has none."""
    value = hf.get(name)
    if not isinstance(value, Mapping | None):
        raise ValueError(f"{name} = {value!r} must be an object")
    return value or {}


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


def check_reads_text_alone(config: ModelConfig) -> None:
    """Refuse a network that sees, where nothing can show it pictures.

    Raises:
      ValueError: says which network it is.
    """
    if config.sees:
        raise ValueError(
            f"a model of {config.model_type!r} sees pictures, which clients cannot "
            "send here; use a model that reads text alone"
        )


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


def _vision_decoder(config: ModelConfig, **how) -> nnx.Module:
    # Models of text do without it.
    from ragen_jax.models.vision_decoder import VisionDecoder

    return VisionDecoder(config, **how)


MODELS = {
    "qwen2": Family(Qwen2Config, Decoder),
    "qwen3": Family(Qwen3Config, Decoder),
    "qwen2_5_vl": Family(Qwen25VLConfig, _vision_decoder),
    "llama": Family(LlamaConfig, Decoder),
}
