"""FrozenLake in plain Python, one level at a time and in float64: slow and obvious.

Tiles are (row, col); `holes` is a set of tiles. Actions: Left, Down, Right, Up.
"""

import functools
import itertools

import numpy as np

MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))


def walk(tile, direction, size):
    """The tile a sure step leads to; steps off the board stay."""
    row, col = tile[0] + MOVES[direction][0], tile[1] + MOVES[direction][1]
    inside = 0 <= row < size and 0 <= col < size
    return (row, col) if inside else tile


def outcomes(tile, action, size, success_rate):
    """[(probability, tile)] of one action."""
    side = (1 - success_rate) / 2
    return [
        (success_rate, walk(tile, action, size)),
        (side, walk(tile, (action - 1) % 4, size)),
        (side, walk(tile, (action + 1) % 4, size)),
    ]


def has_path(holes, start, goal, size):
    seen, frontier = {start}, [start]
    while frontier:
        tile = frontier.pop()
        for direction in range(4):
            next_tile = walk(tile, direction, size)
            if next_tile not in seen and next_tile not in holes:
                seen.add(next_tile)
                frontier.append(next_tile)
    return goal in seen


def sample_level(rng, size, frozen_probability):
    """Draws boards until one has a path: (holes, start, goal)."""
    while True:
        is_hole = rng.random((size, size)) >= frozen_probability
        start, goal = (tuple(map(int, rng.integers(0, size, 2))) for _ in range(2))
        holes = {tuple(map(int, tile)) for tile in np.argwhere(is_hole)} - {start, goal}
        if start != goal and has_path(holes, start, goal, size):
            return holes, start, goal


def action_values(holes, goal, tile, size, success_rate, discount, sweeps=3000):
    """Discounted return of the four actions on `tile`, by plain value iteration."""
    tiles = list(itertools.product(range(size), repeat=2))
    values = dict.fromkeys(tiles, 0.0)

    def action_value(tile, action):
        total = 0.0
        for chance, landed in outcomes(tile, action, size, success_rate):
            if landed == goal:
                total += chance
            elif landed not in holes:
                total += chance * discount * values[landed]
        return total

    for _ in range(sweeps):
        change = 0.0
        for t in tiles:
            if t != goal and t not in holes:
                best = max(action_value(t, a) for a in range(4))
                change, values[t] = max(change, abs(best - values[t])), best
        if change < 1e-9:
            break
    return [action_value(tile, action) for action in range(4)]


def best_success(holes, goal, tile, size, success_rate, *, turns, per_turn, actions):
    """Highest chance of reaching the goal; every plan of every turn is tried."""

    @functools.cache
    def best(tile, turns_left, actions_left):
        if tile == goal:
            return 1.0
        if tile in holes or turns_left == 0:
            return 0.0
        chance = 0.0
        for length in range(1, min(per_turn, actions_left) + 1):
            for plan in itertools.product(range(4), repeat=length):
                left = actions_left - length
                after = spread(tile, plan)
                mean = sum(p * best(t, turns_left - 1, left) for t, p in after.items())
                chance = max(chance, mean)
        return chance

    def spread(tile, plan):
        """{tile: probability} after a plan; goal and holes hold the player."""
        chances = {tile: 1.0}
        for action in plan:
            following = {}
            for t, p in chances.items():
                ended = t == goal or t in holes
                steps = outcomes(t, action, size, success_rate)
                for q, landed in [(1.0, t)] if ended else steps:
                    following[landed] = following.get(landed, 0.0) + p * q
            chances = following
        return chances

    return best(tile, turns, actions)
