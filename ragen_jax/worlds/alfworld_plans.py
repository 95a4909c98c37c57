"""Finds a shortest plan.

In: a world and one of its states. Out: the moves to its goal. Refuses to guess: states
are searched in breadth, which suits houses of a few receptacles, not ALFRED's.
"""

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
    came_from: dict[tuple, tuple[tuple, Move] | None] = {_key(state): None}
    level = [state]
    while level:
        following = []
        for current in level:
            if world.is_won(current):
                return _plan(came_from, _key(current))
            for move in filter(may_help, world.moves(current)):
                successor = world.apply(current, move)
                if (key := _key(successor)) not in came_from:
                    came_from[key] = _key(current), move
                    following.append(successor)
        level = following
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
