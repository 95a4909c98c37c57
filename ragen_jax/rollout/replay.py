"""Replay of episodes: the states that a trajectory does not store.

In: a trajectory of one environment. Out: the state before every action, or the board
after it. The recorded actions are stepped with the recorded noise keys, which repeats
slips and payouts.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from envs.base import EnvParams, TextEnvironment, TextGame
from envs.templates import Grid
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


def make_boards_after(
    env: TextGame, env_params: EnvParams
) -> Callable[[Trajectory], Int[Array, "B K A rows cols"]] | None:
    """Build the compiled `boards_after(trajectory)`: the board after every action.

    Entries are ids of the symbols of `grid_of`. Where an action was not executed the
    entry is the board that it left. None for a game that shows no board.
    """
    grid = grid_of(env)
    if grid is None:
        return None

    def read(state: EnvState):
        return env.text_fields(state, env_params)[grid.name].astype(jnp.int32)

    def after(before, last):
        """States after every action, from those before: each is the next one's."""
        in_order = before.reshape(-1, *before.shape[2:])
        shifted = jnp.concatenate([in_order[1:], last[None]])
        return shifted.reshape(before.shape)

    @jax.jit
    def boards_after(trajectory: Trajectory):
        befores, lasts = replay(env, env_params, trajectory)
        states = jax.tree.map(jax.vmap(after), befores, lasts)
        return jax.vmap(jax.vmap(jax.vmap(read)))(states)

    return boards_after


def grid_of(env: TextGame) -> Grid | None:
    """The board in the text of a game, None if it has none."""
    grids = [part for part in env.template.parts if isinstance(part, Grid)]
    return grids[0] if grids else None
