"""Levels of Sudoku: solved grids, and the cells whose digits are taken out.

In: keys. Out: grids and masks of the cells given. Knows no rules of play.

A solved grid is a stored one shuffled by the symmetries of the rules: digits renamed,
rows exchanged within bands, columns within stacks, bands, stacks, and the diagonal. The
stored 4x4 grids yield all 288 with equal chance. The stored 9x9 grid is not symmetric
itself (all symmetries were tried) and yields 1.2 * 10**12 of the 6.7 * 10**21 grids.

Then cells are visited in a random order and emptied where the digits still given force
the digit taken out: no other digit fits the cell (naked single), or no other cell of
the row, column or box takes the digit (hidden single). Filled in the opposite order,
every cell is forced: the solution is unique, and singles find it without guessing.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

# Under the symmetries the 288 grids of 4x4 fall into a class of 96 and one of 192; the
# second is stored twice, so that all grids are equally likely.
GRIDS = {
    4: ("1234341221434321", "1234341223414123", "1234341223414123"),
    9: (
        "946321578758946132213785469382659714694178325175432986867593241531264897"
        "429817653",
    ),
}
# Orders in which the stored grids can be emptied, found by trial: down to 4 and to 29
# givens. Cells are numbered row by row.
# fmt: off
KNOWN_ORDERS = {
    4: (5, 0, 3, 14, 10, 2, 13, 15, 8, 12, 9, 1, 7, 6, 4, 11),
    9: (
        49, 44, 55, 1, 0, 60, 58, 29, 20, 43, 28, 66, 19, 70, 79, 40, 69, 8, 74, 9, 4,
        5, 57, 17, 11, 13, 56, 14, 42, 68, 77, 72, 10, 18, 64, 41, 16, 31, 47, 35, 25,
        36, 62, 78, 53, 50, 3, 24, 45, 34, 30, 51,
    ),
}
# fmt: on
# Blanks that the generator certainly reaches. No 4x4 level has more; on 9x9 random
# orders end at 43 to 52, one in seven at 50 or above.
MOST_BLANKS = {4: 12, 9: 50}
# Random orders that are tried before the known one. Most levels need one; with 50
# blanks on 9x9 the known order makes one level in two hundred.
ORDER_TRIES = 32


def sample_level(
    key: Key[Array, ""], size: int, num_blanks: Int[Array, ""]
) -> tuple[Int[Array, "n n"], Bool[Array, "n n"]]:
    """A solved grid, and the cells of it that are given.

    Args:
      size: 4 or 9.
      num_blanks: exact number of cells that are not given, up to `MOST_BLANKS`.
    """
    grid_key, order_key = jax.random.split(key)
    grid, origins = sample_grid(grid_key, size)
    known = KNOWN_ORDERS[size]
    ranks = np.full(size * size, len(known), np.int32)
    ranks[list(known)] = np.arange(len(known))

    def is_missing(carry):
        tries, givens = carry
        return (tries <= ORDER_TRIES) & (jnp.sum(~givens) < num_blanks)

    def draw(carry):
        tries, _ = carry
        draws = jax.random.uniform(jax.random.fold_in(order_key, tries), (size**2,))
        known_ranks = jnp.asarray(ranks, jnp.float32)[origins.reshape(-1)]
        order = jnp.argsort(jnp.where(tries < ORDER_TRIES, draws, known_ranks))
        return tries + 1, dig(grid, order.astype(jnp.int32), num_blanks)

    start = (jnp.int32(0), jnp.ones((size, size), bool))
    return grid, jax.lax.while_loop(is_missing, draw, start)[1]


def side_of_box(size: int) -> int:
    """Cells along a side of a box."""
    return round(size**0.5)


def sample_grid(
    key: Key[Array, ""], size: int
) -> tuple[Int[Array, "n n"], Int[Array, "n n"]]:
    """A solved grid, digits from 1, and each cell's origin in the stored grid."""
    side = side_of_box(size)
    stored = np.array([list(map(int, grid)) for grid in GRIDS[size]], np.int32)
    keys = jax.random.split(key, 4)
    which = jax.random.randint(keys[0], (), 0, 2 * len(stored), jnp.int32)
    origins = jnp.arange(size * size, dtype=jnp.int32).reshape(size, size)
    origins = jnp.where(which % 2 == 1, origins.T, origins)
    rows, cols = (_line_order(k, side) for k in keys[1:3])
    origins = origins[rows][:, cols]
    names = jnp.argsort(jax.random.uniform(keys[3], (size,))).astype(jnp.int32)
    return 1 + names[jnp.asarray(stored)[which // 2][origins] - 1], origins


def _line_order(key: Key[Array, ""], side: int) -> Int[Array, " n"]:
    """Order of rows or columns: bands in any order, lines within each as well."""
    draws = jax.random.uniform(key, (side + 1, side))
    orders = jnp.argsort(draws, axis=1).astype(jnp.int32)
    bands, lines = orders[side], orders[:side]
    return (side * bands[:, None] + lines).reshape(-1)


def dig(
    grid: Int[Array, "n n"], order: Int[Array, " cells"], num_blanks: Int[Array, ""]
) -> Bool[Array, "n n"]:
    """The given cells after forced cells were emptied in an order.

    One pass is enough: with fewer cells given, a cell that was not forced cannot become
    forced.

    Args:
      grid: solved.
      order: numbers of the cells, in the order in which they are tried.
      num_blanks: most cells to empty; fewer if no more are forced.
    """
    size = grid.shape[0]
    cells = jnp.arange(size * size, dtype=jnp.int32).reshape(size, size)

    def visit(i, carry):
        givens, blanks = carry
        is_cell = cells == order[i]
        without = givens & ~is_cell
        empties = (blanks < num_blanks) & is_forced(without, grid, is_cell)
        return jnp.where(empties, without, givens), blanks + empties.astype(jnp.int32)

    start = (jnp.ones((size, size), bool), jnp.int32(0))
    return jax.lax.fori_loop(0, size * size, visit, start)[0]


def is_forced(
    givens: Bool[Array, "n n"], grid: Int[Array, "n n"], is_cell: Bool[Array, "n n"]
) -> Bool[Array, ""]:
    """Whether the given digits leave one digit for a cell, or one cell for its digit.

    Args:
      givens: cells whose digits are given; the cell is not among them.
      grid: all digits.
      is_cell: marks the cell.
    """
    size = grid.shape[0]
    digit = jnp.sum(jnp.where(is_cell, grid, 0))
    units = [unit(is_cell) for unit in (in_row, in_col, in_box)]
    seen = givens & (units[0] | units[1] | units[2])
    bits = jnp.where(seen, jnp.left_shift(1, grid), 0).astype(jnp.int32)
    # Bit `d` is set if the digit `d` is in sight of the cell.
    digits_seen = jax.lax.reduce(bits, np.int32(0), jax.lax.bitwise_or, (0, 1))
    is_naked = jax.lax.population_count(digits_seen) == size - 1
    holds = givens & (grid == digit)
    takes = ~givens & ~is_cell & ~in_sight(holds)
    is_hidden = [~jnp.any(takes & unit) for unit in units]
    return is_naked | is_hidden[0] | is_hidden[1] | is_hidden[2]


def in_sight(mask: Bool[Array, "n n"]) -> Bool[Array, "n n"]:
    """Cells with a marked cell in their row, column or box."""
    return in_row(mask) | in_col(mask) | in_box(mask)


def in_row(mask: Bool[Array, "n n"]) -> Bool[Array, "n n"]:
    """Cells with a marked cell in their row."""
    return jnp.broadcast_to(jnp.any(mask, axis=1, keepdims=True), mask.shape)


def in_col(mask: Bool[Array, "n n"]) -> Bool[Array, "n n"]:
    """Cells with a marked cell in their column."""
    return jnp.broadcast_to(jnp.any(mask, axis=0, keepdims=True), mask.shape)


def in_box(mask: Bool[Array, "n n"]) -> Bool[Array, "n n"]:
    """Cells with a marked cell in their box."""
    side = side_of_box(mask.shape[0])
    boxes = mask.reshape((side,) * 4)
    is_marked = jnp.any(boxes, axis=(1, 3), keepdims=True)
    return jnp.broadcast_to(is_marked, boxes.shape).reshape(mask.shape)
