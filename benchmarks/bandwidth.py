"""What the machine can move: the limit that decoding is measured against."""

import time


def copy_bandwidth() -> float:
    """Bytes per second that are read and written where 256 MiB change in place."""
    import jax
    import jax.numpy as jnp

    block = jnp.ones(2**26, jnp.float32)
    # In place: memory that is new at every call would have to be mapped first.
    change = jax.jit(lambda x: x + 1.0, donate_argnums=0)
    block = change(block).block_until_ready()
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        block = change(block).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return 2 * block.nbytes / min(seconds)
