"""Sokoban levels, made on the device: always solvable, never solved, from a key alone.

In: a key and the size of the level. Out: walls, targets, boxes and player. Levels are
made backwards (RAGEN's recipe, in an array form of our own): carve a room by a random
walk that stamps small patterns, stand every box on its target, then *pull* boxes around
and keep the state whose boxes are furthest from home. Whatever was pulled can be pushed
back, so every level has a solution; what has not moved away is not kept, so none is
solved. All loops have a fixed length: generation always ends, and a batch of keys is
one compiled program.

The sizes of the loops (the constants below) are tuned so that 6x6 levels with one box
match the reference: mean shortest solution 4.3 actions, quartiles 2, 4, 6.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, Key, UInt32

from envs.bitboards import (
    WORD_BITS,
    Bitboard,
    empty,
    flood,
    from_mask,
    num_words,
    single,
)

# Moves of the carving walk per row and column (RAGEN: 1.7).
WALK_MOVES_PER_LINE = 2.4
# Chance that the walk takes a new direction before a move (RAGEN: 0.35).
TURN_PROBABILITY = 0.35
# Pulls tried per box. More pulls: boxes end up further from home.
PULLS_PER_BOX = 12
FLOOD_STEPS = 12
ALL_UNCOVERED = 1 << 20
# Chance that the player strolls away from the box, by default and when the boxes are
# only one cell from home in all, and the chance to walk on after a step (RAGEN's).
STROLL_PROBABILITY = 0.5
SHORT_STROLL_PROBABILITY = 0.8
STROLL_ON_PROBABILITY = 0.5
STROLL_STEPS = 3

# Cells (row, column) a stamp opens around the walker; a repeated cell changes nothing.
STAMPS = np.array(
    [
        [(0, -1), (0, 0), (0, 1), (0, 0)],
        [(-1, 0), (0, 0), (1, 0), (0, 0)],
        [(0, -1), (0, 0), (1, 0), (0, 0)],
        [(0, 0), (0, 1), (1, 0), (0, 0)],
        [(0, -1), (0, 0), (1, -1), (1, 0)],
    ]
)
# Up, down, left, right, the order of the actions.
DIRECTIONS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


@struct.dataclass
class Room:
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


@struct.dataclass
class _Play:
    """A state of the backward play. `score` is 0 while nothing has been pulled."""

    boxes: Int[Array, " boxes"]
    player: Int[Array, ""]
    last_box: Int[Array, ""]
    num_swaps: Int[Array, ""]
    score: Int[Array, ""]


def max_boxes(rows: int, cols: int) -> int:
    """Most boxes a level of this size may have: what the open room surely holds.

    The open room has a target row, a box row and a row to push from (or the same with
    columns), all of it full; or several such strips with one lane left to walk in.
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


def generate_room(
    key: Key[Array, ""] | UInt32[Array, "2"], *, rows: int, cols: int, num_boxes: int
) -> Room:
    """Makes one level; `vmap` it over keys for many.

    Args:
      key: the level's only randomness.
      rows, cols: size of the board, the wall around it included.
      num_boxes: boxes and targets, at most `max_boxes(rows, cols)`.
    """
    carve_key, target_key, pull_key, stroll_key = jax.random.split(key, 4)
    floor = _carve(carve_key, rows, cols)
    homes, is_roomy = _place_targets(target_key, floor, cols, num_boxes)
    play = _pull_boxes(pull_key, floor, homes, cols)
    player = _stroll(stroll_key, floor, play, homes, cols)
    size = rows * cols
    room = Room(
        walls=~floor.to_mask(size).reshape(rows, cols),
        targets=_union(homes, len(floor.words)).to_mask(size).reshape(rows, cols),
        boxes=play.boxes,
        player=player,
    )
    fallback = open_room(rows, cols, num_boxes)
    is_usable = is_roomy & (play.score > 0)
    return jax.tree.map(lambda a, b: jnp.where(is_usable, a, b), room, fallback)


