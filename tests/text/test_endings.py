"""The matcher of `</answer>` against searching the joined bytes."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.text.endings import find_answer_end

END = b"</answer>"
# Parts of the text, parts that begin again in the middle, and the whole with a rest.
WORDS = [b"</", b"<", b"/", b"ans", b"answer", b"wer>", b">", b"</answer", b"</a"]
WORDS += [
    b"<</",
    b"</ans</",
    END,
    b"Up" + END + b"\n",
    b"",
    b"Up",
    b"\xff",
    b"</think>",
]


@pytest.fixture(scope="module")
def text_end():
    return find_answer_end(WORDS)


@settings(deadline=None)
@given(tokens=st.lists(st.integers(0, len(WORDS) + 3), min_size=1, max_size=12))
def test_it_ends_where_the_text_first_stands(text_end, tokens):
    states, text, ends, expected = jnp.zeros(1, jnp.uint8), b"", [], []
    for token in tokens:
        states, is_end = text_end.advance(states, jnp.asarray([token]))
        text += WORDS[token] if token < len(WORDS) else b""
        ends.append(bool(is_end[0]))
        expected.append(END in text)
    assert ends == expected


def test_cuts_of_the_text_into_tokens_are_found():
    for cuts in range(0, 2 ** (len(END) - 1), 5):
        places = [0, *(i + 1 for i in range(len(END) - 1) if cuts >> i & 1), len(END)]
        pieces = [END[a:b] for a, b in itertools.pairwise(places)]
        text_end = find_answer_end([b"x<", *pieces])
        states = jnp.zeros(1, jnp.uint8)
        found = []
        for token in range(len(pieces) + 1):
            states, is_end = text_end.advance(states, jnp.asarray([token]))
            found.append(bool(is_end[0]))
        assert found == [False] * len(pieces) + [True]


def test_rows_have_states_of_their_own(text_end):
    states, is_end = text_end.advance(
        jnp.zeros(2, jnp.uint8), jnp.asarray([WORDS.index(END), WORDS.index(b"</")])
    )
    np.testing.assert_array_equal(is_end, [True, False])
    np.testing.assert_array_equal(states, [len(END), 2])
