"""FLOPs by formula against a count by hand, and the table of peaks."""

import dataclasses

import jax
import pytest

from benchmarks import flops
from ragen_jax.memory.published import PUBLISHED_MODELS
from ragen_jax.models.policy import abstract_params
from ragen_jax.program.build import num_params


def by_hand(model, row_tokens, num_trained):
    """Twice the multiplications of every product of a row, and twice that again for
    the gradients; a query sees the tokens up to itself."""
    width, inner, head = model.hidden_size, model.intermediate_size, model.head_dim
    queries = model.num_attention_heads * head
    keys = model.num_key_value_heads * head
    layer = 2 * width * queries + 2 * width * keys + 3 * width * inner
    output = num_trained * width * model.vocab_size
    pairs = row_tokens * (row_tokens + 1) // 2
    attention = model.num_hidden_layers * 2 * queries * pairs
    return 3 * 2 * (row_tokens * model.num_hidden_layers * layer + output + attention)


@pytest.mark.parametrize("trained", [1.0, 0.3])
@pytest.mark.parametrize("is_tied", [True, False])
def test_the_formula_counts_the_products(is_tied, trained):
    """Norms and biases, which are not products, are a thousandth."""
    model = PUBLISHED_MODELS["Qwen/Qwen2.5-0.5B-Instruct"]
    model = dataclasses.replace(model, tie_word_embeddings=is_tied)
    count = num_params(jax.tree.map(lambda x: x, abstract_params(model)))
    actual = 1000 * flops.train_flops_per_token(model, count, 1000, trained)
    assert actual == pytest.approx(by_hand(model, 1000, 1000 * trained), rel=2e-3)


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756.5e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("cpu", None),
    ],
)
def test_peaks_go_by_the_device_s_name(kind, peak):
    assert flops.data_sheet_peak(kind) == peak
