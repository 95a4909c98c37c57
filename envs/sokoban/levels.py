"""Sokoban levels, made on the device: always solvable, never solved, from a key alone.

In: a key and the size of the level. Out: walls, targets, boxes and player. Levels are
made backwards (RAGEN's recipe as an array program): carve a room by a random walk that
stamps small patterns, stand every box on its target, then *pull* boxes around and keep
the state whose boxes are furthest from home. Whatever was pulled can be pushed back, so
every level has a solution; only states with every box off the targets are used. All
loops are bounded: generation always ends, and a batch of keys is one compiled program.

The sizes of the loops (the constants below) are tuned so that 6x6 levels with one box
match the reference: mean shortest solution 4.3 actions, quartiles 2, 4, 6.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt32

from envs import bitboards
from envs.bitboards import DIRECTIONS, Bitboard, empty, neighbour_offsets, single
from envs.sokoban.sizes import Room, open_room

# Moves of the carving walk per row and column (RAGEN: 1.7).
WALK_MOVES_PER_LINE = 2.2
# Chance that the walk takes a new direction before a move (RAGEN: 0.35).
TURN_PROBABILITY = 0.35
# Pulls tried per box. More pulls: boxes end up further from home.
PULLS_PER_BOX = 12
# How far the player looks for a box to pull, in moves.
FLOOD_STEPS = 12
# Several boxes may block each other, so that one cannot be pulled off its target: in
# about one attempt in six at 8x8 with two boxes, in three of four at 6x6 with three.
# Attempts made at once, and rounds of them before the open room is taken.
ATTEMPTS = 4
MAX_ROUNDS = 16
# Added to the score of levels without a box on any target; more than any other score.
ALL_UNCOVERED = 1 << 20
# Chance that the player walks away from the box, by default and when the boxes are only
# one cell from home in total, and the chance to continue after a step (RAGEN's).
STROLL_PROBABILITY = 0.5
SHORT_STROLL_PROBABILITY = 0.8
STROLL_ON_PROBABILITY = 0.5
STROLL_STEPS = 3

# Cells (row, column) a stamp opens around the walker: bars, corners, a block.
STAMPS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
)


class _Play(NamedTuple):
    """A state of the backward play. `score` is 0 while every box is on a target."""

    boxes: Int[Array, " boxes"]
    player: Int[Array, ""]
    last_box: Int[Array, ""]
    num_swaps: Int[Array, ""]
    score: Int[Array, ""]


def generate_room(
    key: Key[Array, ""] | UInt32[Array, "2"], *, rows: int, cols: int, num_boxes: int
) -> Room:
    """Makes one level; `vmap` it over keys for many.

    Args:
      key: the level's only randomness.
      rows, cols: size of the board, the wall around it included.
      num_boxes: boxes and targets, at most `max_boxes(rows, cols)`.
    """
    make = functools.partial(
        _first_uncovered, rows=rows, cols=cols, num_boxes=num_boxes
    )
    if num_boxes == 1:
        room, is_uncovered = make(key, attempts=1)
    else:

        def is_missing(carry) -> Bool[Array, ""]:
            rounds, _, is_uncovered = carry
            return ~is_uncovered & (rounds < MAX_ROUNDS)

        def try_again(carry):
            rounds, *_ = carry
            next_key = jnp.where(rounds == 0, key, jax.random.fold_in(key, rounds))
            return rounds + 1, *make(next_key, attempts=ATTEMPTS)

        sure = open_room(rows, cols, num_boxes)
        start = (jnp.int32(0), sure, jnp.bool_(False))
        _, room, is_uncovered = jax.lax.while_loop(is_missing, try_again, start)
    return jax.tree.map(
        lambda made, sure: jnp.where(is_uncovered, made, sure),
        room,
        open_room(rows, cols, num_boxes),
    )


def _first_uncovered(
    key, *, rows: int, cols: int, num_boxes: int, attempts: int
) -> tuple[Room, Bool[Array, ""]]:
    """The first of several random levels without a box on a target, if there is one."""
    num_draws = sum(_num_draws(rows, cols, num_boxes))
    draws = _draws(key, attempts * num_draws).reshape(attempts, num_draws, 2)
    make = functools.partial(_attempt, rows=rows, cols=cols, num_boxes=num_boxes)
    rooms, scores = jax.vmap(make)(draws)
    is_uncovered = scores >= ALL_UNCOVERED
    is_first = jnp.arange(attempts) == jnp.argmax(is_uncovered)

    def select(values):
        # A masked sum, not a gather: gathers are slow under vmap on the CPU.
        flags = is_first.reshape(-1, *(1,) * (values.ndim - 1))
        chosen = jnp.where(flags, values, jnp.zeros_like(values))
        return chosen.sum(axis=0).astype(values.dtype)

    return jax.tree.map(select, rooms), is_uncovered.any()


def _attempt(
    draws: Int[Array, "n 2"], *, rows: int, cols: int, num_boxes: int
) -> tuple[Room, Int[Array, ""]]:
    """A random level and its score, 0 if it cannot be used."""
    ends = np.cumsum(_num_draws(rows, cols, num_boxes))
    carving, placing, pulling, strolling = jnp.split(draws, ends[:-1])
    floor = _carve(carving, rows, cols)
    homes, has_homes = _place_targets(placing, floor, cols, num_boxes)
    play = _pull_boxes(pulling, floor, homes, cols)
    player = _stroll(strolling, floor, play, homes, cols)
    targets = _union(homes, len(floor.words))
    room = Room(
        walls=~floor.to_mask(rows * cols).reshape(rows, cols),
        targets=targets.to_mask(rows * cols).reshape(rows, cols),
        boxes=play.boxes,
        player=player,
    )
    return room, jnp.where(has_homes, play.score, 0)


def _num_draws(rows: int, cols: int, num_boxes: int) -> tuple[int, ...]:
    """Pairs of random numbers for carving, placing, pulling and strolling."""
    num_moves = math.floor(WALK_MOVES_PER_LINE * (rows + cols))
    num_bits = bitboards.WORD_BITS * bitboards.num_words(rows * cols)
    return 2 + num_moves, num_bits // 2, PULLS_PER_BOX * num_boxes // 2, STROLL_STEPS


def _carve(draws: Int[Array, "n 2"], rows: int, cols: int) -> Bitboard:
    """Floor of a random room.

    A walker moves over the interior, sometimes changes direction, and opens one of the
    stamps around itself after every move.
    """
    start = (
        1 + _below(draws[0, 0], rows - 2),
        1 + _below(draws[0, 1], cols - 2),
        _below(draws[1, 0], len(DIRECTIONS)),
        empty(bitboards.num_words(rows * cols)),
    )

    def move(carry, draw):
        row, col, direction, floor = carry
        new_direction, stamp = jnp.divmod(
            _below(draw[1], len(DIRECTIONS) * len(STAMPS)), len(STAMPS)
        )
        turns = _is_chosen(draw[0], TURN_PROBABILITY)
        direction = jnp.where(turns, new_direction, direction)
        row_step, col_step = _step(direction)
        row = jnp.clip(row + row_step, 1, rows - 2)
        col = jnp.clip(col + col_step, 1, cols - 2)
        opened = _stamp(stamp, row * cols + col, cols, len(floor.words))
        return (row, col, direction, floor | opened), None

    (_, _, _, floor), _ = jax.lax.scan(move, start, draws[2:])
    return floor & _interior(rows, cols)


def _stamp(
    stamp: Int[Array, ""], cell: Int[Array, ""], cols: int, words: int
) -> Bitboard:
    """The cells that a stamp opens around a cell."""
    centre, opened = single(cell, words), empty(words)
    for row, col in sorted(set(itertools.chain(*STAMPS))):
        holders = [i for i, cells in enumerate(STAMPS) if (row, col) in cells]
        is_opened = functools.reduce(jnp.logical_or, [stamp == i for i in holders])
        shifted = centre.shift(row * cols + col)
        opened |= shifted.where(is_opened)
    return opened


def _place_targets(draws, floor: Bitboard, cols: int, num_boxes: int):
    """Random cells a box can be pulled from, Int[boxes]; whether there were enough.

    A box is pulled one cell, to where the player was, and the player moves one further.
    """
    starts = empty(len(floor.words))
    for offset in neighbour_offsets(cols):
        starts |= floor & floor.shift(-offset) & floor.shift(-2 * offset)
    mask = starts.to_mask(bitboards.WORD_BITS * len(floor.words))
    order = jnp.where(mask, draws.reshape(-1), -1)

    def place(order, _):
        cell = jnp.argmax(order).astype(jnp.int32)
        return jnp.where(jnp.arange(order.size) == cell, -1, order), cell

    _, cells = jax.lax.scan(place, order, length=num_boxes)
    return cells, mask.sum() >= num_boxes


def _pull_boxes(draws, floor: Bitboard, homes, cols: int) -> _Play:
    """Plays backwards from the solved state and returns the best state on the way.

    Each step draws one of the pulls the player can walk to, of boxes still at home if
    there are any. The first may be any pull, since the forward game may end with the
    player anywhere.
    """
    offsets = neighbour_offsets(cols)
    words = len(floor.words)
    targets = _union(homes, words)
    numbers = jnp.arange(homes.size, dtype=jnp.int32)

    def pull(carry, draw):
        play, best, reached = carry
        free = floor & ~_union(play.boxes, words)
        reached = bitboards.flood(
            reached & free, free, offsets=offsets, steps=FLOOD_STEPS
        )
        can_pull = jnp.stack(
            [
                (reached.shift(-d) & free.shift(-2 * d)).contains(play.boxes)
                for d in offsets
            ]
        )
        choice = _pick(draw, _prefer(can_pull, play.boxes == homes).reshape(-1))
        direction, box = jnp.divmod(choice, homes.size)
        row_step, col_step = _step(direction)
        offset = row_step * cols + col_step
        moves = can_pull.any()
        pulled = moves & (numbers == box)
        boxes = jnp.where(pulled, play.boxes + offset, play.boxes)
        player = jnp.where(pulled, boxes + offset, 0).sum(dtype=jnp.int32)
        swaps = play.num_swaps + (box != play.last_box).astype(jnp.int32)
        score = jnp.where(moves, _score(boxes, homes, targets, swaps, cols), 0)
        play = _choose(moves, _Play(boxes, player, box, swaps, score), play)
        best = _choose(play.score > best.score, play, best)
        return (play, best, single(play.player, words)), None

    zero = jnp.int32(0)
    start = _Play(homes, zero, jnp.int32(-1), zero, zero)
    (_, best, _), _ = jax.lax.scan(pull, (start, start, floor), draws.reshape(-1))
    return best


def _prefer(
    options: Bool[Array, "directions boxes"], is_preferred: Bool[Array, " boxes"]
) -> Bool[Array, "directions boxes"]:
    """The preferred options, or all of them if none is preferred."""
    preferred = options & is_preferred[None, :]
    return jnp.where(preferred.any(), preferred, options)


def _score(boxes, homes, targets: Bitboard, num_swaps, cols: int) -> Int[Array, ""]:
    """Score of a level: distance from home, times the changes between boxes (RAGEN's).

    0 if the level is solved; a level with every target uncovered beats any other.
    """
    moved = _distance(boxes, homes, cols).sum(dtype=jnp.int32)
    covered = targets.contains(boxes)
    score = jnp.where(covered.any(), moved, ALL_UNCOVERED + num_swaps * moved)
    return jnp.where(covered.all(), 0, score)


def _stroll(
    draws: Int[Array, "n 2"], floor: Bitboard, play: _Play, homes, cols: int
) -> Int[Array, ""]:
    """The player's first cell: that after the last pull, or some steps from there."""
    words = len(floor.words)
    is_near = _distance(play.boxes, homes, cols).sum() == 1
    chance = jnp.where(is_near, SHORT_STROLL_PROBABILITY, STROLL_PROBABILITY)

    def walk(carry, draw):
        player, free, chance = carry
        free &= ~single(player, words)
        is_open = free.contains(
            player + jnp.asarray(neighbour_offsets(cols), jnp.int32)
        )
        walks = is_open.any() & _is_chosen(draw[0], chance)
        row_step, col_step = _step(_pick(draw[1], is_open))
        player = jnp.where(walks, player + row_step * cols + col_step, player)
        return (player, free, jnp.where(walks, STROLL_ON_PROBABILITY, 0.0)), None

    start = (play.player, floor & ~_union(play.boxes, words), chance)
    (player, _, _), _ = jax.lax.scan(walk, start, draws)
    return player


def _distance(boxes, homes, cols: int) -> Int[Array, " boxes"]:
    return abs(boxes // cols - homes // cols) + abs(boxes % cols - homes % cols)


def _choose(condition, new: _Play, old: _Play) -> _Play:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _step(direction: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Rows and columns moved in a direction, as arithmetic: gathers are slow."""
    sign = 2 * (direction % 2) - 1
    is_vertical = direction < 2
    return jnp.where(is_vertical, sign, 0), jnp.where(is_vertical, 0, sign)


def _interior(rows: int, cols: int) -> Bitboard:
    mask = np.zeros((rows, cols), bool)
    mask[1:-1, 1:-1] = True
    return bitboards.from_mask(jnp.asarray(mask.reshape(-1)))


def _union(cells, words: int) -> Bitboard:
    sets = [single(cell, words) for cell in cells]
    return functools.reduce(Bitboard.__or__, sets)


def _draws(key, count: int) -> Int[Array, "n 2"]:
    """Random numbers in [0, 2**16), Int[count, 2]."""
    word = jax.random.bits(key, (count,), jnp.uint32)
    halves = jnp.stack([word >> 16, word & 0xFFFF], axis=1)
    return halves.astype(jnp.int32)


def _below(draw: Int[Array, ""], limit: int | Int[Array, ""]) -> Int[Array, ""]:
    """A number in [0, limit) from a draw."""
    return (draw * limit) >> 16


def _is_chosen(draw: Int[Array, ""], probability) -> Bool[Array, ""]:
    return draw.astype(jnp.float32) < probability * 65536.0


def _pick(draw: Int[Array, ""], options: Bool[Array, " n"]) -> Int[Array, ""]:
    """Index of a random true option; the last index if none is true."""
    rank = _below(draw, options.sum(dtype=jnp.int32))
    position = jnp.cumsum(options.astype(jnp.int32))
    return jnp.minimum((position <= rank).sum(dtype=jnp.int32), options.size - 1)
