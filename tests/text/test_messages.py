"""Replies parsed as text on the host, and answers of games that read their bytes.

The oracle is the regex parser, which the device's parser equals (`test_answers`).
"""

import random
import time

import jax
import numpy as np
import pytest

from ragen_jax.text.messages import parse_text
from tests.reference.answer_oracle import list_pieces, parse_reply
from tests.text.test_answers import (
    MAX_ACTIONS,
    MAX_TOKENS,
    NAMES,
    VOCABULARY,
    hostile_reply,
    pad,
    small_parser,
)

ANSWER_BYTES = 12
NUM_REPLIES = 2048


def hostile_texts(count):
    draw = random.Random(5)
    for _ in range(count):
        tokens = hostile_reply(draw)
        reply = b"".join(VOCABULARY.token_bytes[token] for token in tokens)
        yield reply.decode("utf-8", "replace")


def expected_of(reply: bytes, thinking: bool):
    """Bytes and length of the pieces that count; how many are listed, and the form."""
    pieces = list_pieces(reply, thinking=thinking)
    counted = (pieces or [])[:MAX_ACTIONS]
    return counted, len(pieces or []), pieces is not None


def assert_equal(parsed, row, reply: bytes, thinking: bool) -> None:
    counted, num_listed, has_format = expected_of(reply, thinking)
    assert int(parsed.num_names[row]) == len(counted), reply
    assert int(parsed.num_listed[row]) == num_listed, reply
    assert bool(parsed.has_format[row]) == has_format, reply
    for i, piece in enumerate(counted):
        size = int(parsed.sizes[row, i])
        # If a piece is too long, only that matters.
        assert (size > ANSWER_BYTES) == (len(piece) > ANSWER_BYTES), reply
        if len(piece) <= ANSWER_BYTES:
            assert size == len(piece), reply
            text = bytes(parsed.texts[row, i].tolist())
            assert text == piece.ljust(ANSWER_BYTES, b"\0"), reply


@pytest.mark.parametrize("thinking", [True, False])
def test_pieces_equal_the_oracles_on_hostile_replies(thinking):
    draw = random.Random(7)
    rows = [hostile_reply(draw) for _ in range(NUM_REPLIES)]
    parser = small_parser((), thinking=thinking, answer_bytes=ANSWER_BYTES)
    parsed = jax.device_get(jax.jit(jax.vmap(parser.parse))(*pad(rows, MAX_TOKENS)))
    assert parsed.names is None
    for i, row in enumerate(rows):
        reply = b"".join(VOCABULARY.token_bytes[token] for token in row[:MAX_TOKENS])
        assert_equal(parsed, i, reply, thinking)
    assert 200 < parsed.has_format.sum() < NUM_REPLIES - 200
    assert (parsed.sizes > ANSWER_BYTES).any()


@pytest.mark.parametrize("thinking", [True, False])
def test_replies_as_text_have_the_same_pieces(thinking):
    for text in hostile_texts(1000):
        parsed = parse_text(
            text,
            (),
            max_actions=MAX_ACTIONS,
            thinking=thinking,
            answer_bytes=ANSWER_BYTES,
        )
        rows = jax.tree.map(lambda x: np.asarray(x)[None], parsed)
        assert_equal(rows, 0, text.encode(), thinking)


def names_of(reply, thinking=True):
    parsed = parse_text(reply, NAMES, max_actions=MAX_ACTIONS, thinking=thinking)
    assert parsed.names.shape == (MAX_ACTIONS,)
    assert np.all(parsed.names[parsed.num_names :] == -1)
    names = parsed.names[: parsed.num_names].tolist()
    return names, int(parsed.num_listed), bool(parsed.has_format)


@pytest.mark.parametrize("thinking", [True, False])
def test_names_equal_the_oracles_on_hostile_replies(thinking):
    num_formed = 0
    for text in hostile_texts(4000):
        expected = parse_reply(text.encode(), NAMES, MAX_ACTIONS, thinking=thinking)
        assert names_of(text, thinking) == expected, text
        # Endpoints may write the prefix themselves.
        prefix = "<think>" if thinking else "<answer>"
        assert names_of(prefix + text, thinking) == expected, text
        num_formed += expected[2]
    assert 400 < num_formed < 3600


def test_a_hostile_reply_takes_no_time():
    """A backtracking search would take minutes."""
    hostile = ("<think></think>" + " " * 40 + "<answer") * 5000
    began = time.perf_counter()
    assert names_of(hostile) == ([], 0, False)
    assert names_of(hostile + "</think><answer>Up")[2] is False
    assert time.perf_counter() - began < 2


def test_half_characters_are_read():
    assert names_of("\ud800</think><answer>Up</answer>") == ([0], 1, True)
