"""A run that trains adapters: what is trained, what is played, what is saved."""

import chex
import jax
import numpy as np
import pytest

from configs import sokoban
from ragen_jax import rngs
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.program.build import POCKET, build_program, num_params

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program():
    config = sokoban.get_config("pocket,ppo")
    config.update_from_flattened_dict(
        {
            "lora.rank": 2,
            "lora.targets": "q_proj,down_proj",
            "rollout.num_groups": 2,
            "rollout.group_size": 4,
            "rollout.max_turns": 1,
            "learner.minibatch_rows": 8,
            "filter.keep_fraction": 1.0,
            "evaluation.num_prompts": 2,
            "kl.placement": "loss",
        }
    )
    return build_program(config)


@pytest.fixture(scope="module")
def after(program):
    """Parameters played with before, state and stats after one iteration."""
    state = program.state
    before = jax.device_get(program.play_params(state))
    key = rngs.step_key(rngs.root_key(0), 0)
    batch = program.join(program.collect(program.play_params(state), key))
    state, stats, _ = program.update(state, batch, key)
    return before, state, jax.device_get(stats)


def test_fresh_adapters_play_like_the_base(after):
    _, params = load_checkpoint(POCKET)
    chex.assert_trees_all_equal(after[0], jax.device_get(params))


def test_only_adapters_and_a_head_are_trained_and_saved(program, after):
    before, state, _ = after
    # Two matrices per layer, 128 x 128 and 384 x 128, rank 2; the critic has its own.
    num_adapters = 4 * 2 * (128 + 128 + 384 + 128)
    assert num_params(state.policy.params) == num_adapters
    assert num_params(state.critic.params) == num_adapters + 128 + 1
    moments = jax.tree.leaves((state.policy.opt_state, state.critic.opt_state))
    assert sum(x.size for x in moments) < 5 * num_adapters
    now = jax.device_get(program.play_params(state))
    layer, old = now["layers"]["0"], before["layers"]["0"]
    assert (
        layer["mlp"]["down_proj"]["kernel"] != old["mlp"]["down_proj"]["kernel"]
    ).any()
    chex.assert_trees_all_equal(layer["mlp"]["up_proj"], old["mlp"]["up_proj"])
    chex.assert_trees_all_equal(now["embed_tokens"], before["embed_tokens"])


def test_the_sampler_plays_the_network_that_is_trained(after):
    stats = after[2]
    assert stats["actor/sampler_log_prob_difference"] <= 1e-5
    # The reference is the base, which fresh adapters do not change.
    np.testing.assert_allclose(stats["actor/ref_kl"], 0.0, atol=1e-6)
