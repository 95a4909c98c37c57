"""Finds a shortest plan.

In: a world and one of its states. Out: the moves to its goal. Refuses to guess: states
are searched in breadth, which suits houses of a few receptacles, not ALFRED's.
"""

import collections
from collections.abc import Callable

from ragen_jax.worlds.alfworld_logic import Move, State, World


def shortest_plan(
    world: World, state: State, may_help: Callable[[Move], bool]
) -> tuple[Move, ...] | None:
    """The first of the shortest plans, in the order of `World.moves`.

    Args:
      world: what is possible.
      state: where the plan begins.
      may_help: False of moves without which some shortest plan does.

    Returns:
      None: no plan leads to the goal.
    """
    if world.is_won(state):
        return ()
    came_from: dict[tuple, tuple[tuple, Move] | None] = {_key(state): None}
    waiting = collections.deque([state])
    while waiting:
        current = waiting.popleft()
        for move in filter(may_help, world.moves(current)):
            successor = world.apply(current, move)
            if (key := _key(successor)) in came_from:
                continue
            came_from[key] = _key(current), move
            if world.is_won(successor):
                return _plan(came_from, key)
            waiting.append(successor)
    return None


def _key(state: State) -> tuple:
    # The order of predicates is the same in all states of a world.
    return tuple(state.facts.values())


def _plan(came_from: dict, key: tuple) -> tuple[Move, ...]:
    moves = []
    while (step := came_from[key]) is not None:
        key, move = step
        moves.append(move)
    return tuple(reversed(moves))
