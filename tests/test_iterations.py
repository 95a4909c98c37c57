"""Several iterations in one compiled program: the bits of one at a time."""

import re

import chex
import jax
import jax.numpy as jnp
import pytest

from configs import sokoban
from ragen_jax import train as iterations
from ragen_jax.config import validate
from ragen_jax.program import build_program
from ragen_jax.train import make_advance
from tests import commands


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return commands.tiny_model(folder, num_key_value_heads=2)


def run(model, workdir, size, total, **changes):
    words = commands.train_command(
        model,
        workdir,
        train__num_iterations=total,
        train__fused_iterations=size,
        bonus__length=0.5,
        bonus__min_tokens=1,
        bonus__max_tokens=4,
        logging__tensorboard=False,
        **{"evaluation__every": 3, "checkpoint__every": 3} | changes,
    )
    return commands.run(words)


def test_a_run_is_the_same_in_blocks(model, tmp_path, monkeypatch):
    """Six iterations by the real command, the blocks of a resumed run at that."""
    whole = run(model, tmp_path / "1", 1, 6)
    assert run(model, tmp_path / "3", 3, 3).returncode == 0
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")
    blocks = run(model, tmp_path / "3", 3, 6)
    assert whole.returncode == blocks.returncode == 0, whole.stderr + blocks.stderr
    record = commands.record_of(tmp_path / "1")
    assert [r["iteration"] for r in record["metrics"]] == list(range(7))
    assert record["metrics"][-1]["actor/grad_norm"] > 0
    assert commands.record_of(tmp_path / "3") == record
    digests = {done.stdout.split("sha256 ")[1].split()[0] for done in (whole, blocks)}
    assert len(digests) == 1
    assert len(re.findall(r"Compiling jit\(block\)", blocks.stderr)) == 1
    monkeypatch.delenv("JAX_LOG_COMPILES")
    refused = run(
        model, tmp_path / "3", 4, 12, evaluation__every=4, checkpoint__every=4
    )
    assert refused.returncode == 2
    assert "has 6 iterations, not a multiple of train.fused" in refused.stderr


def test_blocks_of_everything(model, monkeypatch):
    """Two games, adapters over a frozen model, rollouts used twice, a split mesh."""
    config = sokoban.get_config()
    changes = {
        "model.path": str(model),
        "env.mix": (("bandit", 1), ("frozen_lake", 1)),
        "rollout.max_turns": 1,
        "bonus.length": 0.5,
        "bonus.min_tokens": 1,
        "bonus.max_tokens": 4,
        "lora.rank": 2,
        "learner.updates_per_rollout": 2,
        "mesh.data": 2,
        "mesh.tensor": 2,
        "train.num_iterations": 4,
        "checkpoint.every": 2,
    }
    config.update_from_flattened_dict(commands.TINY | changes)
    ends, blocks, make_block = [], [], iterations.make_block

    def noted(*arguments):
        blocks.append(make_block(*arguments))
        return blocks[-1]

    monkeypatch.setattr(iterations, "make_block", noted)
    program = build_program(config)
    for size in (1, 2):
        config.train.fused_iterations = size
        validate(config)
        advance, told = make_advance(config, program), []
        # The program's own state would be gone after the first.
        state = jax.tree.map(jnp.copy, program.state)
        for done in range(0, 4, size):
            state, found = advance(state, done)
            told += [jax.device_get((one.rollouts, one.stats)) for one in found]
        ends.append((jax.device_get(state), [(tuple(a), b) for a, b in told]))
    chex.assert_trees_all_equal(*ends)
    assert all(stats["actor/grad_norm"] > 0 for _, stats in ends[0][1])
    (block,) = blocks
    assert block._cache_size() == 1


def test_what_falls_inside_a_block_is_refused():
    config = sokoban.get_config()
    config.update_from_flattened_dict(commands.TINY | {"train.fused_iterations": 2})
    with pytest.raises(ValueError, match=r"train.num_iterations = 5 is not a multiple"):
        validate(config)
    config.train.num_iterations, config.evaluation.every = 6, 3
    with pytest.raises(ValueError, match=r"evaluation.every = 3 is not .* change one"):
        validate(config)
    config.evaluation.every, config.checkpoint.every = None, 2
    validate(config)
    config.checkpoint.every = 3
    with pytest.raises(ValueError, match=r"checkpoint.every = 3 is not a multiple"):
        validate(config)
