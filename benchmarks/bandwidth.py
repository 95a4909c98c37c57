"""What the machine can move: the limit that decoding is measured against."""

from benchmarks import harness


def copy_bandwidth() -> float:
    """Bytes per second that are read and written where 256 MiB change in place."""
    import jax
    import jax.numpy as jnp

    block = jnp.ones(2**26, jnp.float32)
    # In place: memory that is new at every call would have to be mapped first.
    change = jax.jit(lambda x: x + 1.0, donate_argnums=0)

    def change_again():
        nonlocal block
        block = change(block)
        return block

    return 2 * block.nbytes / harness.least_seconds(change_again, 10)
