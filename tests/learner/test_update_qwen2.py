"""The update on the real network: every split of eight devices gives the same."""

import chex
import jax
import pytest

from ragen_jax.learner import sharding
from ragen_jax.learner.optimizer import build_optimizer
from ragen_jax.learner.state import init_state, state_shardings
from ragen_jax.learner.update import make_update
from ragen_jax.models.qwen2 import build_policy, logical_axes
from ragen_jax.models.qwen2_config import Qwen2Config
from tests.learner import tiny
from tests.trajectories import make_trajectory

REWARDS = [0.0, 1, 0, 0, 5, 1, 1, 1, 2, 2, 2, 2, 0, 3, -1, 0.5]
CONFIG = Qwen2Config(
    vocab_size=16,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    tie_word_embeddings=True,
    initializer_range=0.3,
)


def after(data: int, fsdp: int, tensor: int):
    """State and stats on the host after one iteration on a mesh."""
    policy = build_policy(CONFIG)
    # Adam's first step is the gradient's sign, so the parameters alone would hide a
    # gradient of the wrong size: the test compares the first moment, too.
    optimizer = build_optimizer(**tiny.OPTIMIZER | {"learning_rate": 1e-3})
    params = policy.init(jax.random.key(0))
    mesh = sharding.make_mesh(data=data, fsdp=fsdp, tensor=tensor)
    state = init_state(params, optimizer, mesh, logical_axes(CONFIG))
    update = make_update(policy, optimizer, state_shardings(state), **tiny.SETTINGS)
    trajectory = jax.device_put(make_trajectory(REWARDS), sharding.by_rows(mesh))
    state, stats = update(state, trajectory, jax.random.key(7))
    return tiny.host(state), jax.device_get(stats)


@pytest.fixture(scope="module")
def on_one_device():
    return after(1, 1, 1)


@pytest.mark.parametrize("mesh", [(2, 2, 2)])
def test_devices_do_not_matter(on_one_device, mesh):
    state, stats = after(*mesh)
    expected_state, expected_stats = on_one_device
    first, expected_first = (s.opt_state[1][0].mu for s in (state, expected_state))
    chex.assert_trees_all_close(first, expected_first, atol=1e-7, rtol=1e-4)
    chex.assert_trees_all_close(state.params, expected_state.params, atol=1e-6)
    chex.assert_trees_all_close(stats, expected_stats, atol=1e-5)
