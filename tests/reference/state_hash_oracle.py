"""The hash of a state, in Python's integers."""

import jax
import numpy as np


def hash_fields(fields) -> list[int]:
    """Two 32-bit words from integer arrays."""
    words = np.concatenate([np.ravel(x) for x in jax.tree.leaves(fields)]).tolist()
    hashes = []
    for multiplier in (0x9E3779B9, 0x85EBCA77):
        total = 0
        for place, word in enumerate(words, start=1):
            total += mix(mix(word + 1) + multiplier * place)
        hashes.append(total % 2**32)
    return hashes


def mix(x: int) -> int:
    x %= 2**32
    x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
    x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
    return x ^ (x >> 16)
