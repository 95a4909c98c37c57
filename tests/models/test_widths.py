"""Rows cut to a few widths: the shortest one is taken, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_jax.models.widths import at_width, row_widths, shared_length


@given(longest=st.integers(1, 300), count=st.integers(1, 12))
def test_widths_are_in_equal_steps(longest, count):
    widths = row_widths(longest, count)
    assert len(widths) <= count
    assert widths[-1] == longest
    assert max(np.diff([0, *widths])) <= -(-longest // count)


@given(longest=st.integers(1, 3000), count=st.integers(1, 12))
def test_lengths_of_different_games_are_shared(longest, count):
    lengths = {shared_length(n, longest, count) for n in range(longest + 1)}
    assert len(lengths) <= count
    assert max(lengths) == longest
    shorter = [2**i for i in range(12) if 2**i < longest]
    assert sorted(lengths) == [*shorter[max(0, len(shorter) - count + 1) :], longest]
    needed = longest // 2
    assert shared_length(needed, longest, count) == min(
        x for x in lengths if x >= needed
    )


def test_text_that_no_length_holds_is_refused():
    with pytest.raises(ValueError, match="301 tokens do not fit into 300"):
        shared_length(301, 300, 4)


@pytest.mark.parametrize("lengths", [[0, 0], [1, 3], [3, 4], [9, 2], [10, 1]])
def test_rows_are_cut_in_a_compiled_program(lengths):
    rows = {"x": jnp.arange(20.0).reshape(2, 10), "lengths": jnp.array(lengths)}

    @jax.jit
    def total(rows):
        def function(part):
            places = jnp.arange(part["x"].shape[1])[None]
            kept = jnp.where(places < part["lengths"][:, None], part["x"], 0.0)
            return jnp.sum(kept), jnp.int32(part["x"].shape[1])

        return at_width(function, rows, rows["lengths"], longest=10, count=3)

    found, width = total(rows)
    expected = sum(x[:n].sum() for x, n in zip(rows["x"], lengths, strict=True))
    assert found == expected
    assert width == min(w for w in row_widths(10, 3) if w >= max(lengths))
