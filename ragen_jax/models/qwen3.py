"""Dense Qwen-3: no biases, each head of q and k normalized (arXiv 2505.09388).

The size of a head is independent of the width, 128 in every published model.
"""

import dataclasses

from ragen_jax.models.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Qwen3Config(ModelConfig):
    """Sizes and constants of a dense Qwen-3."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    qkv_bias = False
    qk_norm = True
    hf_constants = {"attention_bias": False, "use_sliding_window": False}  # noqa: RUF012
    default_head_dim = 128
