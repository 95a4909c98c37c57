"""Adapters in PEFT's layout: what the files hold, and what is not written."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from ragen_jax.models.families import read_config
from ragen_jax.models.hf.adapters import save_adapters
from ragen_jax.models.lora import LoraConfig, build_lora_policy
from tests.models.random_adapters import DISTINCT, random_adapters
from tests.models.vision_models import hf_config

LORA = LoraConfig(rank=3, alpha=6.0, targets=("q_proj", "down_proj"))
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(scope="module")
def adapters():
    policy = build_lora_policy(DISTINCT, lora=LORA)
    return jax.device_get(random_adapters(policy, jax.random.key(0)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_adapter_is_written_by_pefts_name(dtype, adapters, tmp_path):
    target = tmp_path / "adapters"
    save_adapters(target, DISTINCT, LORA, adapters, base="owner/model", dtype=dtype)
    names = {path.name for path in target.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    expected = {}
    for layer in ("0", "1"):
        for module, name in (("self_attn", "q_proj"), ("mlp", "down_proj")):
            path = f"base_model.model.model.layers.{layer}.{module}.{name}"
            pair = adapters["layers"][layer][module][name]
            expected[f"{path}.lora_A.weight"] = pair["lora_a"].T.astype(DTYPES[dtype])
            expected[f"{path}.lora_B.weight"] = pair["lora_b"].T.astype(DTYPES[dtype])
    with safe_open(target / "adapter_model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(expected)
        for name, tensor in expected.items():
            np.testing.assert_array_equal(file.get_tensor(name), tensor)
    config = json.loads((target / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "owner/model"
    assert (config["r"], config["lora_alpha"]) == (3, 6)
    assert config["target_modules"] == ["q_proj", "down_proj"]


def test_the_decoder_of_a_network_that_sees_has_a_part_of_its_own(tmp_path):
    """As transformers names its modules, which PEFT goes by."""
    config, lora = read_config(hf_config("small")), LoraConfig(2, 4.0, "all")
    adapters = build_lora_policy(config, lora=lora).init_adapters(jax.random.key(0))
    save_adapters(tmp_path / "new", config, lora, jax.device_get(adapters), base="o/m")
    names = load_file(tmp_path / "new/adapter_model.safetensors")
    assert {name.split(".")[3] for name in names} == {"language_model", "visual"}


def test_what_is_not_written(adapters, tmp_path):
    target = tmp_path / "adapters"
    save = {"base": "owner/model"}
    with pytest.raises(ValueError, match="dtype = 'int8' cannot be written"):
        save_adapters(target, DISTINCT, LORA, adapters, **save, dtype="int8")
    with pytest.raises(ValueError, match="tree lacks layers/0/mlp/down_proj/lora_a"):
        save_adapters(target, DISTINCT, LORA, {}, **save)
    with pytest.raises(ValueError, match=r"lora_a has shape .* asks for"):
        save_adapters(
            target, DISTINCT, LoraConfig(4, 6.0, LORA.targets), adapters, **save
        )
    assert not target.exists()
    target.mkdir()
    with pytest.raises(ValueError, match="exists already"):
        save_adapters(target, DISTINCT, LORA, adapters, **save)
