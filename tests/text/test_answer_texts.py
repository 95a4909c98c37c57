"""Answers of games that read them: the bytes of each piece, on device and host."""

import random

import jax
import numpy as np
import pytest

from ragen_jax.text.answers import build_parser
from ragen_jax.text.messages import parse_text
from tests.reference.answer_oracle import list_pieces
from tests.text.test_answers import MAX_ACTIONS, VOCABULARY, hostile_reply, pad

MAX_TOKENS = 24
ANSWER_BYTES = 12
NUM_REPLIES = 2048


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
        # Of a piece that is too long only that counts.
        assert (size > ANSWER_BYTES) == (len(piece) > ANSWER_BYTES), reply
        if len(piece) <= ANSWER_BYTES:
            assert size == len(piece), reply
            shown = bytes(parsed.texts[row, i].tolist())
            assert shown == piece.ljust(ANSWER_BYTES, b"\0"), reply


@pytest.mark.parametrize("thinking", [True, False])
def test_pieces_equal_the_oracles_on_hostile_replies(thinking):
    draw = random.Random(7)
    rows = [hostile_reply(draw) for _ in range(NUM_REPLIES)]
    parser = build_parser(
        VOCABULARY,
        (),
        max_actions_per_turn=MAX_ACTIONS,
        max_reply_tokens=MAX_TOKENS,
        thinking=thinking,
        answer_bytes=ANSWER_BYTES,
    )
    parsed = jax.device_get(jax.jit(jax.vmap(parser.parse))(*pad(rows, MAX_TOKENS)))
    assert parsed.names is None
    for i, row in enumerate(rows):
        reply = b"".join(VOCABULARY.token_bytes[token] for token in row[:MAX_TOKENS])
        assert_equal(parsed, i, reply, thinking)
    assert 200 < parsed.has_format.sum() < NUM_REPLIES - 200
    assert (parsed.sizes > ANSWER_BYTES).any()


@pytest.mark.parametrize("thinking", [True, False])
def test_replies_as_text_have_the_same_pieces(thinking):
    draw = random.Random(8)
    for _ in range(1000):
        tokens = hostile_reply(draw)
        reply = b"".join(VOCABULARY.token_bytes[token] for token in tokens)
        text = reply.decode("utf-8", "replace")
        parsed = parse_text(
            text,
            (),
            max_actions=MAX_ACTIONS,
            thinking=thinking,
            answer_bytes=ANSWER_BYTES,
        )
        rows = jax.tree.map(lambda x: np.asarray(x)[None], parsed)
        assert_equal(rows, 0, text.encode(), thinking)
