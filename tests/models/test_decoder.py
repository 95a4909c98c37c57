"""The network: recorded parity, cached = uncached, contracts of the parameter tree."""

import dataclasses
import math
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models import attention
from ragen_jax.models.config import Llama3Rope
from ragen_jax.models.decoder import REMAT_POLICIES
from ragen_jax.models.families import new_config, read_config
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.kv_cache import grow_cache, init_cache
from ragen_jax.models.layers import LOGICAL_AXES
from ragen_jax.models.policy import abstract_params, build_policy
from tests.models.random_models import (
    CASES,
    make_tensors,
    make_tokens,
    our_logits,
    real_rows,
    write_folder,
)

REFERENCE = Path(__file__).parent / "reference"


def load_case(name, tmp_path):
    hf_config = CASES[name]
    return load_checkpoint(write_folder(tmp_path, hf_config, make_tensors(hf_config)))


@pytest.fixture(scope="module", params=["small_tied", "qwen3_tied"])
def small(request, tmp_path_factory):
    return load_case(request.param, tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_recorded_ones_of_transformers(name, tmp_path):
    config, params = load_case(name, tmp_path)
    with np.load(REFERENCE / f"{name}.npz", allow_pickle=False) as file:
        recorded = file["logits"]
    ours = our_logits(config, params, make_tokens(config.vocab_size))
    assert ours.dtype == np.float32
    assert 2 < recorded.std() < 5
    np.testing.assert_allclose(real_rows(ours), recorded, rtol=0, atol=1e-4)


def test_padding_changes_nothing_before_it(small):
    config, params = small
    tokens = make_tokens(config.vocab_size)
    garbage = np.where(tokens == 0, -7, tokens)  # may hit real zeros: restored below
    is_pad = np.zeros_like(tokens, bool)
    for row, length in enumerate((24, 9, 17)):
        is_pad[row, length:] = True
    garbage = np.where(is_pad, garbage, tokens)
    assert (garbage != tokens).any()
    np.testing.assert_array_equal(
        real_rows(our_logits(config, params, tokens)),
        real_rows(our_logits(config, params, garbage)),
    )


# Tokens appended per call and row: a prompt, three decoded tokens, a message, one more.
APPENDS = ((4, 7, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), (2, 1, 5), (1, 1, 1))


@pytest.mark.parametrize(
    "name", ["small_tied", "own_head_size", "qwen3_untied", "llama3_rope"]
)
def test_cached_equals_uncached(name, tmp_path):
    config, params = load_case(name, tmp_path)
    policy = build_policy(config, dtype="float32")
    totals = np.sum(APPENDS, axis=0)
    random = np.random.RandomState(3)
    tokens = random.randint(0, config.vocab_size, (3, totals.max()))
    expected = our_logits(config, params, tokens)

    @jax.jit
    def step(tokens, positions, cache):
        hidden, cache = policy.forward(params, tokens, positions, cache)
        return policy.logits(params, hidden), cache

    cache = init_cache(config, 3, 10, jnp.float32)
    starts = np.zeros(3, np.int32)
    for counts in APPENDS:
        if starts.max() + max(counts) > cache.num_slots:
            cache = grow_cache(cache, 20)
        width = max(counts)
        chunk = np.full((3, width), config.vocab_size - 1)  # the padding is garbage
        for row, count in enumerate(counts):
            chunk[row, :count] = tokens[row, starts[row] : starts[row] + count]
        positions = starts[:, None] + np.arange(width)[None]
        logits, cache = step(chunk, positions, cache)
        ours = np.asarray(logits)
        for row, count in enumerate(counts):
            np.testing.assert_allclose(
                ours[row, :count],
                expected[row, starts[row] : starts[row] + count],
                rtol=0,
                atol=1e-5 * np.abs(expected).max(),
            )
        starts = starts + np.array(counts, np.int32)


def test_decoding_compiles_once(small):
    chex.clear_trace_counter()  # it counts by the text of the function
    config, params = small
    policy = build_policy(config, dtype="float32")

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(params, tokens, positions, cache):
        hidden, cache = policy.forward(params, tokens, positions, cache)
        return policy.logits(params, hidden), cache

    cache = init_cache(config, 2, 8, jnp.float32)
    for i in range(3):
        tokens = jnp.full((2, 1), i)
        positions = jnp.array([[i], [2 * i]], jnp.int32)
        logits, cache = step(params, tokens, positions, cache)
    assert logits.shape == (2, 1, config.vocab_size)


@pytest.mark.parametrize("name", REMAT_POLICIES)
def test_recomputed_layers_give_the_same_gradient(small, name):
    config, params = small
    tokens = jnp.asarray(make_tokens(config.vocab_size))
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)

    def gradient(remat):
        policy = build_policy(config, dtype="float32", remat=remat)

        def loss(params):
            hidden, _ = policy.forward(params, tokens, positions, None)
            return jnp.mean(jnp.square(policy.logits(params, hidden)))

        traced = jax.jit(jax.grad(loss)).trace(params)
        return traced.lower().compile()(params), "remat" in str(traced.jaxpr)

    plain, plain_recomputes = gradient(remat=None)
    again, again_recomputes = gradient(remat=name)
    assert again_recomputes
    assert not plain_recomputes
    chex.assert_trees_all_close(plain, again, rtol=1e-4, atol=1e-5)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(plain))


