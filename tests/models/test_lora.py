"""Adapters against the base, their merged form, NumPy and PEFT; what is refused."""

import dataclasses
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.models.families import new_config
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.lora import (
    LINEAR_NAMES,
    LoraConfig,
    abstract_adapters,
    adapter_axes,
    build_lora_policy,
)
from ragen_jax.models.policy import abstract_params, build_policy
from tests.models.random_adapters import (
    ALPHA,
    DISTINCT,
    EVEN,
    PEFT_CASES,
    RANK,
    as_our_tree,
    assert_close,
    full_logits,
    load_case,
    make_adapters,
    merged_tensors,
    num_adapter_params,
    random_adapters,
)
from tests.models.random_models import (
    CASES,
    make_tokens,
    our_logits,
    real_rows,
    write_folder,
)

REFERENCE = Path(__file__).parent / "reference"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["small_tied", "own_head_size"])
def test_fresh_adapters_change_nothing(name, dtype):
    config, base, _ = load_case(name)
    policy = build_lora_policy(config, lora=LoraConfig(rank=4), dtype=dtype)
    params = {"base": base, "adapters": policy.init_adapters(jax.random.key(0))}
    tokens = make_tokens(config.vocab_size)
    np.testing.assert_array_equal(
        full_logits(policy, params, tokens),
        full_logits(build_policy(config, dtype=dtype), base, tokens),
    )


@pytest.mark.parametrize("name", CASES)
def test_unmerged_equals_merged_and_numpy(name, tmp_path):
    config, base, tensors = load_case(name)
    lora = LoraConfig(rank=RANK, alpha=ALPHA)
    policy = build_lora_policy(config, lora=lora)
    by_name = make_adapters(CASES[name], LINEAR_NAMES)
    adapters = as_our_tree(by_name)
    oracle = merged_tensors(tensors, by_name, ALPHA / RANK)
    _, expected = load_checkpoint(write_folder(tmp_path, CASES[name], oracle))
    merged = policy.merge(base, adapters)
    chex.assert_trees_all_close(merged, expected, rtol=0, atol=2e-6)

    tokens = make_tokens(config.vocab_size)
    unmerged = full_logits(policy, {"base": base, "adapters": adapters}, tokens)
    assert np.abs(unmerged - our_logits(config, base, tokens)).max() > 1
    for params in (merged, expected):
        assert_close(unmerged, our_logits(config, params, tokens))


@pytest.mark.parametrize("name", PEFT_CASES)
def test_logits_equal_recorded_ones_of_peft(name):
    config, base, _ = load_case(name)
    names = PEFT_CASES[name]
    lora = LoraConfig(rank=RANK, alpha=ALPHA, targets=names)
    policy = build_lora_policy(config, lora=lora)
    adapters = as_our_tree(make_adapters(CASES[name], names))
    tokens = make_tokens(config.vocab_size)
    ours = full_logits(policy, {"base": base, "adapters": adapters}, tokens)
    with np.load(REFERENCE / f"peft_{name}.npz", allow_pickle=False) as file:
        np.testing.assert_allclose(real_rows(ours), file["logits"], rtol=0, atol=1e-4)


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(
    targets=st.lists(st.sampled_from(LINEAR_NAMES), min_size=1, unique=True),
    rank=st.integers(1, 9),
    is_tied=st.booleans(),
)
def test_any_targets(targets, rank, is_tied):
    sizes = {"num_hidden_layers": 1, "tie_word_embeddings": is_tied}
    config = dataclasses.replace(DISTINCT, **sizes)
    lora = LoraConfig(rank=rank, alpha=3.0, targets=tuple(targets))
    policy = build_lora_policy(config, lora=lora)
    base = policy.init(jax.random.key(0))["base"]
    adapters = random_adapters(policy, jax.random.key(1))
    chex.assert_trees_all_equal_shapes(adapters, abstract_adapters(config, lora))
    shapes = abstract_params(config)["layers"]["0"]
    linears = shapes["self_attn"] | shapes["mlp"]
    expected = sum(rank * sum(linears[name]["kernel"].shape) for name in targets)
    assert num_adapter_params(config, lora) == expected

    merged = policy.merge(base, adapters)
    is_changed = jax.tree.map(lambda a, b: bool((a != b).any()), merged, base)
    changed = [path for path, moved in jax.tree.leaves_with_path(is_changed) if moved]
    assert {path[-2].key for path in changed} == set(targets)
    assert {path[-1].key for path in changed} == {"kernel"}
    tokens = make_tokens(config.vocab_size)
    unmerged = full_logits(policy, {"base": base, "adapters": adapters}, tokens)
    assert_close(unmerged, our_logits(config, merged, tokens))


def test_several_adapters_share_one_base():
    """Actor, critic and reference: three networks, one set of large arrays."""
    config, base, _ = load_case("small_tied")
    actor = build_lora_policy(config, lora=LoraConfig(rank=4))
    critic = build_lora_policy(config, lora=LoraConfig(rank=2, targets=("v_proj",)))
    tokens = make_tokens(config.vocab_size)
    before = jax.tree.map(np.copy, base)
    outputs = [
        full_logits(policy, {"base": base, "adapters": adapters}, tokens)
        for policy, adapters in (
            (actor, random_adapters(actor, jax.random.key(0))),
            (critic, random_adapters(critic, jax.random.key(1))),
        )
    ]
    reference = full_logits(build_policy(config), base, tokens)
    assert np.abs(outputs[0] - reference).max() > 0.1
    assert np.abs(outputs[1] - reference).max() > 0.1
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1
    chex.assert_trees_all_equal(base, before)


