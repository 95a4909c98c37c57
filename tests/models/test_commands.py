"""A model of the second family through the real commands, from training to export."""

import json

import numpy as np
import pytest

from ragen_jax.models.hf_weights import load_checkpoint
from tests import commands


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "qwen3"
    return commands.tiny_model(folder, model_type="qwen3", head_dim=8)


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    """A run folder."""
    workdir = tmp_path_factory.mktemp("runs") / "run"
    done = commands.run(commands.train_command(model, workdir, train__num_iterations=2))
    assert done.returncode == 0, done.stderr
    return workdir


def test_it_learns_and_is_exported(model, trained, tmp_path):
    output = tmp_path / "exported"
    words = [f"--run={trained}", f"--output={output}"]
    done = commands.run(commands.command("export", *words))
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
    done = commands.run(
        commands.command(
            "plan",
            "--config=configs/sokoban.py",
            f"--config.model.path={model}",
            *(f"--config.{key}={value}" for key, value in tiny.items()),
        )
    )
    assert done.returncode == 0, done.stderr
    assert "fits: 0.0" in done.stdout
