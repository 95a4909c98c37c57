"""Appending to a transcript, against plain lists."""

import jax
import numpy as np

from ragen_jax.rollout.transcript import (
    append_message,
    append_reply,
    empty_transcript,
    empty_turns,
    record_turn,
)
from ragen_jax.types import Reply, TokenSpan


def test_appending_equals_lists():
    rng = np.random.default_rng(0)
    num_rows, width, reply_width, turns = 5, 6, 4, 3
    room = turns * (width + reply_width)
    transcript = empty_transcript(num_rows, room)
    expected = [[] for _ in range(num_rows)]
    message, reply = jax.jit(append_message), jax.jit(append_reply)
    for turn in range(turns):
        tokens = rng.integers(1, 99, (num_rows, width))
        lengths = rng.integers(0, width + 1, num_rows)
        # Row 0 is always full, row 1 says nothing.
        lengths[0], lengths[1] = width, 0
        transcript = message(transcript, TokenSpan(tokens, lengths), turn)
        for row, said in enumerate(expected):
            said += [(t, False, turn, 0.0) for t in tokens[row, : lengths[row]]]

        tokens = rng.integers(1, 99, (num_rows, reply_width))
        log_probs = -rng.random((num_rows, reply_width)).astype(np.float32)
        lengths = rng.integers(0, reply_width + 1, num_rows)
        lengths[0], lengths[1] = reply_width, 0
        is_cut = np.zeros(num_rows, bool)
        transcript = reply(transcript, Reply(tokens, log_probs, lengths, is_cut), turn)
        for row, said in enumerate(expected):
            count = lengths[row]
            pairs = zip(tokens[row, :count], log_probs[row, :count], strict=True)
            said += [(t, True, turn, p) for t, p in pairs]

    assert len(expected[0]) == room
    for row, said in enumerate(expected):
        assert transcript.lengths[row] == len(said)
        said = said + [(0, False, -1, 0.0)] * (room - len(said))
        columns = [np.asarray(column) for column in zip(*said, strict=True)]
        np.testing.assert_array_equal(transcript.tokens[row], columns[0])
        np.testing.assert_array_equal(transcript.loss_mask[row], columns[1])
        np.testing.assert_array_equal(transcript.turn_index[row], columns[2])
        np.testing.assert_array_equal(transcript.log_probs[row], columns[3])


def test_a_full_row_is_left_alone():
    full = np.asarray([4, 1], np.int32)
    transcript = empty_transcript(2, 4).replace(
        tokens=np.asarray([[1, 2, 3, 4], [1, 0, 0, 0]], np.int32), lengths=full
    )
    span = TokenSpan(np.full((2, 3), 9, np.int32), np.asarray([0, 3], np.int32))
    transcript = append_message(transcript, span, 1)
    np.testing.assert_array_equal(transcript.tokens, [[1, 2, 3, 4], [1, 9, 9, 9]])
    np.testing.assert_array_equal(transcript.lengths, [4, 4])


def test_only_rows_that_played_are_recorded():
    turns = empty_turns(2, 3, 2)
    record = jax.tree.map(lambda x: (x[:, 0].astype(float) + 1).astype(x.dtype), turns)
    record = record.replace(played=np.asarray([True, False]))
    turns = record_turn(turns, 1, record)
    np.testing.assert_array_equal(turns.reward, [[0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(turns.played, [[0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(turns.actions[0], [[-1, -1], [0, 0], [-1, -1]])
    np.testing.assert_array_equal(turns.actions[1], -1)
