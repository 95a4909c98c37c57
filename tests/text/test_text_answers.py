"""Replies parsed on the host against the regex parser, which the device's equals."""

import random
import time

import numpy as np
import pytest

from ragen_jax.text.messages import parse_text
from tests.reference.answer_oracle import parse_reply
from tests.text.test_answers import MAX_ACTIONS, NAMES, VOCABULARY, hostile_reply


def parsed(reply, thinking=True):
    found = parse_text(reply, NAMES, max_actions=MAX_ACTIONS, thinking=thinking)
    assert found.names.shape == (MAX_ACTIONS,)
    assert np.all(found.names[found.num_names :] == -1)
    names = found.names[: found.num_names].tolist()
    return names, int(found.num_listed), bool(found.has_format)


@pytest.mark.parametrize("thinking", [True, False])
def test_equals_the_oracle_on_hostile_replies(thinking):
    draw = random.Random(5)
    num_formed = 0
    for _ in range(4000):
        tokens = hostile_reply(draw)
        reply = b"".join(VOCABULARY.token_bytes[token] for token in tokens)
        text = reply.decode("utf-8", "replace")
        expected = parse_reply(text.encode(), NAMES, MAX_ACTIONS, thinking=thinking)
        assert parsed(text, thinking) == expected, text
        # The prefix that endpoints may write themselves changes nothing.
        prefix = "<think>" if thinking else "<answer>"
        assert parsed(prefix + text, thinking) == expected, text
        num_formed += expected[2]
    assert 400 < num_formed < 3600


def test_a_hostile_reply_takes_no_time():
    """Where a backtracking search would take minutes."""
    hostile = ("<think></think>" + " " * 40 + "<answer") * 5000
    began = time.perf_counter()
    assert parsed(hostile) == ([], 0, False)
    assert parsed(hostile + "</think><answer>Up")[2] is False
    assert time.perf_counter() - began < 2


def test_half_characters_are_read():
    assert parsed("\ud800</think><answer>Up</answer>") == ([0], 1, True)
