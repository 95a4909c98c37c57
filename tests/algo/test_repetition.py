"""Repetition: against sets and dictionaries, and what must not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.algo.repetition import distinct_ngrams, top_reply_share
from ragen_jax.learner.metrics import reply_stats
from tests.reference import repetition_oracle as oracle
from tests.trajectories import make_dialogues

distinct_program = jax.jit(distinct_ngrams, static_argnames="size")
top_program = jax.jit(top_reply_share)


def distinct(t, size):
    return distinct_program(t.tokens, t.loss_mask, turn_index=t.turn_index, size=size)


def top(t):
    return top_program(
        t.tokens,
        t.loss_mask,
        turn_index=t.turn_index,
        played=t.turns.played,
        reply_start=t.turns.reply_start,
    )


def make(seed, *, vocab_size=2, num_rows=20):
    """Dialogues of few words, so that much is said twice."""
    trajectory = make_dialogues(num_rows, seed=seed)
    random = np.random.default_rng(seed)
    tokens = random.integers(0, vocab_size, trajectory.tokens.shape)
    return with_starts(trajectory.replace(tokens=jnp.asarray(tokens, jnp.int32)))


def with_starts(trajectory):
    """`reply_start` as a rollout records it; where not played, what must not count."""
    mask, turn_index = map(np.asarray, (trajectory.loss_mask, trajectory.turn_index))
    start = np.full(np.asarray(trajectory.turns.played).shape, 7)
    for row, turn in zip(*np.nonzero(trajectory.turns.played), strict=True):
        start[row, turn] = np.argmax(mask[row] & (turn_index[row] == turn))
    turns = trajectory.turns.replace(reply_start=jnp.asarray(start, jnp.int32))
    return trajectory.replace(turns=turns)


@pytest.mark.parametrize("seed", range(4))
def test_equals_oracle(seed):
    trajectory = make(seed)
    found = oracle.replies(trajectory)
    for size in (1, 2, 3):
        expected = oracle.distinct_ngrams(found, size)
        assert 0 < expected < 1
        assert distinct(trajectory, size=size) == pytest.approx(expected)
    expected = oracle.top_reply_share(found)
    assert 1 / len(found) < expected < 1
    assert top(trajectory) == pytest.approx(expected)


def test_order_and_length_tell_replies_apart():
    """ "ab", "ba" and "a", and a reply of the token 0 alone against none."""
    blank = make(0, num_rows=4)
    shape = blank.tokens.shape
    mask, tokens = np.zeros(shape, bool), np.zeros(shape, np.int32)
    for row, reply in enumerate(([1, 2], [2, 1], [1], [0])):
        # Not at the same place: where a reply stands does not matter.
        mask[row, 1 + row : 1 + row + len(reply)] = True
        tokens[row, 1 + row : 1 + row + len(reply)] = reply
    only_first = jnp.asarray(np.arange(3)[None] == 0) & jnp.ones((4, 1), bool)
    trajectory = with_starts(
        blank.replace(
            tokens=jnp.asarray(tokens),
            loss_mask=jnp.asarray(mask),
            turn_index=jnp.zeros(shape, jnp.int32),
            turns=blank.turns.replace(played=only_first),
        )
    )
    assert top(trajectory) == 0.25
    same = trajectory.replace(tokens=jnp.ones_like(trajectory.tokens))
    assert top(same) == 0.5
    assert distinct(trajectory, size=1) == 0.5
    assert distinct(trajectory, size=2) == 1
    assert distinct(trajectory, size=3) == 0


def test_rows_of_failed_games_have_no_replies():
    trajectory = make(0)
    mask = trajectory.loss_mask.at[:3].set(False)
    rest = jax.tree.map(lambda x: x[3:], trajectory)
    sound = oracle.top_reply_share(oracle.replies(rest))
    stats = reply_stats(trajectory.replace(loss_mask=mask))
    assert stats["rollout/top_reply_share"] == pytest.approx(sound)


def test_nothing_played():
    trajectory = make(1)
    turns = trajectory.turns.replace(played=jnp.zeros_like(trajectory.turns.played))
    nothing = trajectory.replace(
        loss_mask=jnp.zeros_like(trajectory.loss_mask), turns=turns
    )
    assert top(nothing) == distinct(nothing, size=3) == 0
