"""The device's reading of thoughts against regexes, on tidy and on hostile ones."""

import itertools
import random

import jax
import pytest

from ragen_jax.text.statements import build_fact_reader
from tests.reference.facts_oracle import read_facts
from tests.text import test_answers

NAMES = (("P", ("player", "you")), ("X", ("box",)), ("√", ("goal", "target")))
MAX_TOKENS = 40
NUM_ROWS = 4096
FRAGMENTS = [
    *(b"P", b"X", "√".encode(), b"player", b"Player", b"you", b"YOU", b"box", b"Box"),
    *(b"goal", b"target", b"boxes", b"x", b"p", b"unbox", b"P1", b"XX"),
    *(b"12", b"1", b"3", b"04", b"1104", b"123", b"4567", b"89012", b"0"),
    *(b" at (", b", ", b")", b" is in row ", b", column ", b" ", b"-", b":"),
    *(b".", b";", b"\n", b" pushed ", b" to the ", b"a" * 20, b" " * 15, b"\xe2\x88"),
    *(b"</think>", b"</thi", b"nk>", b"<answer>Up</answer>"),
]
# A name, a gap, a number, a gap, a number; any of them may be replaced.
SENTENCE = [
    [b"P", b"X", "√".encode(), b"player", b"Box", b"goal"],
    [b"", b"", b" at (", b" is in row ", b" is 1 "],
    [b"1", b"12", b"3", b"04"],
    [b", ", b", column ", b"; "],
    [b"2", b"0", b"12"],
]


@pytest.fixture(scope="module")
def reader():
    return build_fact_reader(test_answers.VOCABULARY, NAMES)


@jax.jit
def read_rows(reader, tokens, lengths):
    return jax.vmap(lambda row, length: reader.read(row, length))(tokens, lengths)


def assert_agrees(reader, rows) -> int:
    """Compares every statement with the oracle; returns how many were the first."""
    tokens, lengths = test_answers.pad(rows, MAX_TOKENS)
    both = jax.device_get(read_rows(reader, tokens, lengths))
    spelled = test_answers.VOCABULARY.token_bytes
    for (i, row), (number, got) in itertools.product(enumerate(rows), enumerate(both)):
        reply = b"".join(spelled[token] for token in row[:MAX_TOKENS])
        for j, expected in enumerate(read_facts(reply, NAMES, number)):
            assert got.is_stated[i, j] == (expected is not None), (reply, number, j)
            cell = (got.row[i, j], got.col[i, j])
            assert cell == (expected or (0, 0)), (reply, number, j)
    return int(both[0].is_stated.sum())


def test_hostile_thoughts_are_read_as_the_regexes_read_them(reader):
    draw = random.Random(5)
    rows = []
    for _ in range(NUM_ROWS):
        parts = draw.choices(FRAGMENTS, k=draw.randrange(1, 4))
        for _ in range(draw.randrange(3)):
            parts += [
                draw.choice(options if draw.random() < 0.93 else FRAGMENTS)
                for options in SENTENCE
            ]
        reply = b"".join(parts)
        if draw.random() < 0.8:
            reply += b"</think><answer>Up</answer>"
        rows.append(test_answers.tokenize(reply, draw))
    assert assert_agrees(reader, rows) > 800


@pytest.mark.parametrize(
    ("thought", "expected"),
    [
        (b"P12X23\xe2\x88\x9a34</think>", [(1, 2), (2, 3), (3, 4)]),
        (b"P1104</think>", [(11, 4), None, None]),
        (b"P123</think>", [None, None, None]),
        (b"P12", [None, None, None]),
        (b"Player at (1, 2).</think>", [(1, 2), None, None]),
        (b"The box is in row 1, column 12</think>", [None, (1, 12), None]),
        (b"push the box to the goal at 3,4</think>", [None, None, (3, 4)]),
        (b"box up. Then 3, 4</think>", [None, None, None]),
        (b"P1 P23</think>", [(2, 3), None, None]),
        (b"box 1, 2 box 3, 4</think>", [None, (1, 2), None]),
        (b"unbox 1, 2 boxes 3, 4 XX12</think>", [None, None, None]),
        (b"</think>P12</think>", [None, None, None]),
    ],
)
def test_cases(reader, thought, expected):
    assert read_facts(thought, NAMES) == expected
    tokens = test_answers.tokenize(thought, random.Random(0))
    assert assert_agrees(reader, [tokens] * NUM_ROWS) == NUM_ROWS * sum(
        e is not None for e in expected
    )


def test_the_second_statement_is_read_too(reader):
    thoughts = (
        b"P12X23P13X24</think>",
        b"Box at (1, 2). The box, 34, then the box at (3, 4) and 5.</think>",
        b"P12 P1 P34 P56</think>",
        b"P12 P</think>P34",
    )
    rows = [test_answers.tokenize(x, random.Random(0)) for x in thoughts]
    assert_agrees(reader, rows * (NUM_ROWS // len(rows)))
    second = [read_facts(x, NAMES, 1) for x in thoughts]
    assert second == [
        [(1, 3), (2, 4), None],
        [None, (3, 4), None],
        [(3, 4), None, None],
        [None] * 3,
    ]


def test_gaps_and_numbers_at_their_limits(reader):
    """One byte more than allowed, and one fewer, at every limit."""
    rows = []
    for gap in range(30, 35):
        for between in range(14, 19):
            for digits in range(1, 5):
                row = b"1" * digits
                text = b"box" + b" " * gap + row + b" " * between + b"2</think>"
                rows.append(test_answers.tokenize(text, random.Random(gap)))
    tokens = [row for row in rows if len(row) <= MAX_TOKENS]
    assert len(tokens) == len(rows)
    found = assert_agrees(reader, rows + [rows[0]] * (NUM_ROWS - len(rows)))
    assert 0 < found < NUM_ROWS
