"""Bytes that devices exchange: loops of a known length, and of one that data decide."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import mesh
from ragen_jax.devices.sharding import make_mesh


@pytest.fixture(scope="module")
def compiled():
    """A sum over 2 devices, and one in three turns of a loop in a loop."""
    devices = make_mesh(data=2, fsdp=1, tensor=1)
    rows = NamedSharding(devices, PartitionSpec("data"))

    def total(x):
        return jax.lax.psum(x, "data")

    def program(x, count):
        def turn(_, x):
            # A scan of more than a few turns stays a loop.
            return jax.lax.scan(lambda x, _: (total(x) * 0.5, None), x, length=30)[0]

        return total(jax.lax.fori_loop(0, count, turn, x))

    split = jax.shard_map(
        program,
        mesh=devices,
        in_specs=(PartitionSpec("data"), PartitionSpec()),
        out_specs=PartitionSpec("data"),
        check_vma=False,
    )
    x = jax.ShapeDtypeStruct((2, 5), jnp.float32, sharding=rows)
    return jax.jit(split).lower(x, jax.ShapeDtypeStruct((), jnp.int32)).compile()


def test_loops_count_as_often_as_they_run(compiled):
    """20 bytes of a row of 5, once, and 30 times in each turn of the outer loop."""
    assert mesh.received(compiled, [7]) == {"all-reduce": 20 * (1 + 7 * 30)}
    assert mesh.received(compiled, []) == {"all-reduce": 20 * (1 + 30)}
