"""Shapes of published checkpoints, for planning without their files.

The values are those of each repository's `config.json` and `generation_config.json` on
the Hugging Face hub. Where the files are present they are read instead.
"""

from ragen_jax.models.config import Llama3Rope, ModelConfig
from ragen_jax.models.families import new_config
from ragen_jax.models.vision_config import VisionConfig

_QWEN = {
    "vocab_size": 151_936,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "eos_token_ids": (151_645, 151_643),
    "bos_token_id": 151_643,
    "pad_token_id": 151_643,
}


def _sizes(width, inner, layers, heads, kv_heads, head_dim):
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


def _qwen2(*sizes: int, **others) -> ModelConfig:
    fields = _QWEN | {"max_position_embeddings": 32_768} | _sizes(*sizes)
    return new_config("qwen2", **(fields | others))


def _qwen25_vl(*sizes: int) -> ModelConfig:
    fields = _QWEN | {"max_position_embeddings": 128_000} | _sizes(*sizes)
    tower = VisionConfig(
        depth=32,
        hidden_size=1280,
        intermediate_size=3420,
        num_heads=16,
        out_hidden_size=fields["hidden_size"],
    )
    return new_config("qwen2_5_vl", **fields, vision=tower)


def _qwen3(*sizes: int, **others) -> ModelConfig:
    fields = _QWEN | {"max_position_embeddings": 40_960} | _sizes(*sizes)
    return new_config("qwen3", **(fields | others))


def _smollm2(*sizes: int, rope_theta=100_000.0, initializer_range=0.02) -> ModelConfig:
    return new_config(
        "llama",
        vocab_size=49_152,
        rope_theta=rope_theta,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        initializer_range=initializer_range,
        eos_token_ids=(2,),
        bos_token_id=1,
        pad_token_id=2,
        **_sizes(*sizes),
    )


def _llama32(*sizes: int) -> ModelConfig:
    return new_config(
        "llama",
        vocab_size=128_256,
        rope_theta=500_000.0,
        rope_scaling=Llama3Rope(
            factor=32.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        ),
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        max_position_embeddings=131_072,
        eos_token_ids=(128_001, 128_008, 128_009),
        bos_token_id=128_000,
        **_sizes(*sizes),
    )


# Hub id -> shape.
PUBLISHED_MODELS = {
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen2(896, 4864, 24, 14, 2, 64),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen2(1536, 8960, 28, 12, 2, 128),
    "Qwen/Qwen2.5-3B-Instruct": _qwen2(2048, 11_008, 36, 16, 2, 128),
    "Qwen/Qwen2.5-7B-Instruct": _qwen2(
        *(3584, 18_944, 28, 28, 4, 128), vocab_size=152_064, tie_word_embeddings=False
    ),
    "Qwen/Qwen2.5-VL-3B-Instruct": _qwen25_vl(2048, 11_008, 36, 16, 2, 128),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, 8, 128),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, 8, 128),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, 8, 128),
    "Qwen/Qwen3-8B": _qwen3(4096, 12_288, 36, 32, 8, 128, tie_word_embeddings=False),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _smollm2(
        *(576, 1536, 30, 9, 3, 64), initializer_range=1 / 24
    ),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _smollm2(960, 2560, 32, 15, 5, 64),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _smollm2(
        *(2048, 8192, 24, 32, 32, 64), rope_theta=130_000.0
    ),
    "meta-llama/Llama-3.2-1B-Instruct": _llama32(2048, 8192, 16, 32, 8, 64),
    "meta-llama/Llama-3.2-3B-Instruct": _llama32(3072, 8192, 28, 24, 8, 128),
}
