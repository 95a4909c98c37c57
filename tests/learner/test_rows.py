"""Learning from windows: where they hide nothing, dialogues teach the same."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.types import Trajectory, Windows
from tests.learner import tiny

KEY = jax.random.key(5)


def with_whole_windows(trajectory: Trajectory) -> Trajectory:
    """Every window holds the dialogue up to the end of its turn's reply."""
    mask, turn_index = np.asarray(trajectory.loss_mask), trajectory.turn_index
    num_rows, num_tokens = mask.shape
    shape = (num_rows, trajectory.turns.played.shape[1])
    starts, lengths = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    tokens = np.full((*shape, num_tokens), 10**6, np.int32)
    for row, turn in np.ndindex(*shape):
        places = np.flatnonzero(mask[row] & (np.asarray(turn_index[row]) == turn))
        if len(places):
            starts[row, turn], lengths[row, turn] = places[0], len(places)
            end = places[-1] + 1
            tokens[row, turn, :end] = trajectory.tokens[row, :end]
    turns = trajectory.turns.replace(
        reply_start=jnp.asarray(starts), reply_length=jnp.asarray(lengths)
    )
    windows = Windows(
        tokens=jnp.asarray(tokens),
        lengths=jnp.asarray(starts + lengths),
        reply_start=jnp.asarray(starts),
        of_turn=jnp.broadcast_to(jnp.arange(shape[1]), shape),
    )
    return trajectory.replace(turns=turns, windows=windows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"importance_cap": 1.5, "old_log_probs": "learner"},
        {"advantage": "gae", "placement": "loss", "filter__score": "entropy"},
        {"advantage": "bi_level_gae", "placement": "reward", "trunk": "shared"},
    ],
)
def test_windows_that_hide_nothing_teach_the_same(settings):
    """One minibatch holds all, so that its composition is the same."""
    settings = {"minibatch_rows": 48, "microbatch_rows": 8, **settings}
    learned = []
    windowed = with_whole_windows(tiny.make_episodes())
    for trajectory in (windowed.replace(windows=None), windowed):
        state, update = tiny.build(**settings)
        for i in range(2):
            state, stats, _ = update(state, trajectory, jax.random.fold_in(KEY, i))
        learned.append((tiny.host(state), jax.device_get(stats)))
    (full, full_stats), (windowed, stats) = learned
    chex.assert_trees_all_close(windowed, full, atol=3e-6)
    chex.assert_trees_all_close(stats, full_stats, atol=1e-4, rtol=1e-4)
    assert stats["actor/num_tokens"] > 0
