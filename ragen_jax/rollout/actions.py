"""Actions of a parsed answer, run in the game; for one row, callers `vmap`.

In: a state, the names an answer listed, the action budget left. Out: the next state and
what the turn did. Rules (RAGEN's environment manager): names that are no action of the
game are skipped, the valid ones run in order until the budget is spent or the game is
over, and the format penalty is paid once per turn when nothing was valid or a listed
name was unknown. Names beyond the per-turn limit were dropped by the parser, free of
charge.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from envs.base import EnvParams, TextEnvironment
from ragen_jax.types import EnvState, ParsedAnswer


@struct.dataclass
class Outcome:
    """Outcome of a turn in the game (one row); fields as in `Turns`.

    Attributes:
      terminated, truncated: the game, or its own time limit, has ended.
    """

    reward: Float[Array, ""]
    num_executed: Int[Array, ""]
    num_effective: Int[Array, ""]
    actions: Int[Array, " A"]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


def valid_actions(
    action_names: Int[Array, " num_actions"], answer: ParsedAnswer
) -> tuple[Int[Array, " A"], Int[Array, ""], Bool[Array, ""]]:
    """The game's actions among the names of an answer.

    Args:
      action_names: the name of each action, an index into the vocabulary.
      answer: one row's.

    Returns:
      The valid actions in the order listed, -1 behind them; how many; whether a listed
      name is unknown, that is no action of this level.
    """
    is_same = answer.names[:, None] == action_names[None, :]
    is_listed = jnp.arange(answer.names.shape[0]) < answer.num_names
    is_valid = is_listed & jnp.any(is_same, axis=1)
    actions = jnp.where(is_valid, jnp.argmax(is_same, axis=1), -1)
    order = jnp.argsort(~is_valid, stable=True)
    return (
        actions[order].astype(jnp.int32),
        jnp.sum(is_valid, dtype=jnp.int32),
        jnp.any(is_listed & ~is_valid),
    )


def run_actions(
    env: TextEnvironment,
    env_params: EnvParams,
    state: EnvState,
    key: Key[Array, ""],
    actions: Int[Array, " A"],
    num_actions: Int[Array, ""],
) -> tuple[EnvState, Outcome]:
    """Step the game through the first `num_actions` actions, stopping when it is over.

    Args:
      key: the turn's noise key; action `i` is stepped with `fold_in(key, i)`.

    Returns:
      The state after them (the same state if none ran) and what they did.
    """

    def step(carry, inputs):
        state, is_over, total = carry
        index, action = inputs
        is_run = (index < num_actions) & ~is_over
        _, after, reward, _, info = env.step_env(
            jax.random.fold_in(key, index), state, jnp.maximum(action, 0), env_params
        )
        state = jax.tree.map(lambda new, old: jnp.where(is_run, new, old), after, state)
        is_over = env.is_terminated(state, env_params) | env.is_truncated(
            state, env_params
        )
        total = total + jnp.where(is_run, reward, 0.0).astype(jnp.float32)
        done = (is_run, is_run & info["effective"], jnp.where(is_run, action, -1))
        return (state, is_over, total), done

    start = (state, jnp.bool_(False), jnp.float32(0))
    inputs = (jnp.arange(actions.shape[0], dtype=jnp.int32), actions)
    (state, _, total), (is_run, is_effective, executed) = jax.lax.scan(
        step, start, inputs
    )
    outcome = Outcome(
        reward=total,
        num_executed=jnp.sum(is_run, dtype=jnp.int32),
        num_effective=jnp.sum(is_effective, dtype=jnp.int32),
        actions=executed,
        terminated=jnp.asarray(env.is_terminated(state, env_params)),
        truncated=jnp.asarray(env.is_truncated(state, env_params)),
    )
    return state, outcome
