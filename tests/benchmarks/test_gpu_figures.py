"""Figures of a decode loop, and three ways to make it worse, each of them found."""

import pytest

from benchmarks import gpu_figures, hlo
from ragen_jax.memory.targets import TARGETS

ROWS, VOCAB, LAYERS = 4, 1000, 2
# Weights of two layers and of the head, half of four caches, logits.
MUST = 2 * 64 * 64 * 2 + 64 * VOCAB * 2 + 4 * ROWS * 32 * 64 * 2 // 2 + ROWS * VOCAB * 4

LAYER = """
  %product.{i} = bf16[4,64]{{1,0}} custom-call(%x.{i}, %weights), custom_call_target="gemm", metadata={{op_name="jit(f)/decode/layer/dot"}}
  %attend.{i} = (bf16[4,64]{{1,0}}, bf16[4,32,64]{{2,1,0}}, bf16[4,32,64]{{2,1,0}}) custom-call(%product.{i}, %keys.{i}, %values.{i}), custom_call_target="kernel", output_to_operand_aliasing={{{{1}}: (1, {{}}), {{2}}: (2, {{}})}}, metadata={{op_name="jit(f)/decode/layer/attend"}}
  %x.{j} = bf16[4,64]{{1,0}} get-tuple-element(%attend.{i}), index=0
  %keys.{j} = bf16[4,32,64]{{2,1,0}} get-tuple-element(%attend.{i}), index=1
  %values.{j} = bf16[4,32,64]{{2,1,0}} get-tuple-element(%attend.{i}), index=2
"""  # noqa: E501
SAMPLE = """
  %logits = f32[4,1000]{1,0} custom-call(%x.2, %table), custom_call_target="gemm", metadata={op_name="jit(f)/decode/logits"}
  %sums = f32[4]{0} fusion(%logits), kind=kInput, calls=%reduced, metadata={op_name="jit(f)/decode/sum"}
"""  # noqa: E501
AGAIN = """
  %tops = f32[4]{0} fusion(%logits), kind=kInput, calls=%reduced, metadata={op_name="jit(f)/decode/max"}
"""  # noqa: E501
COPY = """
  %copied = bf16[4,32,64]{2,1,0} copy(%keys.2), metadata={op_name="jit(f)/decode/layer/copy"}
"""  # noqa: E501
GATHER = """
  %whole = f32[4,1000]{1,0} all-gather(%sums), replica_groups=[1,8]<=[8], dimensions={1}
"""


def decode_text(*worse: str) -> str:
    """Five tokens of four rows by two layers, and what makes it worse."""
    layers = "".join(LAYER.format(i=i, j=i + 1) for i in range(LAYERS))
    return f"""HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum.0 = f32[] add(%a, %b)
}}

%reduced (scores: f32[4,1000]) -> f32[4] {{
  %scores = f32[4,1000]{{1,0}} parameter(0)
  %zero = f32[] constant(0)
  ROOT %reduced.0 = f32[4]{{0}} reduce(%scores, %zero), dimensions={{1}}, to_apply=%add
}}

%body (c: (bf16[4,64])) -> (bf16[4,64]) {{
  %c = (bf16[4,64]{{1,0}}) parameter(0)
  %x.0 = bf16[4,64]{{1,0}} get-tuple-element(%c), index=0
  %weights = bf16[64,64]{{1,0}} get-tuple-element(%c), index=1
  %table = bf16[1000,64]{{1,0}} get-tuple-element(%c), index=2
  %keys.0 = bf16[4,32,64]{{2,1,0}} get-tuple-element(%c), index=3
  %values.0 = bf16[4,32,64]{{2,1,0}} get-tuple-element(%c), index=4
{layers}{SAMPLE}{"".join(worse)}
  ROOT %out = (bf16[4,64]{{1,0}}) tuple(%x.2)
}}

%condition (d: (bf16[4,64])) -> pred[] {{
  %d = (bf16[4,64]{{1,0}}) parameter(0)
  ROOT %more = pred[] constant(true)
}}

ENTRY %main (p: (bf16[4,64])) -> (bf16[4,64]) {{
  %p = (bf16[4,64]{{1,0}}) parameter(0)
  ROOT %loop = (bf16[4,64]{{1,0}}) while(%p), condition=%condition, body=%body, backend_config={{"known_trip_count":{{"n":"5"}}}}
}}
"""  # noqa: E501


