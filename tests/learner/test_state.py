"""Train state and optimizer: where the leaves live and what a step does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ragen_jax.devices import sharding
from ragen_jax.learner.state import (
    build_optimizer,
    init_network,
    init_state,
    state_shardings,
)
from tests.learner import tiny
from tests.reference.update_oracle import adamw

ADAMW = {k: v for k, v in tiny.OPTIMIZER.items() if k != "learning_rate"}


def test_moments_live_with_their_parameters():
    state = tiny.make_state((2, 2, 2))
    where = state_shardings(state)
    assert where.params["embed"].spec == PartitionSpec("tensor", "fsdp")
    for moments in (where.policy.opt_state[1].mu, where.policy.opt_state[1].nu):
        assert moments == where.params
    assert where.policy.opt_state[1].count.is_fully_replicated
    for name in ("iteration", "num_updates", "num_skipped", "consecutive_skipped"):
        counter = getattr(state, name)
        assert counter == 0
        assert counter.dtype == jnp.int32
        assert counter.sharding.is_fully_replicated


def test_parameters_are_copied_as_float32():
    mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1)
    params = tiny.POLICY.init(jax.random.key(0))
    params["embed"] = params["embed"].astype(jnp.bfloat16)
    optimizer = build_optimizer(**ADAMW)
    network = init_network(params, optimizer, mesh, tiny.AXES)
    state = init_state(network, None, mesh, kl_coeff=0.1)
    for name, array in state.params.items():
        assert array.dtype == jnp.float32
        np.testing.assert_array_equal(array, params[name].astype(jnp.float32))
    jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(state)
    assert state.params["mix"].is_deleted()
    assert np.isfinite(params["mix"]).all()


@pytest.mark.parametrize("size", [0.01, 100.0])
def test_optimizer_equals_oracle(size):
    """Small gradients pass, large ones are scaled to the largest norm."""
    random = np.random.default_rng(0)
    optimizer = build_optimizer(**ADAMW)
    params = {"w": jnp.asarray(random.normal(size=(3, 4)), jnp.float32)}
    state = optimizer.init(params)
    expected = {"w": np.asarray(params["w"], np.float64)}
    first, second = {"w": np.zeros((3, 4))}, {"w": np.zeros((3, 4))}
    for step in (1, 2, 3):
        grad = size * step * random.normal(size=(3, 4))
        changes, state = optimizer.update(
            {"w": jnp.asarray(grad, jnp.float32)}, state, params
        )
        params = {"w": params["w"] - tiny.OPTIMIZER["learning_rate"] * changes["w"]}
        scale = min(1.0, tiny.OPTIMIZER["max_grad_norm"] / np.linalg.norm(grad))
        adamw(expected, first, second, "w", grad * scale, step, tiny.OPTIMIZER)
    np.testing.assert_allclose(params["w"], expected["w"], atol=1e-6)


def test_betas_of_32_bits_move_the_moments_as_betas_of_64_do():
    """The complement of 0.999 is given, not subtracted in float32."""
    betas = {name: ADAMW[name] for name in ("beta1", "beta2")}
    data = {name: np.float32(x) for name, x in betas.items()}
    data |= {f"{name}_complement": np.float32(1 - x) for name, x in betas.items()}
    grads = {"w": jnp.linspace(-1.0, 1.0, 8)}

    @jax.jit
    def moments(data):
        optimizer = build_optimizer(**ADAMW | data)
        return optimizer.update(grads, optimizer.init(grads), grads)[1][1]

    expected, found = moments({}), moments(data)
    for one, other in ((expected.mu, found.mu), (expected.nu, found.nu)):
        np.testing.assert_array_equal(one["w"], other["w"])
    assert data["beta2_complement"] != 1 - data["beta2"]