def test_bfloat16():
    """Float32 adapters on a base of either dtype; casting early changes nothing."""
    config, base, _ = load_case("small_tied")
    policy = build_lora_policy(
        config, lora=LoraConfig(rank=RANK, alpha=ALPHA), dtype="bfloat16"
    )
    adapters = as_our_tree(make_adapters(CASES["small_tied"], LINEAR_NAMES))
    params = {"base": base, "adapters": adapters}
    tokens = make_tokens(config.vocab_size)
    late = full_logits(policy, params, tokens)
    cast = policy.cast_params(params)
    assert (
        cast["adapters"]["layers"]["0"]["mlp"]["up_proj"]["lora_a"].dtype == "bfloat16"
    )
    np.testing.assert_array_equal(late, full_logits(policy, cast, tokens))
    half = {"base": cast["base"], "adapters": adapters}
    np.testing.assert_array_equal(late, full_logits(policy, half, tokens))
    merged = policy.merge(cast["base"], adapters)
    chex.assert_trees_all_equal_dtypes(merged, cast["base"])
    exact = real_rows(our_logits(config, policy.merge(base, adapters), tokens))
    assert 0 < np.abs(real_rows(late) - exact).mean() < 0.1


def test_fresh_adapters():
    lora = LoraConfig(rank=16)
    policy = build_lora_policy(DISTINCT, lora=lora, dtype="bfloat16")
    init = jax.jit(policy.init_adapters)
    one, again, other = (init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert {leaf.dtype for leaf in jax.tree.leaves(one)} == {jnp.dtype("float32")}
    chex.assert_trees_all_equal(one, again)
    up, others_up = (x["layers"]["1"]["mlp"]["up_proj"]["lora_a"] for x in (one, other))
    gate = one["layers"]["1"]["mlp"]["gate_proj"]["lora_a"]
    assert np.abs(up - others_up).max() > 0
    assert np.abs(up - gate).max() > 0
    drawn = [x for x in jax.tree.leaves(one) if np.any(x)]
    assert len(drawn) == DISTINCT.num_hidden_layers * len(LINEAR_NAMES)
    for a in drawn:  # at least 640 numbers: 4 standard errors are 11 %
        assert abs(a.std() * (3 * a.shape[0]) ** 0.5 - 1) < 0.15


def test_sizes_of_a_published_model():
    config = new_config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    attention = 2 * (896 + 896) + 2 * (896 + 128)
    by_hand = 24 * 64 * (attention + 3 * (896 + 4864))
    assert num_adapter_params(config, LoraConfig()) == by_hand == 35_192_832


@pytest.mark.parametrize("config", [EVEN, DISTINCT])
def test_every_adapter_names_its_axes(config):
    lora = LoraConfig(rank=3)
    adapters, axes = abstract_adapters(config, lora), adapter_axes(config, lora)
    is_leaf = lambda x: type(x) is tuple  # noqa: E731
    assert jax.tree.structure(adapters) == jax.tree.structure(axes, is_leaf=is_leaf)
    kernels = build_policy(config).logical_axes["layers"]["1"]
    for module in ("self_attn", "mlp"):
        for name, pair in axes["layers"]["1"][module].items():
            into, out = kernels[module][name]["kernel"]
            assert pair == {"lora_a": (into, "rank"), "lora_b": ("rank", out)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, r"rank = 0 must be an integer of at least 1"),
        ({"rank": 2.0}, r"rank = 2.0"),
        ({"rank": True}, r"rank = True"),
        ({"alpha": 0}, r"alpha = 0 must be a positive number"),
        ({"alpha": float("nan")}, r"alpha = nan"),
        ({"alpha": float("inf")}, r"alpha = inf"),
        ({"alpha": "64"}, r"alpha = '64'"),
        ({"targets": ("q_proj", "query")}, r"holds 'query'; use 'all' or .* k_proj"),
        ({"targets": "q_proj"}, r"targets = 'q_proj' must be 'all' or a tuple"),
        ({"targets": ["q_proj"]}, r"must be 'all' or a tuple"),
        ({"targets": ()}, r"targets = \(\) must be"),
        ({"targets": ("q_proj", "q_proj")}, r"names a matrix twice"),
    ],
)
def test_refused_configs(options, message):
    with pytest.raises(ValueError, match=message):
        LoraConfig(**options)


def test_adapters_of_another_config_are_refused():
    policy = build_lora_policy(EVEN, lora=LoraConfig(rank=3, targets=("q_proj",)))
    base = policy.init(jax.random.key(0))["base"]
    token = jnp.zeros((1, 1), jnp.int32)

    def of(**options):
        made_with = LoraConfig(**options)
        return build_lora_policy(EVEN, lora=made_with).init_adapters(jax.random.key(0))

    for adapters, message in (
        (of(rank=3, targets=("k_proj",)), r"hold the unexpected .*k_proj.*targets"),
        (of(rank=3, targets=("q_proj", "o_proj")), r"hold the unexpected .*o_proj"),
        ({}, r"lack .*q_proj"),
        (
            of(rank=4, targets=("q_proj",)),
            r"shape \(16, 4\), not \(16, 3\); use .*rank",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            policy.merge(base, adapters)
        with pytest.raises(ValueError, match=message):
            policy.forward({"base": base, "adapters": adapters}, token, token, None)
