"""Random networks that see, of two shapes, with rows and pictures for them."""

import copy

import jax
import numpy as np

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.policy import abstract_params

PICTURE, START, END = 100, 101, 102
PICTURE_SIZE = (112, 84)
# Rows and columns of a picture's embeddings.
GRID = (4, 3)
NUM_PARTS = 12
_TOKENS = {
    "image_token_id": PICTURE,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "video_token_id": 103,
}
_CONFIGS = {
    "small": {
        "model_type": "qwen2_5_vl",
        "vocab_size": 120,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]},
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "vision_config": {
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 44,
            "num_heads": 2,
            "out_hidden_size": 48,
            "fullatt_block_indexes": [1],
        },
        **_TOKENS,
    },
    # Tied, other sections, windows of one embedding, all layers but one within them.
    "other": {
        "model_type": "qwen2_5_vl",
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "tie_word_embeddings": True,
        "eos_token_id": 3,
        "vision_config": {
            "depth": 2,
            "hidden_size": 48,
            "intermediate_size": 100,
            "num_heads": 3,
            "out_hidden_size": 64,
            "window_size": 28,
            "fullatt_block_indexes": [0],
        },
        **_TOKENS,
    },
}


def hf_config(name: str) -> dict:
    """What `config.json` of a checkpoint holds."""
    return copy.deepcopy(_CONFIGS[name])


def random_params(config: ModelConfig, seed: int = 0):
    """Parameters with logits that differ: norms around 1, the rest by fan-in."""
    random = np.random.RandomState(seed)

    def draw(path, leaf):
        drawn = random.standard_normal(leaf.shape).astype(np.float32)
        if path[-1].key == "scale":
            return 1 + 0.3 * drawn
        fan_in = np.prod(leaf.shape[:-1] if path[-1].key == "kernel" else [100])
        return drawn * (1.5 / fan_in**0.5 if leaf.ndim > 1 else 0.3)

    return jax.tree.map_with_path(draw, abstract_params(config))


def make_rows() -> np.ndarray:
    """Two rows with two pictures each, at the same places."""
    random = np.random.RandomState(1)

    def words(count):
        return list(random.randint(3, 99, count))

    shown = [START, *[PICTURE] * NUM_PARTS, END]
    rows = [[*words(5), *shown, *words(7), *shown, *words(6)] for _ in range(2)]
    return np.array(rows, np.int32)


def make_pictures() -> np.ndarray:
    """Two pictures for each row of `make_rows`."""
    random = np.random.RandomState(2)
    return random.randint(0, 256, (2, 2, *PICTURE_SIZE, 3)).astype(np.uint8)
