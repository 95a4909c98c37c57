"""Deals the problems of a game to its two splits, by their content alone.

In: a text, or a hash of a problem. Out: the split. Neither `hash`, which differs from
process to process, nor a random number generator, whose stream may change with its
version, is used.
"""

import hashlib

from ragen_jax.host_games.base import SPLITS, TRAINING, VALIDATION

# Share of texts that `split_of` deals to validation.
VALIDATION_SHARE = 0.1


def check_split(split: object) -> None:
    """Raises ValueError unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; use {' or '.join(SPLITS)}")


def split_of(text: str) -> str:
    """The split of a text; case and white space do not matter."""
    content = " ".join(text.split()).lower()
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return VALIDATION if share < VALIDATION_SHARE else TRAINING


def split_of_hash(number: int, one_in: int) -> str:
    """The split of a problem with this hash: one in `one_in` is for validation."""
    return VALIDATION if number % one_in == 0 else TRAINING


def text_hash(text: str) -> int:
    """A number from 0 to 2**64 - 1 that depends only on `text`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def stable_hash(*parts: str | int) -> int:
    """A number from 0 to 2**64 - 1 that depends only on `parts`."""
    # repr keeps ("a", "bc") and ("ab", "c") apart.
    return text_hash(repr(parts))
