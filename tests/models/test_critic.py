"""The critic: its head, its trunk, and where its parameters live."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ragen_jax.devices.sharding import make_mesh, param_shardings
from ragen_jax.learner.logprobs import hidden_states, token_values
from ragen_jax.models.critic import TRUNKS, build_critic
from ragen_jax.models.policy import build_policy
from tests.models.random_adapters import EVEN

TIED = EVEN
UNTIED = dataclasses.replace(TIED, tie_word_embeddings=False)
TOKENS = jax.random.randint(jax.random.key(1), (3, 7), 0, 16)


def make(config, trunk="separate", dtype="float32"):
    policy = build_policy(config, dtype=dtype)
    params = policy.init(jax.random.key(0))
    return policy, params, build_critic(config, trunk, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_are_a_head_on_the_hidden_states(dtype):
    """In float32 whatever the trunk computes in; index 0, which nothing precedes: 0."""
    _, params, critic = make(TIED, dtype=dtype)
    own = critic.init(params, jax.random.key(0))
    kernel = np.random.default_rng(0).normal(size=16).astype(np.float32)
    own = own | {"head": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray([0.5])}}
    hidden = hidden_states(critic.trunk, own["trunk"], TOKENS)
    assert hidden.dtype == dtype
    values = token_values(critic, own, hidden)
    assert values.dtype == jnp.float32
    states = np.asarray(hidden, np.float64)
    for row in range(3):
        assert values[row, 0] == 0
        for t in range(1, 7):
            expected = states[row, t - 1] @ kernel.astype(np.float64) + 0.5
            np.testing.assert_allclose(values[row, t], expected, rtol=1e-4, atol=1e-5)


def test_a_value_does_not_see_its_own_token():
    _, params, critic = make(TIED)
    own = critic.init(params, jax.random.key(0)) | {
        "head": {"kernel": jnp.ones(16), "bias": jnp.zeros(1)}
    }
    changed = TOKENS.at[:, 4].set((TOKENS[:, 4] + 1) % 16)
    values, others = (
        token_values(critic, own, hidden_states(critic.trunk, own["trunk"], tokens))
        for tokens in (TOKENS, changed)
    )
    np.testing.assert_array_equal(values[:, :5], others[:, :5])
    assert (values[:, 5:] != others[:, 5:]).all()


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_a_separate_trunk_starts_as_a_copy_of_the_policy(config):
    policy, params, critic = make(config)
    own = critic.init(params, jax.random.key(0))
    assert ("lm_head" in params) == (config is UNTIED)
    expected = {name: x for name, x in params.items() if name != "lm_head"}
    chex.assert_trees_all_equal(own["trunk"], expected)
    np.testing.assert_array_equal(
        hidden_states(critic.trunk, own["trunk"], TOKENS),
        hidden_states(policy, params, TOKENS),
    )


@pytest.mark.parametrize("trunk", TRUNKS)
def test_all_values_are_zero_at_first(trunk):
    policy, params, critic = make(TIED, trunk)
    own = critic.init(params, jax.random.key(0))
    values = token_values(critic, own, hidden_states(policy, params, TOKENS))
    assert not values.any()
    gradient = jax.grad(
        lambda p: token_values(critic, p, hidden_states(policy, params, TOKENS)).sum()
    )(own)
    assert gradient["head"]["kernel"].any()
    assert gradient["head"]["bias"].any()


def test_a_shared_trunk_has_no_parameters_of_its_own():
    _, params, critic = make(UNTIED, "shared")
    assert critic.trunk is None
    assert (
        critic.init(params, jax.random.key(0)).keys()
        == critic.logical_axes.keys()
        == {"head"}
    )


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_every_parameter_has_a_place(config, trunk):
    """The trunk's are those of the policy; the head is whole on every device."""
    _, params, critic = make(config, trunk)
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    found = param_shardings(
        critic.init(params, jax.random.key(0)), critic.logical_axes, mesh
    )
    for sharding in jax.tree.leaves(found["head"]):
        assert sharding.is_fully_replicated
    if trunk == "separate":
        policy = param_shardings(params, build_policy(config).logical_axes, mesh)
        expected = {name: x for name, x in policy.items() if name != "lm_head"}
        assert jax.tree.leaves(found["trunk"]) == jax.tree.leaves(expected)
        specs = {x.spec for x in jax.tree.leaves(found["trunk"])}
        assert len(specs - {PartitionSpec()}) > 1
