"""The update on the real network: every split of eight devices gives the same."""

import chex
import jax
import pytest

from ragen_jax.devices import sharding
from ragen_jax.learner.learner import Networks, build_learner
from ragen_jax.learner.rules import needs_critic
from ragen_jax.models.critic import build_critic
from ragen_jax.models.families import new_config
from ragen_jax.models.lora import LoraConfig
from ragen_jax.models.policy import build_policy
from ragen_jax.registry.settings import flatten
from tests.learner import tiny
from tests.trajectories import make_trajectory

REWARDS = [0.0, 1, 0, 0, 5, 1, 1, 1, 2, 2, 2, 2, 0, 3, -1, 0.5]
SIZES = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,
}


def after(
    *sizes: int, family: str = "qwen2", lora=None, remat: str | None = None, **settings
):
    """State and stats on the host after one iteration on a mesh of these `sizes`."""
    model = new_config(family, **SIZES)
    # Adam's first step is the gradient's sign, so the parameters alone would hide a
    # gradient of the wrong size: the test compares the first moment, too.
    config = tiny.make_config(optimizer__learning_rate=1e-3, **settings)
    policy, critic = build_policy(model, remat=remat), None
    if needs_critic(flatten(config)):
        trunk = config.critic.trunk
        critic = build_critic(model, trunk, dtype="float32", remat=remat, lora=lora)
    data, fsdp, tensor = sizes
    mesh = sharding.make_mesh(data=data, fsdp=fsdp, tensor=tensor)
    params = policy.init(jax.random.key(0))
    learner = build_learner(config, Networks(policy, critic, lora), mesh)
    trajectory = jax.device_put(make_trajectory(REWARDS), sharding.by_rows(mesh))
    frozen, state = learner.freeze(params), learner.init(params, 0)
    state, stats, _ = learner.update(
        frozen, learner.numbers, state, trajectory, jax.random.key(7)
    )
    return tiny.host(state), jax.device_get(stats)


# Three families, all of a policy or adapters, each kind of critic; and what layers keep
# for the backward pass on the mesh, where one device keeps everything.
SETTINGS = {
    "ppo": ({"advantage": "gae", "placement": "loss"}, "layers"),
    "normalized heads": (
        {
            "family": "qwen3",
            "advantage": "gae",
            "lora": LoraConfig(rank=2, alpha=4.0),
        },
        "attention",
    ),
    "no biases": ({"family": "llama", "lora": LoraConfig(rank=2, alpha=4.0)}, None),
    "shared": (
        {
            "family": "qwen3",
            "advantage": "gae",
            "trunk": "shared",
            "importance_cap": 2.0,
            "old_log_probs": "learner",
        },
        None,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETTINGS)
def test_neither_devices_nor_what_layers_keep_matter(kind):
    settings, remat = SETTINGS[kind]
    assert_close(after(2, 2, 2, remat=remat, **settings), after(1, 1, 1, **settings))


def assert_close(found, wanted):
    """The same states and stats, but for the order of sums."""
    (state, stats), (expected_state, expected_stats) = found, wanted
    for network, expected in (
        (state.policy, expected_state.policy),
        (state.critic, expected_state.critic),
    ):
        if network is None:
            continue
        first, expected_first = (n.opt_state[1].mu for n in (network, expected))
        chex.assert_trees_all_close(first, expected_first, atol=1e-6, rtol=1e-3)
        chex.assert_trees_all_close(network.params, expected.params, atol=1e-5)
    chex.assert_trees_all_close(stats, expected_stats, atol=1e-4, rtol=1e-4)
