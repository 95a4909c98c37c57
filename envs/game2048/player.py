"""A player of 2048 for boards that are too large to tabulate.

In: batches of boards. Out: ratings of the slides, and how often the player wins. It
looks one slide, one new tile and one more slide ahead and rates the boards it reaches
by their empty cells and the order of their tiles: the largest in a corner, others in
falling order along a snake from there. Not best play: it makes 2048 on a 4x4 board in
80 % of its games, on a 3x3 board 64 in 99 % and 128 in 84 %. Knows no environment
class.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from envs.base import Solution
from envs.game2048 import slides

# Games per state that estimate how often the player wins: standard error up to 0.25 of
# one state, 0.03 of the mean of 64.
NUM_GAMES = 4
# Weight of a cell along the snake, as a share of the weight of the one before it.
SNAKE_RATIO = 0.5
# Weight of the share of empty cells in a rating.
EMPTY_WEIGHT = 0.1
# States rated at a time.
_CHUNK = 1024
# Ratings of games that are won or lost, and of a slide that changes nothing.
_WON, _LOST = 1.0, 0.0
_IDLE = -1.0


def rate(
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
    """Ratings of the slides, and estimated success.

    Ratings compare the slides of one board: 1 wins at once, -1 changes nothing, others
    lie between. They are not returns.

    Args:
      boards, is_over, actions_left, goal: see `game2048_solver.solve_small`.
      two_probability: chance that a new tile is a 2.
      idle_reward, goal_reward: not used, since the player only tries to win.
      discount: factor of ratings that do not win at once.
    """
    del idle_reward, goal_reward
    numbers = (jnp.asarray(x, jnp.float32) for x in (two_probability, discount))
    return _rate(boards, is_over, actions_left, *numbers, goal=goal)


@functools.partial(jax.jit, static_argnames="goal")
def _rate(
    boards: Int[Array, "B n n"],
    is_over: Bool[Array, " B"],
    actions_left: Int[Array, " B"],
    two_probability: Float[Array, ""],
    discount: Float[Array, ""],
    *,
    goal: int,
) -> Solution:
    def rate_one(board):
        return _ratings(board, goal, two_probability)

    ratings = jax.lax.map(rate_one, boards, batch_size=_CHUNK)
    values = jnp.where(ratings == _WON, _WON, discount * ratings)
    values = jnp.where(ratings < 0, _IDLE, values)
    values = jnp.where(is_over[:, None], 0.0, values)
    is_won = jnp.any(boards == goal, axis=(1, 2))
    games = jnp.repeat(boards, NUM_GAMES, axis=0)
    limits = jnp.repeat(jnp.where(is_over, 0, actions_left), NUM_GAMES)
    wins = _play(jax.random.key(0), games, limits, goal, two_probability)
    return Solution(
        action_values=values,
        value=jnp.max(values, axis=1),
        best_success=jnp.where(
            is_won, 1.0, jnp.mean(wins.reshape(-1, NUM_GAMES), axis=1)
        ),
    )


def _play(
    key: Key[Array, ""],
    boards: Int[Array, "G n n"],
    limits: Int[Array, " G"],
    goal: int,
    two_probability: Float[Array, ""],
) -> Float[Array, " G"]:
    """The games that the player wins within `limits` slides."""
    ratings = jax.vmap(_ratings, in_axes=(0, None, None))
    slide = jax.vmap(slides.slide)
    add_tile = jax.vmap(slides.add_tile, in_axes=(0, 0, None))

    def is_on(boards, count):
        is_won = jnp.any(boards == goal, axis=(1, 2))
        return ~is_won & jax.vmap(slides.can_slide)(boards) & (count < limits)

    def act(carry):
        boards, count = carry
        after, _ = slide(boards, jnp.argmax(ratings(boards, goal, two_probability), 1))
        keys = jax.random.split(jax.random.fold_in(key, count), boards.shape[0])
        after = add_tile(keys, after, two_probability)
        return jnp.where(is_on(boards, count)[:, None, None], after, boards), count + 1

    start = (boards, jnp.int32(0))
    last, _ = jax.lax.while_loop(lambda carry: jnp.any(is_on(*carry)), act, start)
    return jnp.any(last == goal, axis=(1, 2)).astype(jnp.float32)


def _ratings(
    board: Int[Array, "n n"], goal: int, two_probability: Float[Array, ""]
) -> Float[Array, "4"]:
    """Rating of each slide of one board: the mean over the new tile after it."""
    after, is_idle = _slides_of(board)
    cells = after.reshape(4, -1)
    num_cells = cells.shape[1]
    # Every new tile of every slide: [slide, kind, cell].
    tile = jnp.eye(num_cells, dtype=jnp.int32)
    kinds = jnp.array([1, 2], jnp.int32)
    filled = cells[:, None, None] + (kinds[:, None, None] * tile[None])[None]
    best = jax.vmap(functools.partial(_best_next, goal=goal))
    prospects = best(filled.reshape(-1, *board.shape)).reshape(4, 2, num_cells)
    chances = jnp.stack([two_probability, 1.0 - two_probability])[None, :, None]
    is_empty = (cells == 0).astype(jnp.float32)
    shares = is_empty / jnp.maximum(jnp.sum(is_empty, axis=1, keepdims=True), 1.0)
    ratings = jnp.sum(prospects * chances * shares[:, None], axis=(1, 2))
    ratings = jnp.where(jnp.any(cells == goal, axis=1), _WON, ratings)
    return jnp.where(is_idle, _IDLE, ratings)


def _best_next(board: Int[Array, "n n"], *, goal: int) -> Float[Array, ""]:
    """Rating of a board before a slide: the best rating after one."""
    after, is_idle = _slides_of(board)
    ratings = jax.vmap(functools.partial(_look, goal=goal))(after)
    ratings = jnp.where(jnp.any(after == goal, axis=(1, 2)), _WON, ratings)
    return jnp.max(jnp.where(is_idle, _LOST, ratings))


def _slides_of(
    board: Int[Array, "n n"],
) -> tuple[Int[Array, "4 n n"], Bool[Array, "4"]]:
    """The board after each slide, and which of them change nothing."""
    actions = jnp.arange(4, dtype=jnp.int32)
    after, _ = jax.vmap(slides.slide, in_axes=(None, 0))(board, actions)
    return after, jnp.all(after == board[None], axis=(1, 2))


def _look(board: Int[Array, "n n"], *, goal: int) -> Float[Array, ""]:
    """Rating of a board by its tiles and empty cells, above 0 and below 1."""
    # Relative to the goal, so that the sum along a snake is below 1.
    tiles = jnp.where(board > 0, jnp.exp2((board - goal).astype(jnp.float32)), 0.0)
    along = jnp.sum(tiles.reshape(1, -1) * _snakes(board.shape[0]), axis=1)
    num_empty = jnp.mean((board == 0).astype(jnp.float32))
    rating = (1.0 - EMPTY_WEIGHT) * jnp.max(along) + EMPTY_WEIGHT * num_empty
    return jnp.clip(rating, 0.001, 0.999)


@functools.cache
def _snakes(size: int) -> Float[np.ndarray, "8 cells"]:
    """Weights of the cells along a snake from each corner, rows or columns first."""
    order = np.arange(size * size).reshape(size, size)
    order[1::2] = order[1::2, ::-1]
    weights = SNAKE_RATIO**order
    turned = [np.rot90(w, k) for w in (weights, weights.T) for k in range(4)]
    return np.stack(turned).reshape(8, -1).astype(np.float32)
