"""Texts of placements against regular expressions."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st

from envs.sudoku.env import Sudoku
from tests.envs import answers
from tests.reference import sudoku_oracle as oracle

GOOD = answers.listed("""
place 4 at row 2 col 3|PLACE 4 At\tRow 2 cOL 3|place  4  at  row  2  col  3
place 4 at (2,3)|place 4 at( 2 , 3 )|place 4 at 2,3|place 4 at 2 ,3|4 at 2,3|4 AT 2\t, 3
(2,3,4)|( 2, 3, 4 )|2,3,4|2 , 3 , 4
""")  # fmt: skip
BAD = answers.listed("""
place 4 at row 2, col 3|place4 at row 2 col 3|place 4 at row2 col 3
place 4 at row 2 col3|place 4 at row 2 column 3|place 4 at row 2
place 4 at row (2) col 3|row 2 col 3|at 2,3|place 4 at 2 3|place 4 at (2,3
place 4 at 2,3)|place 4 at ((2,3))|4 at (2,3)|4at 2,3|4 at2,3|place 4 on 2,3
put 4 at 2,3|place 4 at 2,3.|place 4 at 2,3 now|please place 4 at 2,3|(2,3,4|2,3,4)
2,3|2,3,4,1|2;3;4|2 3 4|234|02,3,4|2,3,04|22,3,4|2,,3,4|2,3,n|n,n,n|n at n,n|0,3,4
2,0,4|2,3,0|5,3,4|2,5,4|2,3,5|-2,3,4|2.0,3,4|[2,3,4]|place|(|,|4|٢,٣,٤|2，3，4|2\x00,3,4
2,\n3,4|place 4 at row 2 col 3 col 3|place place 4 at 2,3|place 4 at at 2,3
pl ace 4 at 2,3|place 4 a t 2,3|place 4 at r ow 2 col 3|2,3,4 2,3,4
""")  # fmt: skip


@functools.cache
def reader(size):
    env = Sudoku(size=size)
    # A text is read without regard to the board.
    return jax.jit(
        jax.vmap(lambda text, n: env.read_action(text, n, None, env.default_params))
    )


def read(texts, size):
    return answers.read(reader(size), texts)


def test_the_six_forms_are_read():
    assert read(GOOD, 4) == [(1 * 4 + 2) * 4 + 3] * len(GOOD)
    assert read(GOOD, 9) == [(1 * 9 + 2) * 9 + 3] * len(GOOD)
    assert read([b"5 at 9,8", b"9,8,5"], 9) == [(8 * 9 + 7) * 9 + 4] * 2


def test_everything_else_is_not_a_placement():
    assert len(BAD) > 50
    assert not [t for t, i in zip(BAD, read(BAD, 4), strict=True) if i != -1]


@st.composite
def hostile_replies(draw):
    """Words in any order, or a form with blanks of any kind and a few faults."""
    digit = st.sampled_from("012345678911223344")
    form = draw(
        st.sampled_from(
            [
                ["place", "n", "at", "row", "n", "col", "n"],
                ["place", "n", "at", "(", "n", ",", "n", ")"],
                ["place", "n", "at", "n", ",", "n"],
                ["n", "at", "n", ",", "n"],
                ["(", "n", ",", "n", ",", "n", ")"],
                ["n", ",", "n", ",", "n"],
            ]
        )
    )
    junk = st.sampled_from([*"(),.;xn\n\x00٣", "row", "at", "col", "place", " ", "12"])
    if draw(st.integers(0, 3)) == 0:
        form = draw(st.lists(junk | st.just("n"), min_size=1, max_size=12))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        i = draw(st.integers(0, len(form) - 1))
        form[i : i + 1] = draw(st.sampled_from([[], [draw(junk)], [form[i]] * 2]))
        form = form or [","]
    words = [draw(digit) if word == "n" else word for word in form]
    if draw(st.integers(0, 3)) == 0:
        words = [w.upper() if draw(st.booleans()) else w.title() for w in words]
    # Most gaps between words and digits get the blank they need.
    is_word = [word.isalnum() for word in words]
    text = words[0]
    for i in range(1, len(words)):
        needs = is_word[i - 1] and is_word[i] and draw(st.integers(0, 15)) > 0
        gaps = [" "] * 4 + ["  ", "\t"] if needs else ["", "", "", " ", "\t "]
        text += draw(st.sampled_from(gaps)) + words[i]
    return text.encode()[:64].strip() or b","


@pytest.mark.parametrize("size", [4, 9])
def test_replies_are_read_as_by_regular_expressions(size):
    answers.check_replies(
        hostile_replies(),
        lambda replies: read(replies, size),
        lambda reply: oracle.read(reply, size),
        num_read=100,
    )


def test_written_placements_are_read():
    """On 9x9; the contract has 4x4."""
    env = Sudoku(size=9)
    actions = jnp.arange(env.num_actions, dtype=jnp.int32)
    fields = jax.device_get(env.action_fields(actions, None, env.default_params))
    texts = [text.encode() for text in answers.rendered(env, fields)]
    assert read(texts, 9) == actions.tolist()
