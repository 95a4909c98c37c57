"""Random adapters that any machine can make again from a seed, and networks for them.

In the shapes of PEFT (`A` [rank, in], `B` [out, rank]), by the Hugging Face name of the
matrix they change, and large enough that the change matters as much as the matrix.
"""

import functools
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.models.families import new_config, read_config
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.lora import abstract_adapters
from tests.models.random_models import CASES, hf_shapes, make_tensors, write_folder

ALPHA = 12.0
RANK = 5
# The case whose adapted logits PEFT has computed, and the matrices adapted there.
PEFT_CASES = {
    "own_head_size": ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"),
    "small_tied": (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ),
    "qwen3_tied": ("q_proj", "k_proj", "o_proj", "gate_proj", "down_proj"),
    "llama_tied": ("q_proj", "v_proj", "o_proj", "up_proj"),
}
# Every size differs, so that a shape tells which matrix it belongs to.
DISTINCT = new_config(
    vocab_size=89,
    hidden_size=40,
    intermediate_size=72,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    initializer_range=0.2,
)
# Sizes that a mesh of two by two by two divides.
EVEN = new_config(
    vocab_size=16,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    tie_word_embeddings=True,
    initializer_range=0.3,
)


def num_adapter_params(config, lora):
    return sum(x.size for x in jax.tree.leaves(abstract_adapters(config, lora)))


@functools.cache
def load_case(name):
    """Config and base of a case of `random_models`, and its tensors."""
    tensors = make_tensors(CASES[name])
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_checkpoint(write_folder(Path(folder), CASES[name], tensors))
    return *loaded, tensors


def make_adapters(hf_config, names, *, rank: int = RANK, seed: int = 0):
    """Matrix name -> (A, B), float32, for the matrices called `names` in each layer."""
    shapes = hf_shapes(read_config(hf_config))
    random = np.random.RandomState(seed)
    adapters = {}
    for name in sorted(shapes):
        if name.split(".")[-2] not in names or not name.endswith("weight"):
            continue
        out, into = shapes[name]
        a = random.standard_normal((rank, into)) / into**0.5
        b = 0.5 * random.standard_normal((out, rank)) / rank**0.5
        adapters[name] = (a.astype(np.float32), b.astype(np.float32))
    return adapters


def as_our_tree(adapters):
    """The same adapters as the parameter tree of `build_lora_policy`."""
    tree = {}
    for name, (a, b) in adapters.items():
        _, *parents, _ = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node["lora_a"], node["lora_b"] = a.T, b.T
    return tree


def merged_tensors(tensors, adapters, scale: float):
    """The oracle: `W + B A * scale` in float64, by Hugging Face name."""
    merged = dict(tensors)
    for name, (a, b) in adapters.items():
        change = b.astype(np.float64) @ a.astype(np.float64) * scale
        merged[name] = (tensors[name] + change).astype(np.float32)
    return merged


def full_logits(policy, params, tokens):
    """Uncached logits [B, Q, V]."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)

    @jax.jit
    def compute(params, tokens):
        hidden, cache = policy.forward(params, tokens, positions, None)
        assert cache is None
        return policy.logits(params, hidden)

    return np.asarray(compute(params, tokens))


def assert_close(ours, theirs, tolerance=1e-5):
    """Equal up to a share of the largest logit."""
    atol = tolerance * np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


def random_adapters(policy, key):
    """As after some training: the second matrices are no longer zero."""
    leaves, structure = jax.tree.flatten(policy.init_adapters(key))
    keys = jax.random.split(key, len(leaves))
    noise = [
        0.3 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noise)
