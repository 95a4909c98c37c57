"""Quality of play, measured against the exact solver.

In: the episodes of one game. Out: plain numbers by name. Success says whether a policy
wins; these numbers say why not: whether it plays the right actions, whether it takes
detours, and whether it sees the board (what its thoughts state of it).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from envs.base import EnvParams, PlayBudget, TextEnvironment, ask_solver
from ragen_jax.rollout.replay import replay
from ragen_jax.text.statements import FactReader, is_there
from ragen_jax.types import EnvState, Trajectory

# Values of actions that are equally good differ by rounding, and by no more than this
# share; what one action too many costs is above it (see `Solution.action_values`).
TOLERANCE = 1e-4
# The values of actions ignore the budget.
_ANY_BUDGET = PlayBudget(1, 1, 1)

# (trajectory, rows per level) -> metrics by name.
PlayQuality = Callable[[Trajectory, int], dict[str, float]]


def make_play_quality(
    env: TextEnvironment,
    params: EnvParams,
    budget: PlayBudget,
    *,
    reader: FactReader | None,
    max_reply_tokens: int,
) -> PlayQuality:
    """Build the measurement of a game's episodes. Rows of a level are adjacent.

    `solved_of_solvable`: share of the episodes solved, of those on levels that can be
    solved within the budget. `excess_actions`: actions executed beyond the fewest that
    can win (luck being with the player), mean of the solved episodes.
    `optimal_action_share`: share of the executed actions after which best play expects
    as much as before; those made when nothing could be won any more do not count.
    `hallucination_rate`: share of the landmarks' places stated in thoughts that are
    wrong; `misprediction_rate`: of the places stated a second time, where landmarks are
    to be after the turn. Both are left out without thoughts or landmarks. A share of an
    empty set is left out too.
    """
    look = jax.jit(functools.partial(_look, env, params, max_reply_tokens))

    how = {"budget": budget, "discount": 1.0}

    def measure(trajectory: Trajectory, rows_per_level: int) -> dict[str, float]:
        states, statements = jax.device_get(look(trajectory, reader))
        # From here on nothing is compiled but the solver.
        start, turns, success = jax.device_get(
            (trajectory.initial_state, trajectory.turns, trajectory.success)
        )
        levels = jax.tree.map(lambda x: x[::rows_per_level], start)
        best_success = ask_solver(env, env.solve, levels, params, **how).best_success
        can_win = np.repeat(best_success > 0, rows_per_level)
        fewest = ask_solver(env, env.fewest_actions, levels, params)
        excess = turns.num_executed.sum(axis=1) - np.repeat(fewest, rows_per_level)
        is_optimal, is_choice = _judge(env, params, states, turns.actions)
        shares = {
            "solved_of_solvable": (success, can_win),
            "excess_actions": (excess, success),
            "optimal_action_share": (is_optimal, is_choice),
        }
        if statements is not None:
            shares["hallucination_rate"], shares["misprediction_rate"] = statements
        return {
            name: float(np.mean(np.asarray(values)[mask], dtype=np.float64))
            for name, (values, mask) in shares.items()
            if np.any(mask)
        }

    return measure


def _judge(
    env: TextEnvironment,
    params: EnvParams,
    states: EnvState,
    actions: Int[np.ndarray, "B K A"],
) -> tuple[Bool[np.ndarray, "B K A"], Bool[np.ndarray, "B K A"]]:
    """Which executed actions were optimal, and where there was something to win."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), states)
    how = {"budget": _ANY_BUDGET, "discount": env.hurry_discount}
    values = ask_solver(env, env.solve, flat, params, **how).action_values
    best = values.max(axis=1)
    taken = np.take_along_axis(values, np.maximum(actions, 0).reshape(-1, 1), axis=1)[
        :, 0
    ]
    is_choice = (actions.reshape(-1) >= 0) & np.isfinite(best)
    with np.errstate(invalid="ignore"):
        is_optimal = taken >= best - TOLERANCE * np.abs(best)
    return is_optimal.reshape(actions.shape), is_choice.reshape(actions.shape)


def _look(
    env: TextEnvironment,
    params: EnvParams,
    max_reply_tokens: int,
    trajectory: Trajectory,
    reader: FactReader | None,
):
    """States before every action; which statements are wrong, and which were made.

    Statements about the states before and after each turn.
    """
    states, last = replay(env, params, trajectory)
    if reader is None:
        return states, None
    turns = trajectory.turns
    size = max_reply_tokens
    padded = jnp.pad(trajectory.tokens, [(0, 0), (0, size)])

    def check(tokens, both, start, length) -> list[tuple[Array, Array]]:
        reply = jax.lax.dynamic_slice(tokens, (start,), (size,))
        checked = []
        for state, stated in zip(both, reader.read(reply, length), strict=True):
            board = env.observe(None, state, None, params)
            is_wrong = stated.is_stated & ~is_there(board, env.landmarks, stated)
            checked.append((is_wrong, stated.is_stated))
        return checked

    by_turn = jax.vmap(jax.vmap(check, (None, 0, 0, 0)))
    before = jax.tree.map(lambda x: x[:, :, 0], states)
    # A turn ends where the next one begins.
    after = jax.tree.map(
        lambda x, end: jnp.concatenate([x[:, 1:], end[:, None]], axis=1), before, last
    )
    length = jnp.where(turns.played, turns.reply_length, 0)
    return states, by_turn(padded, (before, after), turns.reply_start, length)
