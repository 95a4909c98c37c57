"""Episodes played again are what they were, slips included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.hashing import hash_arrays
from ragen_jax.rollout.collect import rollout_keys
from ragen_jax.rollout.replay import replay
from tests.rollout import players


@pytest.mark.slow
def test_states_are_those_that_were_played():
    name = "frozen_lake"
    env, dialogue = players.game(name)
    params = env.default_params
    collect = players.collector(name, num_groups=16)
    rollout = collect(
        players.speaker_params(name), dialogue, rollout_keys(jax.random.key(2), 16, 2)
    )
    play_again = jax.jit(lambda rollout: replay(env, params, rollout))
    before, last = play_again(rollout)
    turns = rollout.turns
    assert turns.num_executed.sum() > 8

    def picture(state):
        return hash_arrays(env.text_fields(state, params))

    shown = jax.vmap(jax.vmap(picture))(jax.tree.map(lambda x: x[:, :, 0], before))
    played = np.asarray(turns.played)
    np.testing.assert_array_equal(
        np.asarray(shown)[played], np.asarray(turns.state_hash)[played]
    )
    success = jax.vmap(env.is_success, (0, None))(last, params)
    np.testing.assert_array_equal(success, rollout.success)
    # Every executed action takes time, and no other does.
    time = np.asarray(before.time)
    executed = np.asarray(turns.actions) >= 0
    count = np.cumsum(executed.reshape(32, -1), axis=1).reshape(executed.shape)
    np.testing.assert_array_equal(time, count - executed)
    other = rollout.replace(noise_key=jnp.roll(rollout.noise_key, 1, axis=0))
    _, elsewhere = play_again(other)
    assert (np.asarray(elsewhere.position) != np.asarray(last.position)).any()
