"""Arithmetic of a network by formula, and what a device can do.

    forward and backward, per token:   6 N + 12 L H F c

with N the parameters that multiply (an embedding that is only looked up does not, and
the output head does for the trained tokens alone), L layers, H heads of size F, and c
the tokens that a token sees on average: (T + 1) / 2 in rows of T tokens, causal
attention counted once. What is computed twice to save memory counts once. Source: PaLM,
arXiv 2204.02311, appendix B, which counts c = T.
"""

from benchmarks import harness
from ragen_jax.models.config import ModelConfig

# Dense bfloat16 operations per second, of the makers' data sheets; sparsity, which
# some of them assume, not counted. A part of JAX's name of the device -> 10^12 per
# second. The first entry that fits counts.
PEAKS = {
    "H200": 989.4,  # NVIDIA H200 (SXM)
    "H100 PCIe": 756.5,  # NVIDIA H100
    "H100 NVL": 835.5,
    "H100": 989.4,  # SXM
    "B200": 2250.0,  # NVIDIA Blackwell
    "A100": 312.0,  # NVIDIA A100
    "L40S": 362.0,  # NVIDIA L40S
    "L4": 121.0,  # NVIDIA L4
    "RTX 5090": 209.5,  # NVIDIA RTX Blackwell, appendix
    "RTX 4090": 165.2,  # NVIDIA Ada, appendix
    "RTX 3090": 71.0,  # NVIDIA GA102, appendix
}


def data_sheet_peak(device_kind: str) -> float | None:
    """Operations per second by the data sheet; None: the device is not listed."""
    for name, peak in PEAKS.items():
        if name in device_kind:
            return peak * 1e12
    return None


def train_flops_per_token(
    model: ModelConfig, num_params: int, row_tokens: int, trained: float = 1.0
) -> float:
    """Forward and backward, by the formula above.

    Args:
      model: the network's shape.
      num_params: all of its parameters.
      row_tokens: `T`.
      trained: share of the tokens that are trained on.
    """
    table = model.vocab_size * model.hidden_size
    looked_up = 0 if model.tie_word_embeddings else table
    idle = looked_up + (1 - trained) * table
    width = model.num_attention_heads * model.head_dim
    seen = (row_tokens + 1) / 2
    return 6 * (num_params - idle) + 12 * model.num_hidden_layers * width * seen


def matmul_rate(dtype: str, size: int | None = None, repeats: int = 10) -> float:
    """Operations per second of square matrix products, the best of some.

    A GPU is done with 2,048 rows and columns before the next call is there: 8,192.
    """
    import jax
    import jax.numpy as jnp

    size = size or (2048 if jax.default_backend() == "cpu" else 8192)
    matrix = jax.random.normal(jax.random.key(0), (size, size)).astype(dtype)
    multiply = jax.jit(jnp.matmul)
    seconds = harness.least_seconds(lambda: multiply(matrix, matrix), repeats)
    return 2 * size**3 / seconds


def copy_bandwidth() -> float:
    """Bytes per second that are read and written where 256 MiB change in place.

    2 GiB on a GPU, which changes 256 MiB in the time of a few launches.
    """
    import jax
    import jax.numpy as jnp

    size = 2**26 if jax.default_backend() == "cpu" else 2**29
    block = jnp.ones(size, jnp.float32)
    # In place: memory that is new at every call would have to be mapped first.
    change = jax.jit(lambda x: x + 1.0, donate_argnums=0)

    def change_again():
        nonlocal block
        block = change(block)
        return block

    return 2 * block.nbytes / harness.least_seconds(change_again, 10)
