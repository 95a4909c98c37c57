"""Qwen-2 and Qwen-2.5: biases on q, k and v (Qwen2.5 report, arXiv 2412.15115)."""

import dataclasses

from ragen_jax.models.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Qwen2Config(ModelConfig):
    """Sizes and constants of a Qwen-2 or Qwen-2.5."""

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
    qkv_bias = True
    qk_norm = False
    hf_constants = {"use_sliding_window": False}  # noqa: RUF012  (never changed)
