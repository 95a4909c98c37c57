"""Expressions: values, reading and writing against plain Python."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from envs.countdown.env import Countdown, EnvState, expressions
from tests.envs import answers
from tests.reference import countdown_oracle as oracle

LEVELS = {3: [(44, 19, 35), (7, 7, 3), (1, 1, 1), (99, 9, 98)], 4: [(2, 2, 9, 10)]}
VALUES = jax.jit(expressions.evaluate_all)


@functools.cache
def trees(numbers):
    return oracle.trees(numbers)


@functools.cache
def reader(num_numbers):
    return jax.jit(jax.vmap(expressions.read_expression))


def read(texts, numbers):
    """Indices of many texts, one set of numbers per text."""
    numbers = jnp.array(numbers, jnp.int32)
    return answers.read(reader(numbers.shape[1]), texts, numbers)


RNG = np.random.default_rng(0)
NUMBERS = [
    (99, 98, 97),
    (1, 1, 1),
    (12, 3, 4),
    *(tuple(RNG.integers(1, 100, 3).tolist()) for _ in range(20)),
    (99, 98, 97, 96),
    (99, 99, 99, 99),
    (1, 1, 99, 99),
    tuple(RNG.integers(1, 100, 4).tolist()),
]


@pytest.mark.parametrize("numbers", NUMBERS)
def test_values_are_exact(numbers):
    over, under = map(np.asarray, VALUES(jnp.array(numbers, jnp.int32)))
    assert len(over) == len(trees(numbers)) == expressions.num_expressions(len(numbers))
    assert (under >= 0).all()
    for a, b, tree in zip(over.tolist(), under.tolist(), trees(numbers), strict=True):
        value = oracle.value(tree)
        assert (value is None) == (b == 0)
        assert value is None or a == value * b


def test_no_entry_overflows_whatever_the_numbers():
    for n, most in ((3, 2 * 99**3), (4, 3 * 99**4)):
        bounds = [oracle.largest_entry(tree)[1] for tree in trees((99,) * n)]
        assert max(bounds) <= most < 2**31


GOOD = [
    ("44+19+35", "+", ("+", 44, 19), 35),
    ("44-19-35", "-", ("-", 44, 19), 35),
    ("44-(19-35)", "-", 44, ("-", 19, 35)),
    ("44+19*35", "+", 44, ("*", 19, 35)),
    ("(44+19)*35", "*", ("+", 44, 19), 35),
    ("35/44/19", "/", ("/", 35, 44), 19),
    ("35/(44/19)", "/", 35, ("/", 44, 19)),
    ("((44))+(((19)+35))", "+", 44, ("+", 19, 35)),
    (" 44\t* ( 35 -19 )", "*", 44, ("-", 35, 19)),
    ("44+" + "(" * 27 + "19*35" + ")" * 27, "+", 44, ("*", 19, 35)),
]
BAD = answers.listed("""
44+19|44+19+35+1|44+19+36|44+19+19|44+19+35+44|4 4+19+35|044+19+35|44+19+0035|44+19+35.0
-44+19+35|+44+19+35|44+-19+35|44--19-35|44**19+35|44//19+35|44%19+35|44+19=35|44+19+35=98
44+19#35|44+19 or 35|63 if 44 else 1935|4_4+19+35|44e0+19+35|(44+19)(35)|44(19+35)
(44+19+35|44+19+35)|)44+19+35(|()44+19+35|44+()19+35|44+19+35()|44+19 35
44 19 35|+|(|44+19+|*44+19+35
44+19+٣٥|44+19+35;|44×19+35|44−19+35|99**98**97|44,19,35|(44+19))+((35)|44+19+35\x00
44+19+\n35|44+(19+)35|44+19(+)35|4294967340+19+35
44+19+99999999999999999999999999999999999999999999999
44&19|35<<19|abc|0|44.+19+35|44+ +19+35|"44+19+35"|$44+19+35$|44+19+35 points
""")  # fmt: skip


def test_expressions_are_read_with_the_usual_priorities():
    numbers = (44, 19, 35)
    indices = read([text.encode() for text, *_ in GOOD], [numbers] * len(GOOD))
    assert [trees(numbers)[i] for i in indices] == [tuple(tree) for _, *tree in GOOD]
    equal = read([b"7*7-3", b"3-7*7"], [(7, 7, 3)] * 2)
    assert equal[0] == trees((7, 7, 3)).index(("-", ("*", 7, 7), 3))
    assert min(equal) >= 0


def test_everything_else_is_not_an_answer():
    assert len(BAD) > 50
    indices = read(BAD, [(44, 19, 35)] * len(BAD))
    assert not [t for t, i in zip(BAD, indices, strict=True) if i != -1]


@st.composite
def hostile_replies(draw, num_numbers):
    """Numbers, and a text: tokens in any order, or an answer with a few faults."""
    numbers = draw(st.sampled_from(LEVELS[num_numbers]))
    word = st.sampled_from([str(n) for n in numbers])
    junk = st.sampled_from([*"+-*/()+-*/()0179 \t.=#%_e\n\x00٣", "**", "//", "()"])
    if draw(st.booleans()):
        words = draw(st.lists(word | junk, min_size=1, max_size=10))
    else:
        words = _write_loosely(draw, list(draw(st.permutations(numbers))))
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
            place = draw(st.integers(0, len(words) - 1))
            fault = [[], [draw(junk)], [words[place], draw(junk)]]
            words[place : place + 1] = draw(st.sampled_from(fault))
            words = words or ["1"]
    text = "".join(words).encode()[:64]
    return numbers, text.strip() or b"0"


def _write_loosely(draw, numbers):
    """A sound answer as a list of tokens, with blanks and spare parentheses."""
    if len(numbers) == 1:
        words = [str(numbers[0])]
    else:
        cut = draw(st.integers(1, len(numbers) - 1))
        left, right = (_write_loosely(draw, x) for x in (numbers[:cut], numbers[cut:]))
        words = [*left, draw(st.sampled_from("+-*/")), *right]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        words = ["(", *words, ")"]
    return [" ", *words, "\t"] if draw(st.integers(0, 4)) == 0 else words


@pytest.mark.parametrize("num_numbers", [3, 4])
def test_replies_are_read_as_by_recursive_descent(num_numbers):
    answers.check_replies(
        hostile_replies(num_numbers),
        lambda replies: read([text for _, text in replies], [n for n, _ in replies]),
        _expected,
        num_read=300,
    )


def _expected(reply):
    numbers, text = reply
    tree = oracle.parse(text)
    if tree is None or sorted(oracle.leaves(tree)) != sorted(numbers):
        return -1
    return trees(numbers).index(tree)


@pytest.mark.parametrize("numbers", [(44, 19, 35), (7, 7, 3), (5, 7, 11, 13)])
def test_written_expressions_are_read_and_keep_their_value(numbers):
    env = Countdown(num_numbers=len(numbers))
    zero = jnp.int32(0)
    state = EnvState(zero, jnp.array(numbers, jnp.int32), zero, zero)
    actions = jnp.arange(env.num_actions, dtype=jnp.int32)
    write = jax.jit(jax.vmap(env.action_fields, (0, None, None)))
    fields = jax.device_get(write(actions, state, env.default_params))
    texts = answers.rendered(env, fields)
    distinct = sorted(set(texts))
    indices = read([t.encode() for t in distinct], [numbers] * len(distinct))
    assert [texts[i] for i in indices] == distinct
    assert max(map(len, texts)) <= env.answer_bytes
    for tree, text in zip(trees(numbers), texts, strict=True):
        value = oracle.value(tree)
        assert oracle.value(oracle.parse(text.encode())) == value
    assert texts[trees(numbers).index(_nested("-", "+", numbers))] == (
        "-(".join(map(str, numbers[:2])) + "+" + "+".join(map(str, numbers[2:])) + ")"
    )
    nothing = dict.fromkeys(env.action_template.fields, 0)
    assert env.action_template.render(nothing) == ""


def _nested(first, other, numbers):
    """a first ((b other c) other d)"""
    right = numbers[1]
    for number in numbers[2:]:
        right = (other, right, number)
    return (first, numbers[0], right)


def test_no_pair_of_parentheses_could_be_left_out():
    for n, numbers in ((3, (5, 7, 11)), (4, (5, 7, 11, 13))):
        around, table = expressions.writing(n)
        for places in table.reshape(-1, n + 1):
            pieces = [texts[i] for texts, i in zip(around, places, strict=True)]
            pairs = itertools.zip_longest(pieces, map(str, numbers), fillvalue="")
            text = "".join(map("".join, pairs))
            value = oracle.value(oracle.parse(text.encode()))
            for match in re.finditer(r"\(", text):
                shorter = _without_pair(text, match.start())
                assert oracle.value(oracle.parse(shorter.encode())) != value


def _without_pair(text, begin):
    depth = 0
    for end in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            break
    return text[:begin] + text[begin + 1 : end] + text[end + 1 :]
