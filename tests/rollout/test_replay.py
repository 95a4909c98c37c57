"""Episodes played again are what they were, slips included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.hashing import hash_arrays
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.records import add_boards
from ragen_jax.rollout.replay import grid_of, make_boards_after, replay
from tests.rollout import players

GAME = "frozen_lake"
KEYS = rollout_keys(jax.random.key(2), 16, 2)


@pytest.fixture(scope="module")
def rollout():
    _, dialogue = players.game(GAME)
    collect = players.collector(GAME, num_groups=16)
    return jax.device_get(collect(players.speaker_params(GAME), dialogue, KEYS))


@pytest.mark.slow
def test_states_are_those_that_were_played(rollout):
    env, _ = players.game(GAME)
    params = env.default_params
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


@pytest.mark.slow
def test_boards_follow_the_actions_of_a_record(rollout):
    """Against the game stepped on the host, one action after the other."""
    env, _ = players.game(GAME)
    params, grid = env.default_params, grid_of(env)
    boards = jax.device_get(make_boards_after(env, params)(rollout))
    turns = rollout.turns
    records = [
        {
            "turns": [
                {"turn": k + 1, "actions": turns.actions[row, k, :n].tolist()}
                for k, n in enumerate(turns.num_executed[row])
            ]
        }
        for row in range(8)
    ]
    add_boards(records, boards, grid.symbols)
    step = jax.jit(lambda *how: env.step_env(*how, params)[1])
    num_boards = 0
    for row, record in enumerate(records):
        state = jax.tree.map(lambda x, row=row: x[row], rollout.initial_state)
        for k, turn in enumerate(record["turns"]):
            turn_key = jax.random.fold_in(KEYS.noise[row], k)
            for i, action in enumerate(turn["actions"]):
                key = jax.random.fold_in(turn_key, i)
                state = step(key, state, jnp.int32(action))
                shown = "\n".join(turn["boards_after"][i])
                assert shown in env.render(state, params)
                num_boards += 1
    assert num_boards > 4
    assert make_boards_after(players.game("bandit")[0], None) is None
