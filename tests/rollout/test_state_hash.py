"""Hashes of what a game shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import ENVIRONMENTS
from envs.hashing import hash_arrays
from tests.reference import state_hash_oracle


def start_fields(name: str, count: int):
    """What `count` levels show at their start."""
    env = envs.make(name)
    params = env.default_params

    @jax.jit
    @jax.vmap
    def show(key):
        _, state = env.reset_env(key, params)
        return env.text_fields(state, params)

    return show(jax.random.split(jax.random.key(0), count))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_equal_pictures_and_only_those_share_a_hash(name):
    fields = start_fields(name, 300)
    hashes = np.asarray(jax.jit(jax.vmap(hash_arrays))(fields))
    rows = np.concatenate(
        [np.reshape(x, (300, -1)) for x in jax.tree.leaves(fields)], axis=1
    )
    same_picture = (rows[:, None] == rows[None]).all(-1)
    same_hash = (hashes[:, None] == hashes[None]).all(-1)
    np.testing.assert_array_equal(same_hash, same_picture)


def test_equals_the_oracle_and_tells_places_apart():
    fields = {"a": jnp.array([3, -1, 0]), "b": jnp.array([[7, 7], [0, 2]])}
    swapped = {"a": jnp.array([-1, 3, 0]), "b": fields["b"]}
    expected = state_hash_oracle.hash_fields(fields)
    assert hash_arrays(fields).tolist() == expected
    assert hash_arrays(swapped).tolist() != expected
