"""Random models of every family that any machine can make again from a seed.

Weights come from NumPy's frozen `RandomState` stream, tensor by tensor in the order of
their names, so recorded logits need no recorded weights. They are scaled by fan-in such
that logits have a standard deviation of about 3: with the usual 0.02 a wrong network
would still agree to four decimals.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.families import read_config
from ragen_jax.models.policy import build_policy

# As config.json would have them; heads/kv heads, head size, tying, theta and eps vary.
_BASE = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
    "eos_token_id": 1,
}


def _sizes(vocab, width, inner, layers, heads, kv_heads):
    return {
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


CASES = {
    "small_tied": _BASE
    | _sizes(101, 64, 96, 3, 4, 2)
    | {"tie_word_embeddings": True, "rope_theta": 1e6},
    "qwen_heads_untied": _BASE
    | _sizes(67, 896, 192, 2, 14, 2)
    | {"tie_word_embeddings": False, "rope_theta": 1e6},
    "qwen_heads_tied": _BASE
    | _sizes(67, 896, 192, 2, 14, 2)
    | {"tie_word_embeddings": True, "rope_theta": 1e4},
    "own_head_size": _BASE
    | _sizes(83, 48, 80, 4, 3, 3)
    | {
        "tie_word_embeddings": False,
        "head_dim": 24,
        "rms_norm_eps": 1e-5,
        # the spelling of transformers 5
        "rope_parameters": {"rope_theta": 1e3, "rope_type": "default"},
    },
    "qwen3_tied": _BASE
    | _sizes(101, 64, 96, 3, 4, 2)
    | {"tie_word_embeddings": True, "rope_theta": 1e6}
    | {"model_type": "qwen3", "attention_bias": False, "head_dim": 32},
    "qwen3_untied": _BASE
    | _sizes(67, 320, 192, 2, 10, 2)
    | {"tie_word_embeddings": False, "model_type": "qwen3", "head_dim": 24}
    | {
        "rms_norm_eps": 1e-4,
        "rope_parameters": {"rope_theta": 1e3, "rope_type": "default"},
    },
    # no head_dim: 128, as in transformers
    "qwen3_usual_head_size": _BASE
    | _sizes(83, 48, 80, 4, 3, 1)
    | {"tie_word_embeddings": False, "rope_theta": 1e4, "model_type": "qwen3"},
    # three heads share one of keys and values, as in SmolLM2
    "llama_tied": _BASE
    | _sizes(101, 96, 80, 3, 6, 2)
    | {"tie_word_embeddings": True, "rope_theta": 1e5, "model_type": "llama"}
    | {"rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False},
    "llama_untied": _BASE
    | _sizes(67, 320, 192, 2, 10, 2)
    | {"tie_word_embeddings": False, "model_type": "llama", "head_dim": 24}
    | {"rope_parameters": {"rope_theta": 1e3, "rope_type": "default"}},
    # wavelengths on both sides of the borders 16 and 8, and between them
    "llama3_rope": _BASE
    | _sizes(83, 96, 80, 3, 6, 3)
    | {"tie_word_embeddings": True, "rope_theta": 1e2, "model_type": "llama"}
    | {
        "head_dim": 32,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 2.0,
            "original_max_position_embeddings": 16,
        },
    },
}
LENGTHS = (24, 9, 17)


def make_tensors(hf_config, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 weights by Hugging Face name and in Hugging Face shape."""
    config = read_config(hf_config)
    shapes = hf_shapes(config)
    random = np.random.RandomState(seed)
    tensors = {}
    for name in sorted(shapes):
        noise = random.standard_normal(shapes[name])
        tensors[name] = _scaled(name, noise, config).astype(np.float32)
    return tensors


def _scaled(name: str, noise: np.ndarray, config: ModelConfig) -> np.ndarray:
    if name.endswith("norm.weight"):
        return 1 + 0.1 * noise
    if name.endswith("bias"):
        return 0.3 * noise
    is_head = name == "lm_head.weight" or config.tie_word_embeddings
    if name in ("lm_head.weight", "model.embed_tokens.weight"):
        return noise * (3 / config.hidden_size**0.5 if is_head else 1)
    return noise / noise.shape[1] ** 0.5


def hf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Written out here, not asked of the code under test."""
    width, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * config.head_dim
    kv_heads = config.num_key_value_heads * config.head_dim
    shapes = {
        "model.embed_tokens.weight": (config.vocab_size, width),
        "model.norm.weight": (width,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, width)
    for i in range(config.num_hidden_layers):
        of_family = {
            "qwen2": {
                "self_attn.q_proj.bias": (heads,),
                "self_attn.k_proj.bias": (kv_heads,),
                "self_attn.v_proj.bias": (kv_heads,),
            },
            "qwen3": {
                "self_attn.q_norm.weight": (config.head_dim,),
                "self_attn.k_norm.weight": (config.head_dim,),
            },
            "llama": {},
        }
        layer = of_family[config.model_type] | {
            "self_attn.q_proj.weight": (heads, width),
            "self_attn.k_proj.weight": (kv_heads, width),
            "self_attn.v_proj.weight": (kv_heads, width),
            "self_attn.o_proj.weight": (width, heads),
            "mlp.gate_proj.weight": (inner, width),
            "mlp.up_proj.weight": (inner, width),
            "mlp.down_proj.weight": (width, inner),
            "input_layernorm.weight": (width,),
            "post_attention_layernorm.weight": (width,),
        }
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def write_folder(folder: Path, hf_config, tensors) -> Path:
    """A checkpoint folder, written without any code of the package."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_tokens(vocab_size: int) -> np.ndarray:
    """A right-padded batch; row `b` has `LENGTHS[b]` tokens, the padding is 0."""
    random = np.random.RandomState(1)
    tokens = random.randint(0, vocab_size, (len(LENGTHS), max(LENGTHS)))
    is_real = np.arange(max(LENGTHS))[None] < np.array(LENGTHS)[:, None]
    return np.where(is_real, tokens, 0).astype(np.int32)


def our_logits(config: ModelConfig, params, tokens: np.ndarray) -> np.ndarray:
    policy = build_policy(config, dtype="float32")
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)

    @jax.jit
    def compute(params, tokens, positions):
        hidden, cache = policy.forward(params, tokens, positions, None)
        assert cache is None
        return policy.logits(params, hidden)

    return np.asarray(compute(params, tokens, positions))


def real_rows(logits: np.ndarray) -> np.ndarray:
    """Logits at tokens that are not padding, rows one after the other: [sum, V]."""
    return np.concatenate([logits[b, :n] for b, n in enumerate(LENGTHS)])
