"""How the tiles of 2048 slide, merge and appear, on one board.

In: boards of exponents (0 empty, 1 a tile of 2, 2 a tile of 4, ...) and actions. Out:
boards, and the sum of what was merged. Knows no goal and no reward.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

# The sides towards which tiles slide, clockwise.
UP, RIGHT, DOWN, LEFT = range(4)


def slide(
    board: Int[Array, "n n"], action: Int[Array, ""]
) -> tuple[Int[Array, "n n"], Int[Array, ""]]:
    """The board after a slide, and the sum of the tiles that merging made."""
    is_vertical = (action == UP) | (action == DOWN)
    is_backwards = (action == RIGHT) | (action == DOWN)
    # Lines along the slide; tiles move towards the front of each.
    lines = jnp.where(is_vertical, board.T, board)
    lines = jnp.where(is_backwards, lines[:, ::-1], lines)
    lines, merged = slide_left(lines)
    lines = jnp.where(is_backwards, lines[:, ::-1], lines)
    return jnp.where(is_vertical, lines.T, lines), jnp.sum(merged)


def slide_left(
    lines: Int[Array, "m n"],
) -> tuple[Int[Array, "m n"], Int[Array, " m"]]:
    """Lines after their tiles slid to the front, and each line's sum of new tiles."""
    cells = _packed([lines[:, i] for i in range(lines.shape[1])])
    merged = jnp.zeros(lines.shape[0], jnp.int32)
    for i in range(len(cells) - 1):
        # A pair leaves an empty cell behind, so no tile merges twice.
        is_pair = (cells[i] == cells[i + 1]) & (cells[i] > 0)
        cells[i] = cells[i] + is_pair.astype(jnp.int32)
        cells[i + 1] = jnp.where(is_pair, 0, cells[i + 1])
        merged += jnp.where(is_pair, jnp.int32(1) << cells[i], 0)
    return jnp.stack(_packed(cells), axis=1), merged


def add_tile(
    key: Key[Array, ""], board: Int[Array, "n n"], two_probability: Float[Array, ""]
) -> Int[Array, "n n"]:
    """The board with a new tile, 2 or 4, in one of its empty cells."""
    place, kind = jax.random.uniform(key, (2,))
    cells = board.reshape(-1)
    is_empty = cells == 0
    rank = jnp.cumsum(is_empty) - 1
    num_empty = rank[-1] + 1
    chosen = jnp.floor(place * num_empty.astype(jnp.float32)).astype(jnp.int32)
    # The product may round up to the number of cells.
    is_new = is_empty & (rank == jnp.minimum(chosen, num_empty - 1))
    tile = jnp.where(kind < two_probability, 1, 2)
    return jnp.where(is_new, tile, cells).astype(jnp.int32).reshape(board.shape)


def can_slide(board: Int[Array, "n n"]) -> Bool[Array, ""]:
    """Whether a slide changes something; of a board with tiles."""
    across = jnp.any(board[:, 1:] == board[:, :-1])
    along = jnp.any(board[1:] == board[:-1])
    return jnp.any(board == 0) | across | along


def _packed(cells: list[Int[Array, " m"]]) -> list[Int[Array, " m"]]:
    """Cells with the empty ones moved behind the others."""
    cells = list(cells)
    for end in range(len(cells) - 1, 0, -1):
        for i in range(end):
            is_empty = cells[i] == 0
            cells[i] = jnp.where(is_empty, cells[i + 1], cells[i])
            cells[i + 1] = jnp.where(is_empty, 0, cells[i + 1])
    return cells