def test_bfloat16_is_close_and_casting_early_changes_nothing(small):
    config, params = small
    tokens = jnp.asarray(make_tokens(config.vocab_size))
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)
    policy = build_policy(config, dtype="bfloat16")

    @jax.jit
    def logits(params):
        hidden, _ = policy.forward(params, tokens, positions, None)
        assert hidden.dtype == jnp.bfloat16
        return policy.logits(params, hidden)

    late, early = logits(params), logits(policy.cast_params(params))
    assert late.dtype == jnp.float32
    np.testing.assert_array_equal(late, early)
    exact = our_logits(config, params, np.asarray(tokens))
    error = np.abs(real_rows(np.asarray(late)) - real_rows(exact))
    assert 0 < error.mean() < 0.1  # about 1 % of the standard deviation of 3


def test_fresh_parameters(small):
    config, loaded = small
    policy = build_policy(config, dtype="bfloat16")
    init = jax.jit(policy.init)
    params, again, other = (init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    chex.assert_trees_all_equal_shapes(params, loaded, abstract_params(config))
    chex.assert_trees_all_equal(params, again)
    table, other_table = (p["embed_tokens"]["weight"] for p in (params, other))
    assert np.abs(table - other_table).max() > 0
    kernel = params["layers"]["0"]["mlp"]["up_proj"]["kernel"]
    assert abs(kernel.std() / config.initializer_range - 1) < 0.05


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_names_its_axes(name):
    config = read_config(CASES[name])
    params, axes = abstract_params(config), build_policy(config).logical_axes
    is_leaf = lambda x: type(x) is tuple  # noqa: E731
    assert jax.tree.structure(params) == jax.tree.structure(axes, is_leaf=is_leaf)
    leaves = zip(
        jax.tree.leaves(params), jax.tree.leaves(axes, is_leaf=is_leaf), strict=True
    )
    for parameter, names in leaves:
        assert len(names) == len(parameter.shape)
        assert set(names) <= set(LOGICAL_AXES)
    sizes = {"vocab": config.vocab_size, "embed": config.hidden_size}
    table = axes["embed_tokens"]["weight"]
    assert params["embed_tokens"]["weight"].shape == tuple(sizes[n] for n in table)


def test_config_survives_a_round_trip():
    for hf_config in CASES.values():
        config = read_config(hf_config)
        assert read_config(config.to_hf()) == config
        several = read_config(hf_config | {"eos_token_id": [5, 6]})
        assert several.eos_token_ids == (5, 6)
        assert read_config(several.to_hf()) == several


LLAMA3 = CASES["llama3_rope"]["rope_scaling"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2' is not implemented"),
        ({"hidden_act": "gelu"}, "'gelu' is not implemented"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope scaling 'linear'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "scaling 'dynamic'"),
        (LLAMA3 | {"factor": 0}, "'llama3' has factor = 0; it must be"),
        (LLAMA3 | {"factor": "8"}, "'llama3' has factor = '8'"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "must be below high_freq_factor"),
        (LLAMA3 | {"beta_fast": 32}, "hold 'beta_fast', which is not implemented"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks high_freq"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"hidden_size": "64"}, "hidden_size = '64'"),
        ({"vocab_size": True}, "vocab_size = True"),
        ({"head_dim": 15}, "head_dim = 15 must be even"),
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, "no head_dim"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rope_theta": None}, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"eos_token_id": [-1]}, "eos_token_id"),
    ],
)
def test_config_refuses_what_is_not_implemented(change, message):
    if "low_freq_factor" in change:
        change = {"rope_scaling": change}
    with pytest.raises(ValueError, match=message):
        read_config(CASES["small_tied"] | change)


def test_config_names_what_is_missing():
    hf_config = dict(CASES["small_tied"])
    del hf_config["vocab_size"]
    with pytest.raises(ValueError, match=r"lacks vocab_size"):
        read_config(hf_config)


def test_a_family_has_its_own_rules():
    usual = CASES["qwen3_usual_head_size"]
    assert "head_dim" not in usual
    config = read_config(usual)
    assert config.head_dim == config.to_hf()["head_dim"] == 128
    with pytest.raises(ValueError, match="attention_bias = True is not implemented"):
        read_config(usual | {"attention_bias": True})
    half = usual | {"hidden_size": 384, "head_dim": 64}
    assert read_config(half | {"model_type": "qwen2"}).head_dim == 64
    with pytest.raises(ValueError, match="'qwen3_moe' is not implemented"):
        read_config(usual | {"model_type": "qwen3_moe"})


def test_a_llama_has_no_biases():
    usual = CASES["llama_tied"]
    for name in ("attention_bias", "mlp_bias"):
        with pytest.raises(ValueError, match=f"{name} = True is not implemented"):
            read_config(usual | {name: True})
    del (shorter := dict(usual))["max_position_embeddings"]
    assert read_config(shorter).max_position_embeddings == 2048


def test_rotations_of_llama_3_are_slowed_by_wavelength():
    """The released code's cases, one frequency at a time, at a published size."""
    scaling = Llama3Rope(
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    plain = [500_000.0 ** (-i / 64) for i in range(0, 64, 2)]
    expected = []
    for frequency in plain:
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            expected.append(frequency)
        elif wavelength > 8192:
            expected.append(frequency / 32)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected.append((1 - smooth) * frequency / 32 + smooth * frequency)
    kinds = np.sign(np.array(expected) / np.array(plain) - [[1], [1 / 32 + 1e-9]])
    assert len(np.unique(kinds, axis=1).T) == 3
    angles = attention.rope_angles(jnp.array([[1]]), 64, 500_000.0, scaling)
    found = np.arctan2(*(np.asarray(x, np.float64)[0, 0] for x in angles[::-1]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
    assert plain[-1] / found[-1] == pytest.approx(32, rel=1e-4)


def test_families_differ_only_where_they_say(small):
    """The same sizes: one has biases of q, k and v, one norms of heads, one neither."""
    config, _ = small
    trees = {
        family: build_policy(
            new_config(family, **dataclasses.asdict(config))
        ).logical_axes
        for family in ("qwen2", "qwen3", "llama")
    }
    first, second, third = (
        {
            "/".join(key.key for key in path[2:])
            for path, _ in jax.tree.leaves_with_path(
                tree["layers"], is_leaf=lambda x: type(x) is tuple
            )
        }
        for tree in trees.values()
    )
    assert third == first & second
    assert first - third == {"q_proj/bias", "k_proj/bias", "v_proj/bias"}
    assert second - third == {"q_norm/scale", "k_norm/scale"}
