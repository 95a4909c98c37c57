"""Shapes of published checkpoints, for planning without their files.

The values are those of each repository's `config.json` and `generation_config.json` on
the Hugging Face hub. Whoever has the files uses the files.
"""

from ragen_jax.models.config import Qwen2Config

_SHARED = {
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32_768,
    "eos_token_ids": (151_645, 151_643),
    "bos_token_id": 151_643,
    "pad_token_id": 151_643,
}

# Hub id -> shape.
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B-Instruct": Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        **_SHARED,
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": Qwen2Config(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        head_dim=128,
        tie_word_embeddings=True,
        **_SHARED,
    ),
    "Qwen/Qwen2.5-3B-Instruct": Qwen2Config(
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=11_008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=128,
        tie_word_embeddings=True,
        **_SHARED,
    ),
    "Qwen/Qwen2.5-7B-Instruct": Qwen2Config(
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        head_dim=128,
        tie_word_embeddings=False,
        **_SHARED,
    ),
}
