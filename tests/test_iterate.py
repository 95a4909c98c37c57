"""Iterations of everything at once repeat to the bit, and compile once."""

import chex
import jax
import jax.numpy as jnp
import pytest

from configs import sokoban
from ragen_jax.program.build import build_program
from ragen_jax.train import make_iterate
from tests import commands


@pytest.mark.slow
def test_iterations_of_everything_repeat(tmp_path):
    """Two entries, adapters over a frozen model, rollouts used twice, a split mesh."""
    config = sokoban.get_config()
    changes = {
        "model.path": str(commands.tiny_model(tmp_path / "m", num_key_value_heads=2)),
        "env.mix": (("bandit", 1), ("bandit", 1, {"label": "Other"})),
        "rollout.max_turns": 1,
        "bonus.length": 0.5,
        "bonus.min_tokens": 1,
        "bonus.max_tokens": 4,
        "lora.rank": 2,
        "learner.updates_per_rollout": 2,
        "mesh.data": 2,
        "mesh.tensor": 2,
        "train.num_iterations": 2,
    }
    config.update_from_flattened_dict(commands.TINY | changes)
    program = build_program(config)
    iterate, ends = make_iterate(config, program), []
    for _ in range(2):
        # The program's own state would be gone after the first.
        state, results = jax.tree.map(jnp.copy, program.state), []
        for done in (1, 2):
            state, rollouts, _, metrics, timing = iterate(state, done)
            results.append(jax.device_get((tuple(rollouts), metrics)))
            assert set(timing) >= {"timing_s/rollout", "timing_s/update"}
            assert metrics["actor/grad_norm"] > 0
        ends.append((jax.device_get(state), results))
    chex.assert_trees_all_equal(*ends)
    assert program.learner.update._cache_size() == 1
