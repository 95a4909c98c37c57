"""Parity with transformers itself, side by side.

Needs torch and PEFT, which are not run-time dependencies. Without them these tests are
skipped; with RAGEN_JAX_REQUIRE_LIVE=1 in the environment that is a failure instead.
"""

import numpy as np
import pytest

from ragen_jax.models.hf.adapters import save_adapters
from ragen_jax.models.hf.weights import load_checkpoint, save_checkpoint
from ragen_jax.models.lora import LINEAR_NAMES, LoraConfig, build_lora_policy
from tests import commands
from tests.models.random_adapters import (
    ALPHA,
    PEFT_CASES,
    RANK,
    as_our_tree,
    full_logits,
    make_adapters,
)
from tests.models.random_models import (
    CASES,
    make_tensors,
    make_tokens,
    our_logits,
    real_rows,
    write_folder,
)

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", autouse=True)
def _torch():
    commands.need("torch", "peft")


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name, tmp_path):
    from tests.models.torch_logits import torch_logits

    hf_config = CASES[name]
    folder = write_folder(tmp_path, hf_config, make_tensors(hf_config, seed=7))
    tokens = make_tokens(hf_config["vocab_size"])
    theirs = real_rows(torch_logits(folder, tokens))
    ours = real_rows(our_logits(*load_checkpoint(folder), tokens))
    assert 2 < theirs.std() < 5
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        *("small_tied", "own_head_size", "qwen3_tied", "qwen3_usual_head_size"),
        *("llama_untied", "llama3_rope"),
    ],
)
def test_transformers_loads_our_export(name, tmp_path):
    from tests.models.torch_logits import torch_logits

    hf_config = CASES[name]
    tokens = make_tokens(hf_config["vocab_size"])
    before = write_folder(tmp_path / "a", hf_config, make_tensors(hf_config))
    after = tmp_path / "b"
    save_checkpoint(after, *load_checkpoint(before), max_shard_bytes=30_000)
    assert len(list(after.glob("*.safetensors"))) > 1
    np.testing.assert_array_equal(
        torch_logits(after, tokens), torch_logits(before, tokens)
    )


@pytest.mark.parametrize("name", ["own_head_size", "qwen3_untied", "llama_untied"])
def test_we_load_the_export_of_transformers(name, tmp_path):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    theirs = AutoConfig.for_model(**CASES[name])
    model = AutoModelForCausalLM.from_config(theirs).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    config, params = load_checkpoint(tmp_path)
    assert config.model_type == CASES[name]["model_type"]
    assert config.head_dim == 24
    assert config.rope_theta == 1e3
    ours = params["layers"]["1"]["mlp"]["up_proj"]["kernel"].T
    theirs = model.model.layers[1].mlp.up_proj.weight.detach().float().numpy()
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "name",
    [
        *("qwen_heads_untied", "own_head_size", "small_tied", "qwen3_untied"),
        "llama_tied",
    ],
)
def test_transformers_loads_merged_adapters(name, tmp_path):
    from tests.models.torch_logits import torch_logits

    hf_config = CASES[name]
    tokens = make_tokens(hf_config["vocab_size"])
    folder = write_folder(tmp_path / "base", hf_config, make_tensors(hf_config))
    config, base = load_checkpoint(folder)
    policy = build_lora_policy(config, lora=LoraConfig(rank=RANK, alpha=ALPHA))
    adapters = as_our_tree(make_adapters(hf_config, LINEAR_NAMES))
    save_checkpoint(tmp_path / "merged", config, policy.merge(base, adapters))
    theirs = real_rows(torch_logits(tmp_path / "merged", tokens))
    params = {"base": base, "adapters": adapters}
    ours = real_rows(full_logits(policy, params, tokens))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", PEFT_CASES)
def test_adapted_logits_equal_those_of_peft(name, tmp_path):
    from tests.models.peft_logits import peft_logits

    hf_config, names = CASES[name], PEFT_CASES[name]
    tokens = make_tokens(hf_config["vocab_size"])
    folder = write_folder(tmp_path, hf_config, make_tensors(hf_config, seed=7))
    rank, alpha = 3, 2.0
    by_name = make_adapters(hf_config, names, rank=rank, seed=8)
    theirs = real_rows(
        peft_logits(folder, by_name, names, rank=rank, alpha=alpha, tokens=tokens)
    )
    config, base = load_checkpoint(folder)
    policy = build_lora_policy(
        config, lora=LoraConfig(rank=rank, alpha=alpha, targets=names)
    )
    params = {"base": base, "adapters": as_our_tree(by_name)}
    ours = real_rows(full_logits(policy, params, tokens))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", PEFT_CASES)
def test_peft_loads_our_adapters(name, tmp_path):
    from tests.models.peft_logits import logits_of_folders

    hf_config, names = CASES[name], PEFT_CASES[name]
    tokens = make_tokens(hf_config["vocab_size"])
    folder = write_folder(tmp_path / "base", hf_config, make_tensors(hf_config))
    config, base = load_checkpoint(folder)
    lora = LoraConfig(rank=RANK, alpha=ALPHA, targets=names)
    adapters = as_our_tree(make_adapters(hf_config, names))
    written = tmp_path / "adapters"
    save_adapters(written, config, lora, adapters, base=str(folder))
    theirs = real_rows(logits_of_folders(folder, written, tokens))
    policy = build_lora_policy(config, lora=lora)
    params = {"base": base, "adapters": adapters}
    ours = real_rows(full_logits(policy, params, tokens))
    assert np.abs(ours - real_rows(our_logits(config, base, tokens))).max() > 1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
