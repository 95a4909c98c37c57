"""Sizes of Sokoban levels: which sizes have levels, and a certain level for each.

In: rows, columns and boxes. Out: errors for sizes without levels, and the open room, a
level of the size with every box off the targets. No randomness.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

# Interior cells beside boxes and targets that a size needs for many levels. Counted
# among 8,192 levels: 5x5 with two boxes has 5 spare cells and 544 levels, 4x5 with one
# box has 4 and 52, 5x5 with three boxes has 3 and 44.
FEWEST_SPARE_CELLS = 5


class Room(NamedTuple):
    """One level. Cells are numbered row by row.

    Attributes:
      walls: cells nothing can enter; the border is all wall.
      targets: as many cells as there are boxes.
      boxes: cell of each box.
      player: cell of the player.
    """

    walls: Bool[Array, "rows cols"]
    targets: Bool[Array, "rows cols"]
    boxes: Int[Array, " boxes"]
    player: Int[Array, ""]


def max_boxes(rows: int, cols: int) -> int:
    """Most boxes a level of this size may have: as many as the open room can hold.

    The open room has a target row, a box row and a row to push from (or the same with
    columns), all full; or several such strips with one free lane to walk in.
    """
    best = 0
    for depth, width in ((rows - 2, cols - 2), (cols - 2, rows - 2)):
        if depth >= 3 and width >= 1:
            best = max(best, width, (depth // 3) * (width - 1))
    return best


def check_size(rows: int, cols: int, num_boxes: int) -> None:
    """Refuses sizes for which no level can be made.

    Raises:
      ValueError: the board is too small, or has no room for the boxes.
    """
    limit = max_boxes(rows, cols)
    if limit == 0:
        raise ValueError(
            f"Sokoban of {rows} rows x {cols} cols has no room to push a box: walls "
            "all around leave less than 3 cells in a line; use at least 3 x 5 or 5 x 3"
        )
    if not 1 <= num_boxes <= limit:
        raise ValueError(
            f"Sokoban of {rows} rows x {cols} cols with num_boxes={num_boxes}: this "
            f"size takes 1 to {limit} boxes; change num_boxes or enlarge the board"
        )


def has_many_levels(rows: int, cols: int, num_boxes: int) -> bool:
    """Whether this size has `envs.base.FEWEST_LEVELS` levels or more.

    If boxes and targets fill most of the room, few levels differ.
    """
    return (rows - 2) * (cols - 2) - 2 * num_boxes >= FEWEST_SPARE_CELLS


def open_room(rows: int, cols: int, num_boxes: int) -> Room:
    """A level without inner walls that is certainly solvable, the last resort.

    Every box is one push from its target, and the cell to push it from is free.
    """
    depth, width = rows - 2, cols - 2
    is_wide = depth >= 3 and max(width, (depth // 3) * (width - 1)) >= num_boxes
    if not is_wide:
        depth, width = width, depth
    per_strip = width if num_boxes <= width else width - 1
    strip, lane = np.divmod(np.arange(num_boxes), per_strip)

    def cells(line: int) -> np.ndarray:
        across, along = 1 + 3 * strip + line, 1 + lane
        row, col = (across, along) if is_wide else (along, across)
        return (row * cols + col).astype(np.int32)

    targets, walls = np.zeros(rows * cols, bool), np.ones((rows, cols), bool)
    targets[cells(0)] = True
    walls[1:-1, 1:-1] = False
    return Room(
        walls=jnp.asarray(walls),
        targets=jnp.asarray(targets.reshape(rows, cols)),
        boxes=jnp.asarray(cells(1)),
        player=jnp.asarray(cells(2)[0]),
    )
