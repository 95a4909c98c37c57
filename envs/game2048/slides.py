"""How the tiles of 2048 slide, merge and appear, on one board.

In: boards of exponents (0 empty, 1 a tile of 2, 2 a tile of 4, ...) and actions. Out:
boards, and the sum of the tiles made by merging. Knows no goal and no reward.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

# The sides towards which tiles slide, clockwise.
UP, RIGHT, DOWN, LEFT = range(4)
# The cells of a line, or of several side by side.
Line = list[Int[Array, "*m"]]


def slide(
    board: Int[Array, "n n"], action: Int[Array, ""]
) -> tuple[Int[Array, "n n"], Int[Array, ""]]:
    """The board after a slide, and the sum of the tiles made by merging."""
    is_vertical = (action == UP) | (action == DOWN)
    is_backwards = (action == RIGHT) | (action == DOWN)
    # Cell by cell: XLA then makes one loop of a slide, without turned copies.
    lines = _turned([list(row) for row in board], is_vertical)
    lines = _mirrored(lines, is_backwards)
    lines, merged = zip(*map(_slide_cells, lines), strict=True)
    lines = _turned(_mirrored(lines, is_backwards), is_vertical)
    return jnp.stack([jnp.stack(line) for line in lines]), sum(merged)


def slide_left(
    lines: Int[Array, "m n"],
) -> tuple[Int[Array, "m n"], Int[Array, " m"]]:
    """Lines after their tiles slid to the front, and each line's sum of new tiles."""
    cells, merged = _slide_cells([lines[:, i] for i in range(lines.shape[1])])
    return jnp.stack(cells, axis=1), merged


def _slide_cells(cells: Line) -> tuple[Line, Int[Array, "*m"]]:
    """A line after its tiles slid to the front, and the sum of the new ones."""
    cells = _packed(cells)
    merged = jnp.zeros_like(cells[0])
    for i in range(len(cells) - 1):
        # The second cell of a pair becomes empty, so that no tile merges twice.
        is_pair = (cells[i] == cells[i + 1]) & (cells[i] > 0)
        cells[i] = cells[i] + is_pair.astype(jnp.int32)
        cells[i + 1] = jnp.where(is_pair, 0, cells[i + 1])
        merged += jnp.where(is_pair, jnp.int32(1) << cells[i], 0)
    return _packed(cells), merged


def _turned(lines: Sequence[Line], is_vertical: Bool[Array, ""]) -> list[Line]:
    """The columns of a board if `is_vertical`, else its lines."""
    columns = zip(*lines, strict=True)
    return [
        [jnp.where(is_vertical, *pair) for pair in zip(column, row, strict=True)]
        for column, row in zip(columns, lines, strict=True)
    ]


def _mirrored(lines: Sequence[Line], is_backwards: Bool[Array, ""]) -> list[Line]:
    return [
        [jnp.where(is_backwards, *pair) for pair in zip(line[::-1], line, strict=True)]
        for line in lines
    ]


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
    """Whether a slide changes a board, which has tiles."""
    across = jnp.any(board[:, 1:] == board[:, :-1])
    along = jnp.any(board[1:] == board[:-1])
    return jnp.any(board == 0) | across | along


def _packed(cells: Line) -> Line:
    """Cells with the empty ones moved to the end."""
    cells = list(cells)
    # Exchanges of neighbours: lines are short, and no gather is needed.
    for end in range(len(cells) - 1, 0, -1):
        for i in range(end):
            is_empty = cells[i] == 0
            cells[i] = jnp.where(is_empty, cells[i + 1], cells[i])
            cells[i + 1] = jnp.where(is_empty, 0, cells[i + 1])
    return cells
