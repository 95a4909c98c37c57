"""Exact best play of 2048 on boards that are small enough to tabulate.

In: batches of boards as plain arrays. Out: values of the slides, chances of success,
fewest slides. All are read from tables, which rate every board without the goal tile as
it is after a slide, before the new tile. Slides keep the sum of the tiles and new tiles
raise it, so that one pass from large sums to small ones fills a table; chances with few
slides left take a sweep over all boards per slide. By symmetry all slides are slides to
the left. Knows no environment class.

Sizes: 3x3 has 5**9 = 1,953,125 boards for the goal 32 and 6**9 = 10,077,696 for 64. The
goal 128 would need minutes and gigabytes.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from envs.base import NEVER, Solution
from envs.game2048 import slides

# Boards of the largest table that is exact: 3x3 up to the goal 64.
MAX_BOARDS = 6**9
# Reward of merging: this times log2(1 + sum of the new tiles).
MERGE_REWARD = 0.1


class Moves(NamedTuple):
    """Slides to the left of all boards. Axis `S`: boards, their cells read as a number.

    Attributes:
      left: number of the board after the slide; `S` where it makes the goal tile.
      merged: sum of the new tiles; -1 where the slide changes nothing.
      num_empty: empty cells of the board itself.
    """

    left: Int[np.ndarray, " S"]
    merged: Int[np.ndarray, " S"]
    num_empty: Int[np.ndarray, " S"]


class Slid(NamedTuple):
    """Every slide of a batch of boards.

    Attributes:
      number: of the board after each slide, before the new tile.
      merged: sum of the new tiles.
      wins: it makes the goal tile.
      is_idle: it changes nothing.
    """

    number: Int[Array, "B 4"]
    merged: Int[Array, "B 4"]
    wins: Bool[Array, "B 4"]
    is_idle: Bool[Array, "B 4"]


def is_small(size: int, goal: int) -> bool:
    """Whether best play can be tabulated; `goal` is the exponent of the goal tile."""
    return goal ** (size * size) <= MAX_BOARDS


def merge_reward(merged: Int[Array, "..."]) -> Float[Array, "..."]:
    """Reward of a slide for the sum of the tiles that it made."""
    return MERGE_REWARD * jnp.log2(merged.astype(jnp.float32) + 1.0)


def solve_small(
    boards: Int[Array, "B n n"],
    is_over: Bool[Array, " B"],
    actions_left: Int[Array, " B"],
    *,
    goal: int,
    two_probability: float | Array,
    idle_reward: float | Array,
    goal_reward: float | Array,
    discount: float | Array,
) -> Solution:
    """Exact values and chances of a player that sees every board.

    Args:
      boards: exponents.
      is_over: games that are over; their values are 0.
      actions_left: slides allowed; the chances respect them, the values do not.
      goal: exponent of the goal tile.
      two_probability: chance that a new tile is a 2.
      idle_reward: reward of a slide that changes nothing; not above 0, since best play
        makes none.
      goal_reward: extra reward for the goal tile.
      discount: factor per slide.
    """
    size = boards.shape[1]
    table = _value_table(size, goal, *_known(two_probability, goal_reward, discount))
    two_probability, *pays = (
        jnp.asarray(x, jnp.float32)
        for x in (two_probability, idle_reward, goal_reward, discount)
    )
    moves = _moves(size, goal)
    values = _look_up(boards, table, goal, *pays)
    chances = _chances(boards, actions_left, moves, goal, two_probability)
    values = jnp.where(is_over[:, None], 0.0, values)
    is_won = jnp.any(boards == goal, axis=(1, 2))
    return Solution(
        action_values=values,
        value=jnp.max(values, axis=1),
        best_success=jnp.where(is_won, 1.0, jnp.where(is_over, 0.0, chances)),
    )


def fewest_slides(boards: Int[Array, "B n n"], goal: int) -> Int[Array, " B"]:
    """Slides of the luckiest win, with the best new tiles; `NEVER` without a win."""
    table = _fewest_table(boards.shape[1], goal)
    return _fewest(boards, table, goal)


@functools.partial(jax.jit, static_argnames="goal")
def _look_up(
    boards: Int[Array, "B n n"],
    table: Float[Array, " S"],
    goal: int,
    idle_reward: Float[Array, ""],
    goal_reward: Float[Array, ""],
    discount: Float[Array, ""],
) -> Float[Array, "B 4"]:
    slid = _slid(boards, goal)
    follows = discount * jnp.asarray(table)[slid.number]
    follows = jnp.where(slid.wins, goal_reward, follows)
    values = merge_reward(slid.merged) + follows
    best = jnp.max(jnp.where(slid.is_idle, -jnp.inf, values), axis=1, keepdims=True)
    best = jnp.where(jnp.isfinite(best), best, 0.0)
    return jnp.where(slid.is_idle, idle_reward + discount * best, values)


@functools.partial(jax.jit, static_argnames="goal")
def _fewest(boards, table, goal) -> Int[Array, " B"]:
    slid = _slid(boards, goal)
    counts = jnp.where(slid.wins, 1.0, 1.0 - jnp.asarray(table)[slid.number])
    counts = jnp.min(jnp.where(slid.is_idle, NEVER, counts), axis=1)
    is_won = jnp.any(boards == goal, axis=(1, 2))
    counts = jnp.minimum(counts, NEVER).astype(jnp.int32)
    return jnp.where(is_won, 0, counts)


@functools.partial(jax.jit, static_argnames="goal")
def _chances(
    boards: Int[Array, "B n n"],
    actions_left: Int[Array, " B"],
    moves: Moves,
    goal: int,
    two_probability: Float[Array, ""],
) -> Float[Array, " B"]:
    """Best chance to make the goal tile within `actions_left`, by a sweep per slide.

    The table of `n` slides gives the table of `n + 1`. A board is read from the table
    of its number of slides, on the way to the largest number.
    """
    slid = _slid(boards, goal)
    size = boards.shape[1]

    def is_unsettled(carry) -> Bool[Array, ""]:
        _, count, _, is_settled = carry
        return (count < jnp.max(actions_left)) & ~is_settled

    def add_slide(carry):
        table, count, chances, _ = carry
        after = jnp.where(slid.wins, 1.0, table[slid.number])
        best = jnp.max(jnp.where(slid.is_idle, 0.0, after), axis=1)
        chances = jnp.where(count < actions_left, best, chances)
        swept = _swept(table, moves, size, goal, two_probability)
        return swept, count + 1, chances, jnp.all(swept == table)

    none = jnp.zeros(boards.shape[0], jnp.float32)
    start = (jnp.zeros(goal ** (size * size), jnp.float32), 0, none, jnp.bool_(False))
    return jax.lax.while_loop(is_unsettled, add_slide, start)[2]


def _swept(
    table: Float[Array, " S"],
    moves: Moves,
    size: int,
    goal: int,
    two_probability: Float[Array, ""],
) -> Float[Array, " S"]:
    """The table of chances with one more slide: the best of four, then a new tile."""
    after = jnp.append(table, jnp.float32(1.0))[moves.left]
    chances = jnp.where(moves.merged < 0, 0.0, after)
    chances = chances.reshape((goal,) * (size * size))
    # The maximum over two symmetries, applied in turn, is the maximum over all four
    # directions: the board itself, mirrored, and both with rows and columns exchanged.
    for symmetry in _symmetries(size):
        chances = jnp.maximum(chances, chances.transpose(symmetry))
    total = jnp.zeros(table.size, jnp.float32)
    for cell in range(size * size):
        # Of the `goal` slices along a cell's axis the first has it empty; the second
        # has a 2 there and the third a 4, the boards that a new tile leads to.
        slices = chances.reshape(goal**cell, goal, -1)
        twos, fours = slices[:, 1:2], slices[:, 2:3]
        mean = two_probability * twos + (1.0 - two_probability) * fours
        padded = jnp.pad(mean, ((0, 0), (0, goal - 1), (0, 0)))
        total += padded.reshape(-1)
    return total / jnp.maximum(moves.num_empty, 1).astype(jnp.float32)


def _known(*numbers) -> tuple[float, ...]:
    """The numbers as floats, under which tables are cached.

    Raises:
      ValueError: a number is an argument of the program that is being traced.
    """
    if any(isinstance(number, jax.core.Tracer) for number in numbers):
        raise ValueError(
            "a number of the game or the discount is traced; solving 2048 needs "
            "tables of their values: let programs that call solve close over params "
            "and discount"
        )
    return tuple(map(float, numbers))


@functools.lru_cache(maxsize=8)
def _value_table(
    size: int, goal: int, two_probability: float, goal_reward: float, discount: float
) -> Float[np.ndarray, " S"]:
    """Expected return of best play after each slide."""
    moves = _moves(size, goal)
    payoffs = MERGE_REWARD * np.log2(np.maximum(moves.merged, 0) + 1.0)
    payoffs += goal_reward * (moves.left == payoffs.size)
    return _fill(payoffs, discount, two_probability, size, goal)


@functools.cache
def _fewest_table(size: int, goal: int) -> Float[np.ndarray, " S"]:
    """Slides to the luckiest win after each slide, negated; -`NEVER` without a win."""
    payoffs = np.full(goal ** (size * size), -1.0)
    return _fill(payoffs, 1.0, None, size, goal)


def _fill(
    payoffs: Float[np.ndarray, " S"],
    discount: float,
    two_probability: float | None,
    size: int,
    goal: int,
) -> Float[np.ndarray, " S"]:
    """Fill a table from the largest sum of tiles to the smallest.

    Args:
      payoffs: of each slide to the left.
      discount: of the value after it.
      two_probability: chance that a new tile is a 2; None: the best tile comes, and a
        lost board is worth -`NEVER` instead of 0.
    """
    moves = _moves(size, goal)
    payoffs = np.where(moves.merged < 0, -np.inf, payoffs).astype(np.float32)
    mirrors = _mirrors(size, goal)
    worst = np.float32(0.0 if two_probability is not None else -NEVER)
    # Values after a slide (the last entry: all boards with the goal tile) and before
    # one.
    after, before = np.zeros(payoffs.size + 1, np.float32), np.full_like(payoffs, worst)
    for boards in _by_sum(size, goal):
        total = np.full(boards.size, worst)
        for place in goal ** np.arange(size * size):
            is_empty = boards // place % goal == 0
            filled = boards[is_empty] + place
            twos, fours = before[filled], before[filled + place]
            if two_probability is None:
                best = np.maximum(total[is_empty], np.maximum(twos, fours))
                total[is_empty] = best
            else:
                mean = two_probability * twos + (1.0 - two_probability) * fours
                total[is_empty] += mean
        if two_probability is not None:
            total /= np.maximum(moves.num_empty[boards], 1)
        after[boards] = total
        # The slide to the left of each of the four images is one of the four slides.
        mirrored = [boards]
        for image in mirrors:
            mirrored += [image[numbers] for numbers in mirrored]
        slid = [payoffs[n] + discount * after[moves.left[n]] for n in mirrored]
        best = functools.reduce(np.maximum, slid)
        before[boards] = np.where(np.isfinite(best), best, worst)
    return after[:-1]


def _by_sum(size: int, goal: int) -> Iterator[Int[np.ndarray, " n"]]:
    """Numbers of the boards of each sum of tiles, the largest first."""
    tiles = np.where(np.arange(goal) > 0, 1 << np.arange(goal), 0).astype(np.int16)
    sums = _of_boards(np.add, tiles, size * size)
    order = np.argsort(-sums, kind="stable").astype(np.int32)
    borders = np.flatnonzero(np.diff(sums[order])) + 1
    yield from np.split(order, borders)


def _mirrors(size: int, goal: int) -> list[Int[np.ndarray, " S"]]:
    """Number of each board's image in the symmetries, in the order to apply them.

    A slide down is one to the left, of the board with rows and columns exchanged and
    then mirrored.
    """
    numbers = np.arange(goal ** (size * size), dtype=np.int32)
    numbers = numbers.reshape((goal,) * (size * size))
    return [numbers.transpose(order).reshape(-1) for order in _symmetries(size)[::-1]]


def _symmetries(size: int) -> tuple[Int[np.ndarray, " cells"], ...]:
    """Orders of the cells: mirrored, then with rows and columns exchanged."""
    cells = np.arange(size * size).reshape(size, size)
    return cells[:, ::-1].reshape(-1), cells.T.reshape(-1)


@functools.cache
def _moves(size: int, goal: int) -> Moves:
    """Slides of all boards, combined from the slides of all rows."""
    digits = goal ** np.arange(size - 1, -1, -1, dtype=np.int32)
    rows = np.array(list(itertools.product(range(goal), repeat=size)), np.int32)
    with jax.ensure_compile_time_eval():
        after, merged = map(np.asarray, slides.slide_left(jnp.asarray(rows)))
    wins = (after == goal).any(axis=1)
    after = np.where(wins[:, None], 0, after) @ digits
    left = after
    for _ in range(size - 1):
        left = np.add.outer(left * len(rows), after).reshape(-1)
    left = np.where(_of_boards(np.logical_or, wins, size), goal ** (size * size), left)
    merged = _of_boards(np.add, merged, size)
    is_same = _of_boards(np.logical_and, after == np.arange(len(rows)), size)
    num_empty = _of_boards(np.add, (rows == 0).sum(axis=1), size)
    merged = np.where(is_same, -1, merged)
    return Moves(*(x.astype(np.int32) for x in (left, merged, num_empty)))


def _of_boards(operation, of_rows: np.ndarray, size: int) -> np.ndarray:
    """A property of all boards from that of all rows."""
    result = of_rows
    for _ in range(size - 1):
        result = operation.outer(result, of_rows).reshape(-1)
    return result


def _slid(boards: Int[Array, "B n n"], goal: int) -> Slid:
    actions = jnp.arange(4, dtype=jnp.int32)
    of_actions = jax.vmap(slides.slide, in_axes=(None, 0))
    after, merged = jax.vmap(of_actions, in_axes=(0, None))(boards, actions)
    cells = after.reshape(*after.shape[:2], -1)
    digits = goal ** np.arange(cells.shape[2] - 1, -1, -1, dtype=np.int32)
    wins = jnp.any(cells == goal, axis=2)
    is_idle = jnp.all(after == boards[:, None], axis=(2, 3))
    # Boards with the goal tile are not in the tables; 0 is a placeholder.
    number = jnp.sum(cells * digits[None, None, :], axis=2)
    return Slid(jnp.where(wins, 0, number), merged, wins, is_idle)
