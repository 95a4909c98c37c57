"""A model of the second family through the real commands, from training to export."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from ragen_jax.models.hf.weights import load_checkpoint
from tests import commands

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "qwen3"
    return commands.tiny_model(folder, model_type="qwen3", head_dim=8)


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "run"
    done = commands.call(
        commands.train_command(model, workdir, "bandit", train__num_iterations=2)
    )
    assert done.returncode == 0, done.stderr
    return workdir


def export(run, output, *words):
    flags = (f"--run={run}", f"--output={output}", *words)
    return commands.call(commands.command("export", *flags))


def test_it_learns_and_is_exported(model, trained, tmp_path):
    output = tmp_path / "exported"
    done = export(trained, output)
    assert done.returncode == 0, done.stderr
    hf = json.loads((output / "config.json").read_text())
    assert hf["architectures"] == ["Qwen3ForCausalLM"]
    assert hf["head_dim"] == 8
    (config, before), (same, after) = load_checkpoint(model), load_checkpoint(output)
    assert config == same
    for name in ("q_norm", "k_norm"):
        scales = [p["layers"]["0"]["self_attn"][name]["scale"] for p in (before, after)]
        assert not np.array_equal(*scales)


def test_it_is_planned(model):
    tiny = commands.TINY | {"rollout.max_turns": 1}
    done = commands.call(
        commands.command(
            "plan",
            "--config=configs/sokoban.py",
            f"--config.model.path={model}",
            *(f"--config.{key}={value}" for key, value in tiny.items()),
        )
    )
    assert done.returncode == 0, done.stderr
    assert "fits: 0.0" in done.stdout


def test_adapters_alone_are_exported(model, trained, tmp_path):
    workdir, output = tmp_path / "run", tmp_path / "adapters"
    done = commands.call(
        commands.train_command(
            model, workdir, "bandit", train__num_iterations=1, lora__rank=2
        )
    )
    assert done.returncode == 0, done.stderr
    done = export(workdir, output, "--adapters")
    assert done.returncode == 0, done.stderr
    assert "adapters of" in done.stdout
    config = json.loads((output / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(model)
    tensors = load_file(output / "adapter_model.safetensors")
    assert len(tensors) == 2 * 7 * 2
    moved = [x for name, x in tensors.items() if "lora_B" in name]
    assert any(x.any() for x in moved)
    done = export(trained, tmp_path / "none", "--adapters")
    assert done.returncode == 2
    assert "was trained without adapters (lora.rank is None)" in done.stderr
