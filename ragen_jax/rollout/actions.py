"""Actions of a parsed answer, run in the game; for one row, callers `vmap`.

In: a state, what an answer listed, the action budget left. Out: the next state and what
the turn did. Rules (RAGEN's environment manager): what is not an action of the game is
skipped, valid actions run in order until the budget is spent or the game is over, and
the format penalty is paid once per turn when nothing was valid or something listed was
not one. Names beyond the per-turn limit were dropped by the parser, without
penalty. Names are looked up in the state before the turn; a game that reads answers
itself reads each text in the state before its action.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from envs.base import EnvParams, TextEnvironment
from ragen_jax.types import EnvState, ParsedAnswer

# (position in the answer, state before it) -> action, -1 if it is not an action.
Reader = Callable[[Int[Array, ""], EnvState], Int[Array, ""]]


@struct.dataclass
class Outcome:
    """Outcome of a turn in the game (one row); fields as in `Turns`.

    Attributes:
      num_valid: actions among what was listed.
      lacks_action: nothing listed could be played, whatever the game makes of it.
      has_unknown: something listed is not an action.
      terminated, truncated: the game, or its own time limit, has ended.
    """

    reward: Float[Array, ""]
    num_executed: Int[Array, ""]
    num_effective: Int[Array, ""]
    actions: Int[Array, " A"]
    num_valid: Int[Array, ""]
    lacks_action: Bool[Array, ""]
    has_unknown: Bool[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


def run_answer(
    env: TextEnvironment,
    env_params: EnvParams,
    state: EnvState,
    key: Key[Array, ""],
    answer: ParsedAnswer,
    num_allowed: Int[Array, ""],
) -> tuple[EnvState, Outcome]:
    """Run what an answer listed, at most `num_allowed` actions of it.

    Args:
      key: the turn's noise key; executed action `i` is stepped with `fold_in(key, i)`.
      answer: one row's.

    Returns:
      The state after them (the same state if none ran) and what they did.
    """
    if env.answer_bytes:
        (max_actions,) = answer.sizes.shape
        read = _text_reader(env, env_params, answer)
    else:
        (max_actions,) = answer.names.shape
        read = _name_reader(env.action_names(state, env_params), answer)
    return run_actions(
        env,
        env_params,
        state,
        key,
        read,
        max_actions=max_actions,
        num_listed=answer.num_names,
        num_allowed=num_allowed,
    )


def _name_reader(
    action_names: Int[Array, " num_actions"], answer: ParsedAnswer
) -> Reader:
    is_same = answer.names[:, None] == action_names[None, :]
    actions = jnp.where(jnp.any(is_same, axis=1), jnp.argmax(is_same, axis=1), -1)
    return lambda i, state: actions[i]


def _text_reader(
    env: TextEnvironment, env_params: EnvParams, answer: ParsedAnswer
) -> Reader:
    def read(i, state):
        text, size = answer.texts[i], answer.sizes[i]
        action = env.read_action(text, jnp.maximum(size, 1), state, env_params)
        # A text that is too long is cut here.
        return jnp.where(size <= env.answer_bytes, action, -1)

    return read


def run_plan(
    env: TextEnvironment,
    env_params: EnvParams,
    state: EnvState,
    key: Key[Array, ""],
    actions: Int[Array, " A"],
    num_allowed: Int[Array, ""],
) -> tuple[EnvState, Outcome]:
    """`run_answer` of actions by their numbers, for players that write no text."""
    return run_actions(
        env,
        env_params,
        state,
        key,
        lambda i, state: actions[i],
        max_actions=len(actions),
        num_listed=jnp.int32(len(actions)),
        num_allowed=num_allowed,
    )


def run_actions(
    env: TextEnvironment,
    env_params: EnvParams,
    state: EnvState,
    key: Key[Array, ""],
    read: Reader,
    *,
    max_actions: int,
    num_listed: Int[Array, ""],
    num_allowed: Int[Array, ""],
) -> tuple[EnvState, Outcome]:
    """`run_answer` of actions that `read` gives, those at `num_listed` positions."""

    def step(carry, i):
        state, is_over, num_run, total = carry
        action = read(i, state).astype(jnp.int32)
        is_listed = i < num_listed
        is_valid = is_listed & (action >= 0)
        is_run = is_valid & ~is_over & (num_run < num_allowed)
        # By executed actions: names that are skipped do not change the noise.
        noise_key = jax.random.fold_in(key, num_run)
        _, after, reward, _, info = env.step_env(
            noise_key, state, jnp.maximum(action, 0), env_params
        )
        # Every action is stepped, and only those that run are kept: shapes are static.
        state = jax.tree.map(lambda new, old: jnp.where(is_run, new, old), after, state)
        is_over = env.is_terminated(state, env_params) | env.is_truncated(
            state, env_params
        )
        total = total + jnp.where(is_run, reward, 0.0).astype(jnp.float32)
        num_run = num_run + is_run.astype(jnp.int32)
        effective = is_run & info["effective"]
        done = (is_run, effective, action, is_valid, is_listed & ~is_valid)
        return (state, is_over, num_run, total), done

    start = (state, jnp.bool_(False), jnp.int32(0), jnp.float32(0))
    (state, _, num_run, total), done = jax.lax.scan(
        step, start, jnp.arange(max_actions, dtype=jnp.int32)
    )
    is_run, effective, actions, is_valid, is_unknown = done
    # Executed actions move to the front, in their order.
    in_order = jnp.argsort(~is_run, stable=True)
    outcome = Outcome(
        reward=total,
        num_executed=num_run,
        num_effective=jnp.sum(effective, dtype=jnp.int32),
        actions=jnp.where(is_run, actions, -1)[in_order],
        num_valid=jnp.sum(is_valid, dtype=jnp.int32),
        lacks_action=~jnp.any(is_valid),
        has_unknown=jnp.any(is_unknown),
        terminated=jnp.asarray(env.is_terminated(state, env_params)),
        truncated=jnp.asarray(env.is_truncated(state, env_params)),
    )
    return state, outcome
