"""Exact values and best play of FrozenLake, as array programs.

In: batches of levels as plain arrays. Out: `Solution`, for demonstrations, regret, and
the ceiling of learning curves. Knows no environment class.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from envs.base import NEVER, PlayBudget, Solution

# Most plan values of one level that `solve_frozen_lake` accepts (64 MiB), and how many
# of several levels it computes at a time (16 MiB).
MAX_PLAN_VALUES = 2**24
CHUNK_PLAN_VALUES = 2**22


@functools.partial(jax.jit, static_argnames="budget")
def solve_frozen_lake(
    holes: Bool[Array, "B n n"],
    goal: Int[Array, " B"],
    position: Int[Array, " B"],
    actions_left: Int[Array, " B"],
    *,
    success_rate: Float[Array, ""],
    discount: Float[Array, ""],
    budget: PlayBudget,
) -> Solution:
    """Value iteration with slip, and the best chance under the play budget.

    Values are those of play without a time limit, at the fixpoint of the float32
    iteration from 0: rounding is monotone, so the iteration only rises and stops.

    Args:
      holes: the boards.
      goal: the tile to reach, row by row.
      position: the tile the player is on.
      actions_left: actions before the game's own time limit.
      success_rate: chance that a move goes where it is meant to.
      discount: factor per action, in [0, 1].
      budget: play allowed from here on.

    Raises:
      ValueError: the plans of one turn are too many to enumerate.
    """
    size = holes.shape[1]
    if problem := plans_problem(budget, size):
        raise ValueError(problem)
    longest_plan, per_plan = _plans(budget, size)
    plan_values = per_plan * 4**longest_plan

    def solve_one(level):
        holes, goal, position, actions_left = level
        is_goal = (jnp.arange(size * size) == goal).reshape(size, size)
        action_values = _iterate_values(holes, is_goal, success_rate, discount)
        chances = _best_chances(holes, is_goal, success_rate, budget)
        finished = (holes | is_goal).reshape(-1)[position] | (actions_left <= 0)
        affordable = jnp.clip(actions_left, 0, budget.max_actions_per_episode)
        chance = chances.reshape(-1, size * size)[affordable, position]
        return (
            jnp.where(finished, 0.0, action_values.reshape(4, -1)[:, position]),
            jnp.where(position == goal, 1.0, jnp.where(finished, 0.0, chance)),
        )

    levels_at_a_time = max(1, min(holes.shape[0], CHUNK_PLAN_VALUES // plan_values))
    action_values, best_success = jax.lax.map(
        solve_one, (holes, goal, position, actions_left), batch_size=levels_at_a_time
    )
    return Solution(
        action_values=action_values,
        value=jnp.max(action_values, axis=1),
        best_success=best_success,
    )


@jax.jit
@jax.vmap
def shortest_ways(
    holes: Bool[Array, "n n"], goal: Int[Array, ""], position: Int[Array, ""]
) -> Int[Array, ""]:
    """Moves from a position to the goal around the holes; `NEVER` without a way.

    Every argument has a leading batch axis. The loop ends: every pass but the last
    shortens a distance, and none gets below 0.
    """
    is_goal = jnp.arange(holes.size).reshape(holes.shape) == goal

    def improve(carry):
        distances, _ = carry
        around = jnp.pad(distances, 1, constant_values=NEVER)
        near = jnp.minimum(
            jnp.minimum(around[:-2, 1:-1], around[2:, 1:-1]),
            jnp.minimum(around[1:-1, :-2], around[1:-1, 2:]),
        )
        improved = jnp.minimum(distances, near + 1)
        improved = jnp.where(holes & ~is_goal, NEVER, improved)
        return improved, jnp.any(improved < distances)

    start = (jnp.where(is_goal, 0, NEVER).astype(jnp.int32), jnp.bool_(True))
    distances, _ = jax.lax.while_loop(lambda carry: carry[1], improve, start)
    return distances.reshape(-1)[position]


def _iterate_values(
    holes: Bool[Array, "n n"],
    is_goal: Bool[Array, "n n"],
    success_rate: Float[Array, ""],
    discount: Float[Array, ""],
) -> Float[Array, "4 n n"]:
    """Value of each direction on each tile at the fixpoint."""

    def action_values(values):
        on_arrival = _on_arrival(discount * values, holes, is_goal)
        # Rounded weights may sum to more than 1; without the cap values could grow for
        # ever.
        return jnp.minimum(_moved(on_arrival, success_rate), 1.0)

    def improve(carry):
        values, _ = carry
        improved = jnp.max(action_values(values), axis=0)
        return improved, jnp.any(improved > values)

    initial = (jnp.zeros(holes.shape, jnp.float32), jnp.bool_(True))
    values, _ = jax.lax.while_loop(lambda carry: carry[1], improve, initial)
    return action_values(values)


def _best_chances(
    holes: Bool[Array, "n n"],
    is_goal: Bool[Array, "n n"],
    success_rate: Float[Array, ""],
    budget: PlayBudget,
) -> Float[Array, "actions n n"]:
    """Best chance of reaching the goal with all turns and 0, 1, ... actions left.

    A turn is a plan of 1 to A actions, made without seeing where they lead; the player
    sees the board between turns. With `c(k, n)` the chances over tiles with `k` turns
    and `n` actions left, and `T_a f` the mean of `f` after moving in direction `a`,

      c(k, n) = max over l <= min(A, n), a_1 ... a_l of T_a1 ... T_al c(k - 1, n - l).
    """
    num_actions = budget.max_actions_per_episode
    longest_plan = min(budget.max_actions_per_turn, num_actions)

    def add_turn(chances, _):
        plans = chances[:, None]
        best = jnp.zeros_like(chances)
        for length in range(1, longest_plan + 1):
            # Every plan grows by one action at its front: [actions, 4 * plans, n, n].
            moved = _moved(_on_arrival(plans, holes, is_goal), success_rate)
            plans = jnp.concatenate(list(moved), axis=1)
            longer = jnp.max(plans, axis=1)[: num_actions + 1 - length]
            best = best.at[length:].max(longer)
        return jnp.minimum(best, 1.0), None

    none_left = jnp.zeros((num_actions + 1, *holes.shape), jnp.float32)
    chances, _ = jax.lax.scan(add_turn, none_left, length=budget.max_turns)
    return chances


def _on_arrival(
    values: Float[Array, "... n n"],
    holes: Bool[Array, "n n"],
    is_goal: Bool[Array, "n n"],
) -> Float[Array, "... n n"]:
    """Value of arriving on each tile: 1 on the goal, 0 in a hole."""
    lead = (1,) * (values.ndim - 2)
    holes, is_goal = (x.reshape(*lead, *x.shape) for x in (holes, is_goal))
    return jnp.where(is_goal, 1.0, jnp.where(holes, 0.0, values))


def _moved(
    values: Float[Array, "... n n"], success_rate: Float[Array, ""]
) -> Float[Array, "4 ... n n"]:
    """Mean of `values` after moving Left, Down, Right or Up from each tile."""
    landed = jnp.stack(
        [
            jnp.concatenate([values[..., :, :1], values[..., :, :-1]], axis=-1),
            jnp.concatenate([values[..., 1:, :], values[..., -1:, :]], axis=-2),
            jnp.concatenate([values[..., :, 1:], values[..., :, -1:]], axis=-1),
            jnp.concatenate([values[..., :1, :], values[..., :-1, :]], axis=-2),
        ]
    )
    sides = jnp.roll(landed, 1, axis=0) + jnp.roll(landed, -1, axis=0)
    return success_rate * landed + (1.0 - success_rate) / 2.0 * sides


def plans_problem(budget: PlayBudget, size: int) -> str | None:
    """Why the plans of one turn are too many to enumerate; None: they are not."""
    longest_plan, per_plan = _plans(budget, size)
    if per_plan * 4**longest_plan <= MAX_PLAN_VALUES:
        return None
    affordable = 0
    while per_plan * 4 ** (affordable + 1) <= MAX_PLAN_VALUES:
        affordable += 1
    return (
        f"max_actions_per_turn={budget.max_actions_per_turn} makes 4**{longest_plan} "
        f"plans per turn, too many to enumerate on a board of size {size}; give at "
        f"most {affordable}"
    )


def _plans(budget: PlayBudget, size: int) -> tuple[int, int]:
    """Actions of the longest plan, and values of a plan per level."""
    longest_plan = min(budget.max_actions_per_turn, budget.max_actions_per_episode)
    return longest_plan, (budget.max_actions_per_episode + 1) * size * size
