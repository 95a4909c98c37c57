"""Which tokens of a reply are its thought, against the text that they spell."""

import random

import jax
import jax.numpy as jnp
import pytest

from ragen_jax.text.answers import build_parser
from ragen_jax.text.statements import count_thought
from tests.text import test_answers

MAX_TOKENS = 24
FRAGMENTS = [b"</think>", b"</thi", b"nk>", b"</", b"think>", b"<think>", b"<", b"nk>."]
FRAGMENTS += [b" ", b"\n", b"P12", b"go up", b".</", b" </think", b">", b"<answer>Up"]


def spelled_thought(spelled: list[bytes]) -> int:
    """How many leading tokens lie before the first closing tag, one byte at a time."""
    text = b"".join(spelled)
    tag = text.find(b"</think>")
    if tag < 0:
        return 0
    count, size = 0, 0
    while count < len(spelled) and size + len(spelled[count]) <= tag:
        size += len(spelled[count])
        count += 1
    return count if text[:size].strip(b" \t\n\v\f\r") else 0


@jax.jit
def count_rows(parser, tokens, lengths):
    return jax.vmap(count_thought, (None, 0, 0))(parser, tokens, lengths)


def parser_of(vocabulary):
    return build_parser(
        vocabulary, ["Up"], max_actions_per_turn=1, max_reply_tokens=MAX_TOKENS
    )


def test_hostile_replies():
    """Tags that are split, half, repeated or missing; tokens that hold both."""
    vocabulary, draw, rows = test_answers.VOCABULARY, random.Random(2), []
    for _ in range(2000):
        pieces = draw.choices(FRAGMENTS, k=draw.randint(0, 6))
        rows.append(test_answers.tokenize(b"".join(pieces), draw))
    tokens, lengths = test_answers.pad(rows, MAX_TOKENS)
    counts = jax.device_get(count_rows(parser_of(vocabulary), tokens, lengths))
    spelled = vocabulary.token_bytes
    for row, count in zip(rows, counts, strict=True):
        pieces = [spelled[token] for token in row[:MAX_TOKENS]]
        assert count == spelled_thought(pieces), pieces
    assert 100 < (counts > 0).sum() < 1900


@pytest.mark.parametrize(
    ("reply", "thought"),
    [
        ("go up</think><answer>Up</answer>", "go up"),
        ("go. </think> Up</think>", "go. "),
        ("</think><answer>Up</answer>", ""),
        (" \n</think>", ""),
        ("go up", ""),
    ],
)
def test_replies_of_a_real_tokenizer(tokenizer, reply, thought):
    ids = tokenizer.encode(reply)
    padded = jnp.zeros(MAX_TOKENS, jnp.int32).at[: len(ids)].set(jnp.asarray(ids))
    count = int(count_thought(parser_of(tokenizer), padded, jnp.int32(len(ids))))
    said = b"".join(tokenizer.token_bytes[token] for token in ids[:count])
    # A token may hold the thought's end and the tag's beginning; it is not counted.
    assert thought.encode().startswith(said)
    assert len(thought) - len(said) <= 2
    assert bool(said) == bool(thought)