def open_room(rows: int, cols: int, num_boxes: int) -> Room:
    """A level without inner walls that is solvable for sure, the last resort.

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


def _carve(key, rows: int, cols: int) -> Bitboard:
    """Floor of a random room.

    A walker wanders over the interior, changes direction now and then and opens one of
    the stamps around itself after every move.
    """
    num_moves = math.floor(WALK_MOVES_PER_LINE * (rows + cols))
    words = num_words(rows * cols)
    draws = jax.random.bits(key, (num_moves + 1, 3), jnp.uint16)
    stamps = jnp.asarray(STAMPS @ np.array([cols, 1]), jnp.int32)
    deltas = jnp.asarray(DIRECTIONS, jnp.int32)

    def move(carry, draw):
        row, col, direction, floor = carry
        turns = _is_chosen(draw[0], TURN_PROBABILITY)
        direction = jnp.where(turns, _below(draw[1], len(DIRECTIONS)), direction)
        row = jnp.clip(row + deltas[direction, 0], 1, rows - 2)
        col = jnp.clip(col + deltas[direction, 1], 1, cols - 2)
        opened = row * cols + col + stamps[_below(draw[2], len(STAMPS))]
        return (row, col, direction, floor | _union(opened, words)), None

    start = (
        1 + _below(draws[0, 0], rows - 2),
        1 + _below(draws[0, 1], cols - 2),
        _below(draws[0, 2], len(DIRECTIONS)),
        empty(words),
    )
    (_, _, _, floor), _ = jax.lax.scan(move, start, draws[1:])
    return floor & _interior(rows, cols)


def _place_targets(key, floor: Bitboard, cols: int, num_boxes: int):
    """Random cells a box can be pulled from, Int[boxes]; whether there were enough."""
    starts = empty(len(floor.words))
    for offset in _offsets(cols):
        starts |= floor & floor.shift(-offset) & floor.shift(-2 * offset)
    mask = starts.to_mask(WORD_BITS * len(floor.words))
    draws = jax.random.bits(key, mask.shape, jnp.uint16).astype(jnp.int32)
    order = jnp.where(mask, draws, -1)

    def place(order, _):
        cell = jnp.argmax(order).astype(jnp.int32)
        return jnp.where(jnp.arange(order.size) == cell, -1, order), cell

    _, cells = jax.lax.scan(place, order, length=num_boxes)
    return cells, mask.sum() >= num_boxes


def _pull_boxes(key, floor: Bitboard, homes, cols: int) -> _Play:
    """Plays backwards from the solved state and returns the best state on the way.

    At each step one of the pulls the player can walk to is drawn. The player may start
    from anywhere: it ends the forward game where the last push leaves it.
    """
    offsets = jnp.asarray(_offsets(cols), jnp.int32)
    num_boxes = homes.shape[0]
    words = len(floor.words)
    targets = _union(homes, words)

    def pull(carry, draw):
        play, best, region = carry
        occupied = _union(play.boxes, words)
        free = floor & ~occupied
        region = flood(region & free, free, offsets=_offsets(cols), steps=FLOOD_STEPS)
        can_pull = jnp.stack(
            [
                (region.shift(-d) & free.shift(-2 * d)).contains(play.boxes)
                for d in _offsets(cols)
            ],
            axis=1,
        )
        choice = _pick(draw, can_pull.reshape(-1))
        box, offset = choice // 4, offsets[choice % 4]
        pulled = (jnp.arange(num_boxes) == box) & can_pull.any()
        boxes = jnp.where(pulled, play.boxes + offset, play.boxes)
        moved = can_pull.any()
        player = jnp.where(
            moved, (jnp.where(pulled, boxes, 0)).sum() + offset, play.player
        )
        swaps = play.num_swaps + (moved & (box != play.last_box))
        last = jnp.where(moved, box, play.last_box)
        play = _Play(
            boxes, player, last, swaps, _score(boxes, homes, targets, swaps, cols)
        )
        better = play.score > best.score
        best = jax.tree.map(lambda a, b: jnp.where(better, a, b), play, best)
        return (play, best, single(player, words)), None

    start = _Play(homes, jnp.int32(0), jnp.int32(-1), jnp.int32(0), jnp.int32(0))
    draws = jax.random.bits(key, (PULLS_PER_BOX * num_boxes,), jnp.uint16)
    (_, best, _), _ = jax.lax.scan(pull, (start, start, floor), draws)
    return best


def _score(boxes, homes, targets: Bitboard, num_swaps, cols: int):
    """How good a level is: distance from home, times the changes between boxes.

    0 where the level is solved; a level with every target uncovered beats any other.
    """
    moved = abs(boxes // cols - homes // cols) + abs(boxes % cols - homes % cols)
    covered = targets.contains(boxes)
    is_uncovered = ~covered.any()
    value = jnp.where(
        is_uncovered, ALL_UNCOVERED + num_swaps * moved.sum(), moved.sum()
    )
    return jnp.where(covered.all(), 0, value)


def _stroll(key, floor: Bitboard, play: _Play, homes, cols: int):
    """Where the player begins: near the last pull, or some steps away from there."""
    offsets = jnp.asarray(_offsets(cols), jnp.int32)
    words = len(floor.words)
    moved = abs(play.boxes // cols - homes // cols) + abs(
        play.boxes % cols - homes % cols
    )
    draws = jax.random.bits(key, (STROLL_STEPS, 2), jnp.uint16)
    free = floor & ~_union(play.boxes, words)
    chance = jnp.where(moved.sum() == 1, SHORT_STROLL_PROBABILITY, STROLL_PROBABILITY)
    player, walks = play.player, True
    for draw in draws:
        walks &= _is_chosen(draw[0], chance)
        free &= ~single(player, words)
        is_open = free.contains(player + offsets)
        next_player = player + offsets[_pick(draw[1], is_open)]
        walks &= is_open.any()
        player = jnp.where(walks, next_player, player)
        chance = STROLL_ON_PROBABILITY
    return player


def _offsets(cols: int) -> tuple[int, ...]:
    return tuple(int(d) for d in DIRECTIONS @ np.array([cols, 1]))


def _interior(rows: int, cols: int) -> Bitboard:
    mask = np.zeros((rows, cols), bool)
    mask[1:-1, 1:-1] = True
    return from_mask(jnp.asarray(mask.reshape(-1)))


def _union(cells, words: int) -> Bitboard:
    """The set of a short list of cells."""
    sets = [single(cell, words) for cell in cells]
    return functools.reduce(Bitboard.__or__, sets)


def _below(draw, limit: int):
    """A number in [0, limit) from 16 random bits."""
    return (draw.astype(jnp.int32) * limit) >> 16


def _is_chosen(draw, probability):
    """True with the given probability, from 16 random bits."""
    return draw.astype(jnp.float32) < probability * 65536.0


def _pick(draw, options):
    """Index of a random true option from 16 random bits; the last if none is true."""
    rank = _below(draw, options.sum(dtype=jnp.int32))
    position = jnp.cumsum(options.astype(jnp.int32))
    return jnp.minimum((position <= rank).sum(dtype=jnp.int32), options.size - 1)
