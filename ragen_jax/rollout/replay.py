"""Replay of episodes: the states that a trajectory does not store.

In: a trajectory of one environment. Out: the state before every action. The recorded
actions are stepped with the recorded noise keys, which repeats slips and payouts.
"""

import jax
import jax.numpy as jnp

from envs.base import EnvParams, TextEnvironment
from ragen_jax.types import EnvState, Trajectory


def replay(
    env: TextEnvironment, env_params: EnvParams, trajectory: Trajectory
) -> tuple[EnvState, EnvState]:
    """The state before every action, and the last one; call it in `jit`.

    Args:
      env, env_params: of the rollout.
      trajectory: rows of one environment, with their initial states.

    Returns:
      States with leading axes `B K A`, and final states with leading axis `B`. Actions
      that were not executed leave the state unchanged. The state before turn `k` is
      the one before its action 0.
    """

    def play_row(state, turns, noise_key):
        def act(carry, inputs):
            state, turn_key = carry
            i, action, is_run = inputs
            _, after, *_ = env.step_env(
                jax.random.fold_in(turn_key, i),
                state,
                jnp.maximum(action, 0),
                env_params,
            )
            chosen = jax.tree.map(
                lambda new, old: jnp.where(is_run, new, old), after, state
            )
            return (chosen, turn_key), state

        def take_turn(state, inputs):
            turn, actions, num_executed = inputs
            places = jnp.arange(actions.shape[0])
            turn_key = jax.random.fold_in(noise_key, turn)
            steps = (places, actions, places < num_executed)
            (state, _), before = jax.lax.scan(act, (state, turn_key), steps)
            return state, before

        order = jnp.arange(turns.played.shape[0])
        inputs = (order, turns.actions, turns.num_executed)
        return jax.lax.scan(take_turn, state, inputs)

    keys = jax.random.wrap_key_data(trajectory.noise_key)
    last, before = jax.vmap(play_row)(trajectory.initial_state, trajectory.turns, keys)
    return before, last
