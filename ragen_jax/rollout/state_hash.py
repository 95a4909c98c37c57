"""A number for a picture of the game, so that equal states can be found.

In: what a game shows of one state. Out: 64 bits, as two words. For estimators that
compare the rows of a group turn by turn (GiGPO): there two states are the same when the
policy sees the same.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, UInt32

# Two unrelated odd multipliers (from the digits of the golden ratio and of xxHash): the
# words are hashes of their own.
_MULTIPLIERS = (0x9E3779B9, 0x85EBCA77)


def hash_fields(fields: PyTree[Int[Array, "..."]]) -> UInt32[Array, " 2"]:
    """Hash of integer arrays: of every entry and its place.

    Args:
      fields: of one state, see `TextEnvironment.text_fields`.
    """
    words = [jnp.ravel(x).astype(jnp.uint32) for x in jax.tree.leaves(fields)]
    words = jnp.concatenate(words)
    places = jnp.arange(words.shape[0], dtype=jnp.uint32)
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
