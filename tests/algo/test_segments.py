"""Maps between the tokens of a dialogue and those of its windows, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.learner.batch import from_rows, to_rows
from ragen_jax.types import Windows
from tests.trajectories import make_trajectory

NUM_ROWS, NUM_TURNS, NUM_TOKENS, WIDTH = 5, 4, 60, 50
NUM_WINDOWS = 3


def _layout(seed):
    """Episodes with random replies (some empty), each somewhere in some window."""
    random = np.random.default_rng(seed)
    starts, lengths, places, of_turn = (
        np.zeros((NUM_ROWS, NUM_TURNS), np.int32) for _ in range(4)
    )
    ends = np.zeros((NUM_ROWS, NUM_WINDOWS), np.int32)
    turn_index = np.full((NUM_ROWS, NUM_TOKENS), -1, np.int32)
    mask = np.zeros((NUM_ROWS, NUM_TOKENS), bool)
    for row in range(NUM_ROWS):
        end = 0
        # Row 0 plays every turn, row 1 none.
        num_played = {0: NUM_TURNS, 1: 0}.get(row, random.integers(1, NUM_TURNS + 1))
        for turn in range(num_played):
            begin, start = end, end + random.integers(1, 8)
            length = random.integers(0, 8)
            end = start + length
            turn_index[row, begin:end] = turn
            mask[row, start:end] = True
            starts[row, turn], lengths[row, turn] = start, length
            # The last window of row 0 is the first turn's, up to its last column.
            window = random.integers(0, NUM_WINDOWS - (row == 0))
            place = ends[row, window] + random.integers(0, 4)
            if (row, turn) == (0, 0):
                window, place = NUM_WINDOWS - 1, WIDTH - length
            of_turn[row, turn], places[row, turn] = window, place
            ends[row, window] = place + length
    trajectory = make_trajectory(np.zeros(NUM_ROWS), num_tokens=NUM_TOKENS)
    shape = (NUM_ROWS, NUM_WINDOWS, WIDTH)
    return trajectory.replace(
        turn_index=jnp.asarray(turn_index),
        loss_mask=jnp.asarray(mask),
        turns=trajectory.turns.replace(
            reply_start=jnp.asarray(starts), reply_length=jnp.asarray(lengths)
        ),
        windows=Windows(
            tokens=jnp.zeros(shape, jnp.int32),
            lengths=jnp.asarray(ends),
            reply_start=jnp.asarray(places),
            of_turn=jnp.asarray(of_turn),
        ),
    )


def to_windows(x, trajectory):
    windows = trajectory.windows
    return to_rows(x, trajectory).reshape(windows.tokens.shape)


def from_windows(y, trajectory):
    return from_rows(y.reshape(-1, WIDTH), trajectory)


def _pairs(trajectory):
    """Where each sampled token stands: in the dialogue, in the windows."""
    turns, windows = trajectory.turns, trajectory.windows
    for row, turn in np.ndindex(NUM_ROWS, NUM_TURNS):
        for i in range(turns.reply_length[row, turn]):
            place = int(windows.reply_start[row, turn]) + i
            window = int(windows.of_turn[row, turn])
            yield (row, int(turns.reply_start[row, turn]) + i), (row, window, place)


@pytest.mark.parametrize("seed", range(4))
def test_maps_equal_loops_and_are_inverse(seed):
    trajectory = _layout(seed)
    random = np.random.default_rng(seed)
    x = random.normal(size=(NUM_ROWS, NUM_TOKENS)).astype(np.float32)
    y = random.normal(size=(NUM_ROWS, NUM_WINDOWS, WIDTH)).astype(np.float32)
    there, back = np.zeros_like(y), np.zeros_like(x)
    for token, place in _pairs(trajectory):
        there[place], back[token] = x[token], y[place]
    x, y = jnp.asarray(x), jnp.asarray(y)
    np.testing.assert_array_equal(to_windows(x, trajectory), there)
    np.testing.assert_array_equal(from_windows(y, trajectory), back)
    masked = np.where(trajectory.loss_mask, x, 0)
    again = from_windows(to_windows(x, trajectory), trajectory)
    np.testing.assert_array_equal(again, masked)
    assert np.any(masked)


def test_values_keep_their_dtype_and_hostile_ones_stay_out():
    trajectory = _layout(0)
    in_window = to_windows(trajectory.loss_mask, trajectory)
    assert in_window.dtype == bool
    assert to_windows(trajectory.tokens, trajectory).dtype == jnp.int32
    bad = jnp.where(in_window, 1.0, jnp.nan)
    kept = from_windows(bad, trajectory)
    assert jnp.all(kept == trajectory.loss_mask.astype(float))
    bad = jnp.where(trajectory.loss_mask, 1.0, jnp.nan)
    assert jnp.all(to_windows(bad, trajectory) == in_window.astype(float))


def test_gradients_reach_sampled_tokens_only():
    trajectory = _layout(1)
    y = jnp.ones((NUM_ROWS, NUM_WINDOWS, WIDTH))
    slopes = jax.grad(lambda y: jnp.sum(from_windows(y, trajectory)))(y)
    np.testing.assert_array_equal(slopes, to_windows(trajectory.loss_mask, trajectory))
