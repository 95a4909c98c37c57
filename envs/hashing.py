"""Hashes of states: the same on every device, in every process and for every batch.

In: the integer arrays that describe a state. Out: two words of 32 bits. Not for
security: anybody can construct arrays of the same hash.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, UInt32

# Two unrelated odd multipliers (from the digits of the golden ratio and of xxHash), so
# that the two words are independent hashes.
_MULTIPLIERS = (0x9E3779B9, 0x85EBCA77)


def hash_arrays(arrays: PyTree[Int[Array, "..."]]) -> UInt32[Array, " 2"]:
    """Hash of integer arrays: of every entry and its place.

    Args:
      arrays: of one state, e.g. its `TextEnvironment.text_fields` or observation.
    """
    words = [jnp.ravel(x).astype(jnp.uint32) for x in jax.tree.leaves(arrays)]
    words = jnp.concatenate(words)
    places = jnp.arange(words.shape[0], dtype=jnp.uint32)
    # A sum, since it does not depend on the order in which a device adds.
    hashes = [
        jnp.sum(_mix(_mix(words + 1) + m * (places + 1)), dtype=jnp.uint32)
        for m in (jnp.uint32(m) for m in _MULTIPLIERS)
    ]
    return jnp.stack(hashes)


def _mix(x: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Every bit of the result depends on every bit of `x` (MurmurHash3's finalizer)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
