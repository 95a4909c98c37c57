"""The pocket model's programs, really compiled for H100s that are not there.

Needs XLA's compiler for NVIDIA's GPUs (the extra `[cuda]`), and no GPU.
"""

import json
import sys

import jax
import pytest

from ragen_jax import install_command
from ragen_jax.memory.targets import has_compiler
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.program.build import POCKET
from tests import commands

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not has_compiler(), reason=f"no compiler for GPUs: {install_command('cuda')}"
    ),
]

CONFIG = "--config=configs/sokoban.py:pocket,grpo"
PLAN = """
import json, sys
from configs import sokoban
from ragen_jax.memory import targets
target = targets.named_target("h100")
targets.prepare_compiler()
import jax
jax.config.update("jax_num_cpu_devices", 8)
from ragen_jax.memory.plan import make_plan, read_model
config = sokoban.get_config("pocket,grpo")
config.mesh.fsdp = int(sys.argv[2])
model, tokenizer, _ = read_model(config.model.path)
devices = targets.describe_devices(target, sys.argv[1])
plan = make_plan(config, model, tokenizer, compiled=True, devices=devices)
print(json.dumps({name: vars(use) for name, use in plan.memory.items()}))
"""


@pytest.mark.parametrize(("topology", "fsdp"), [("1x1x1", 1), ("1x1x8", 8)])
def test_a_plan_agrees_with_the_program_to_the_byte(topology, fsdp, tmp_path):
    file = tmp_path / "figures.json"
    line = [sys.executable, "-m", "benchmarks.gpu_program", CONFIG, f"--json={file}"]
    line += [f"--config.mesh.fsdp={fsdp}", f"--topology={topology}"]
    done = commands.run(line)
    assert done.returncode == 0, done.stderr
    programs = json.loads(file.read_text())["programs"]
    planned = commands.run([sys.executable, "-c", PLAN, topology, str(fsdp)])
    assert planned.returncode == 0, planned.stderr
    for name, use in json.loads(planned.stdout).items():
        compiled = programs[name]["memory"]
        assert use == {key: compiled[key] for key in use}, name

    for name in ("rollout", "evaluation"):
        # What the tests of stored texts look for, in the program itself.
        decode = programs[name]["decode"]
        assert decode["kernels_per_layer"] <= 8
        assert decode["logits_passes"] < 2.5
        assert programs[name]["copies"] == []
        # Parameters are gathered once; no token exchanges anything.
        assert all(of["depth"] == 0 for of in programs[name]["exchanges"])


def test_meshes_are_compiled_for_a_topology(tmp_path):
    file = tmp_path / "meshes.json"
    line = [sys.executable, "-m", "benchmarks.mesh", "--tiny", f"--json={file}"]
    done = commands.run([*line, "--target=h100", "--topology=1x2x1"])
    assert done.returncode == 0, done.stderr
    found = {
        tuple(of["mesh"].values()): of for of in json.loads(file.read_text())["meshes"]
    }
    assert list(found) == [(1, 1, 1), (2, 1, 1), (1, 2, 1)]
    alone = found[1, 1, 1]
    assert alone["update_received"] == alone["rollout_received"] == {}
    split = found[1, 2, 1]
    assert split["state_bytes"] < 0.6 * alone["state_bytes"]
    assert split["update_received"]["all-gather"] > 0
    assert found[2, 1, 1]["state_bytes"] == alone["state_bytes"]


def test_copies_with_cudnns_attention_exchange_once_a_minibatch(tmp_path):
    file = tmp_path / "figures.json"
    line = [sys.executable, "-m", "benchmarks.gpu_program", CONFIG, f"--json={file}"]
    line += ["--config.model.dtype=bfloat16", "--config.model.attention=cudnn"]
    line += ["--config.mesh.data=2", "--config.mesh.fsdp=2", "--topology=1x2x2"]
    done = commands.run([*line, "--programs=update"])
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["programs"]["update"]["exchanges"]
    between_hosts = [of for of in found if of["where"] == "between hosts"]
    # The loop over minibatches, not the one over passes in it.
    assert max(of["depth"] for of in between_hosts) == 1
    summed = [of for of in between_hosts if of["kind"] == "all-reduce" and of["depth"]]
    # A device's half of the gradient, and no rows: those go where they are read.
    _, params = load_checkpoint(POCKET)
    gradient = sum(leaf.size for leaf in jax.tree.leaves(params)) * 4 / 2
    assert sum(of["bytes"] for of in summed) == pytest.approx(gradient, rel=0.1)