def figures(*worse: str) -> dict:
    text = decode_text(*worse)
    program = hlo.Program(text)
    decode = gpu_figures.decode_figures(
        program,
        num_layers=LAYERS,
        logits_shape=(ROWS, VOCAB),
        must_move=MUST,
        live=0.5,
    )
    return decode | {
        "copies": gpu_figures.copies(program, ROWS * 32 * 64 * 2),
        "exchanges": gpu_figures.exchanges(text, gpus_per_host=4),
    }


def test_a_token_of_every_row():
    found = figures()
    assert found["kernels"] == 6
    assert found["kernels_per_layer"] == 2
    assert found["logits_passes"] == 2
    assert found["copies"] == found["exchanges"] == []
    # Beside what must move: activations, and logits that are read once more.
    beside = 16_000 + 2 * 4 * 4 * 64 * 2 + 4 * 64 * 2 + 4 * 4
    assert found["bytes"] == MUST + beside
    assert found["ratio"] == pytest.approx(1 + beside / MUST)


def test_a_copy_of_the_cache_is_found():
    found = figures(COPY)
    assert found["copies"] == [{"bytes": 16_384, "depth": 1, "count": 1}]
    assert found["kernels_per_layer"] == 2.5


def test_logits_that_are_read_twice_are_found():
    assert figures(AGAIN)["logits_passes"] == 3


def test_an_exchange_of_every_token_is_found():
    (one,) = figures(GATHER)["exchanges"]
    assert one == {
        "kind": "all-gather",
        "where": "between hosts",
        "depth": 1,
        "open_depth": 0,
        "is_innermost": False,
        "count": 5,
        # Seven eighths come from the others.
        "bytes": 5 * 14_000,
    }


def test_a_program_that_decodes_nothing_is_refused():
    text = decode_text().replace("/decode/", "/read/")
    with pytest.raises(ValueError, match="stands in the scope 'decode'"):
        gpu_figures.busiest_loop(hlo.Program(text), "decode")
    assert len(gpu_figures.busiest_loop(hlo.Program(text), "read")) == 6


def test_layers_are_passes_forward_and_backward():
    text = decode_text().replace("/decode/", "/jvp(layer)/").replace("/layer/", "/")
    (forward,) = gpu_figures.layer_passes(hlo.Program(text), num_layers=5)
    assert (forward["pass"], forward["kernels"]) == ("forward", 6)
    text = text.replace("/jvp(layer)/", "/transpose(jvp(layer))/")
    (backward,) = gpu_figures.layer_passes(hlo.Program(text), num_layers=5)
    assert backward["pass"] == "backward"
    assert gpu_figures.layer_passes(hlo.Program(text), num_layers=6) == []


def test_what_binds_is_the_longest():
    target = TARGETS["h100"]
    of = {"moved": 3.35232e12, "arithmetic": 0.0, "launches": 10}
    found = gpu_figures.least_seconds(**of, target=target)
    assert (found["least"], found["binds"]) == (1.0, "bytes")
    of = {"moved": 0.0, "arithmetic": 989.4e12 / 2, "launches": 10}
    found = gpu_figures.least_seconds(**of, target=target)
    assert (found["least"], found["binds"]) == (0.5, "arithmetic")


def test_the_largest_buffers_with_the_lines_they_come_from():
    report = """Memory Space: default (color=0)
Total bytes: 344699705 (328.73MiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
   15.62KiB( 60%);   15.62KiB;          512;        2; f32[4,1000], 2\u00d7f32[4]
   16.12KiB( 99%);     512.0B;            0;        1; bf16[4,64]
"""
    found = gpu_figures.largest_buffers(report, hlo.Program(decode_text()), 1)
    assert found == [{"bytes": 15_994, "array": "f32[4,1000]", "source": ""}]
