"""Rows cut to a few widths: the shortest one is taken, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_jax.models.widths import at_width, fitting_width, row_widths


@given(longest=st.integers(1, 300), count=st.integers(1, 12), data=st.data())
def test_the_shortest_width_that_holds_the_rows_is_taken(longest, count, data):
    widths = row_widths(longest, count)
    assert len(widths) <= count
    assert widths[-1] == longest
    assert max(np.diff([0, *widths])) <= -(-longest // count)
    needed = data.draw(st.integers(0, longest))
    width = fitting_width(needed, longest, count)
    assert width == min(w for w in widths if w >= needed)


def test_rows_that_no_width_holds_are_refused():
    with pytest.raises(ValueError, match="301 tokens do not fit into rows of 300"):
        fitting_width(301, 300, 4)


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
    assert width == fitting_width(max(lengths), 10, 3)
