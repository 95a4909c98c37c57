"""Sets of cells as bits, against Python's own long integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.text import byte_strings
from tests.pace import examples

# One word, two, a carry over more words than a word has bits.
SIZES = (1, 2, 33)


def to_words(number: int, num_words: int) -> jax.Array:
    words = [(number >> (32 * i)) & 0xFFFFFFFF for i in range(num_words)]
    return jnp.asarray(words, jnp.uint32)


def to_int(words: jax.Array) -> int:
    return sum(int(word) << (32 * i) for i, word in enumerate(np.asarray(words)))


def numbers(num_words: int) -> st.SearchStrategy[int]:
    """Long runs of equal bits as often as mixed ones: carries have to travel."""
    ends = st.integers(0, 32 * num_words)
    runs = st.lists(ends, min_size=2, max_size=6).map(sorted)
    runs = runs.map(
        lambda e: sum(
            (1 << b) - (1 << a) for a, b in zip(e[::2], e[1::2], strict=False)
        )
    )
    any_bits = st.integers(0, 2 ** (32 * num_words) - 1)
    return runs.map(lambda x: x % 2 ** (32 * num_words)) | any_bits


@pytest.mark.parametrize("num_words", SIZES)
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_arithmetic_is_that_of_long_integers(num_words, data):
    a, b = data.draw(numbers(num_words)), data.draw(numbers(num_words))
    one, other = to_words(a, num_words), to_words(b, num_words)
    modulus = 2 ** (32 * num_words)
    for carry in (False, True):
        assert to_int(byte_strings.add(one, other, carry)) == (a + b + carry) % modulus
    assert to_int(byte_strings.add(one, ~one, True)) == 0
    for by in (1, 8, 31):
        assert to_int(byte_strings.raised(one, by)) == (a << by) % modulus
        assert to_int(byte_strings.lowered(one, by)) == a >> by
    assert int(byte_strings.count(one)) == a.bit_count()
    assert int(byte_strings.last(one)) == a.bit_length() - 1
    lowest = (a & -a).bit_length() - 1
    assert int(byte_strings.first(one)) == (lowest if a else 32 * num_words)


@pytest.mark.parametrize("num_words", SIZES)
def test_cells_below_an_index(num_words):
    size = 32 * num_words
    for index in (-3, 0, 1, 31, 32, 33, size - 1, size, size + 40):
        inside = min(max(index, 0), size)
        assert to_int(byte_strings.below(jnp.int32(index), num_words)) == 2**inside - 1


@pytest.mark.parametrize("num_cells", [1, 31, 32, 33, 70])
def test_masks_come_back_and_are_counted(num_cells):
    mask = np.random.default_rng(num_cells).random(num_cells) < 0.5
    packed = byte_strings.pack(jnp.asarray(mask))
    assert to_int(packed) == sum(1 << int(i) for i in np.flatnonzero(mask))
    np.testing.assert_array_equal(byte_strings.unpack(packed, num_cells), mask)
    np.testing.assert_array_equal(
        byte_strings.running_count(packed, num_cells), np.cumsum(mask)
    )
