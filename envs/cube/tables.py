"""The 2x2x2 cube as arrays: turns, rotations, numbers of states, their distances.

In: stickers. Out: permutations of the stickers, the number of a state, which does not
depend on the cube's orientation, and the fewest quarter turns that solve it. Knows no
rewards and no text. Everything follows from where the stickers are in space (axes: x
right, y up, z towards the viewer); the distances come from a breadth-first search at
first use.

Stickers are numbered by face (U, L, F, R, B, D), each read row by row as one looks at
it from outside; a solved cube shows the face's number as its colour.
"""

import functools
import itertools
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

FACES = "ULFRBD"
TURNS = ("U", "U'", "D", "D'", "L", "L'", "R", "R'", "F", "F'", "B", "B'")
NUM_STICKERS = 24
MAX_DISTANCE = 14
# States at each distance in quarter turns, all orientations being one state (well-known
# counts; a test compares them with the search below).
STATES_AT = (1, 6, 27, 120, 534, 2256, 8969, 33058, 114149, 360508, 930588)
STATES_AT = (*STATES_AT, 1350852, 782536, 90280, 276)
NUM_ORDERS, NUM_TWISTS = 5040, 729
NUM_STATES = NUM_ORDERS * NUM_TWISTS

# Of each face: the direction it faces, that of its rows, and that of its columns.
_LOOKS = {
    "U": ((0, 1, 0), (1, 0, 0), (0, 0, 1)),
    "L": ((-1, 0, 0), (0, 0, 1), (0, -1, 0)),
    "F": ((0, 0, 1), (1, 0, 0), (0, -1, 0)),
    "R": ((1, 0, 0), (0, 0, -1), (0, -1, 0)),
    "B": ((0, 0, -1), (-1, 0, 0), (0, -1, 0)),
    "D": ((0, -1, 0), (1, 0, 0), (0, 0, -1)),
}
# Colours that identify the corners: one of each pair of opposite faces.
_D, _B, _L = (FACES.index(face) for face in "DBL")
_HOME = 7  # the corner of D, B and L, which is in its place in every numbered state
_RIGHT_BACK_DOWN = 6
# By face, or by its colour.
_OPPOSITE = np.array([FACES.index(face) for face in "DRBLFU"], np.int32)
# Turns that do not move the home corner reach every state, up to rotation.
_FREE_TURNS = ("U", "U'", "R", "R'", "F", "F'")


def _geometry() -> tuple[Int[np.ndarray, "24 3"], Int[np.ndarray, "24 3"]]:
    """Of each sticker: its corner, in coordinates of -1 and 1, and its direction."""
    corners, normals = [], []
    for face in FACES:
        normal, right, down = (np.array(v) for v in _LOOKS[face])
        for row, col in itertools.product((-1, 1), repeat=2):
            corners.append(normal + col * right + row * down)
            normals.append(normal)
    return np.stack(corners), np.stack(normals)


def _rotated(face: str, *, whole: bool) -> Int[np.ndarray, "24"]:
    """Where each sticker comes from in a clockwise quarter turn of a face.

    Args:
      whole: the whole cube turns with the face.
    """
    corners, normals = _geometry()
    axis = np.array(_LOOKS[face][0])
    # A vector `v` is rotated clockwise, as seen against the axis, to `v x axis`, and
    # keeps its part along the axis.
    rotation = np.stack([np.cross(v, axis) + axis * (v @ axis) for v in np.eye(3)])
    moves = (corners @ axis > 0)[:, None] | whole
    places = np.concatenate(
        [
            np.where(moves, corners @ rotation, corners),
            np.where(moves, normals @ rotation, normals),
        ],
        axis=1,
    )
    here = np.concatenate([corners, normals], axis=1)
    is_from = (here[:, None] == places[None, :]).all(axis=2)
    return is_from.argmax(axis=1).astype(np.int32)


def _turns() -> Int[np.ndarray, "12 24"]:
    """After turn `t` sticker `i` is what sticker `_turns()[t, i]` was."""
    clockwise = {face: _rotated(face, whole=False) for face in FACES}
    forward = [clockwise[turn[0]] for turn in TURNS]
    pairs = zip(TURNS, forward, strict=True)
    return np.stack([np.argsort(p) if "'" in t else p for t, p in pairs]).astype(
        np.int32
    )


def _rotations() -> Int[np.ndarray, "24 24"]:
    """The orientations of the cube, ordered by the sticker they take to place 0."""
    orientations = {tuple(range(NUM_STICKERS))}
    generators = [_rotated("U", whole=True), _rotated("F", whole=True)]
    frontier = list(orientations)
    while frontier:
        turned = [np.array(p)[g] for p in frontier for g in generators]
        frontier = list({tuple(map(int, p)) for p in turned} - orientations)
        orientations |= set(frontier)
    return np.array(sorted(orientations), np.int32)


def _corners() -> Int[np.ndarray, "8 3"]:
    """Stickers of each corner: that of U or D first, then clockwise from outside.

    Corners are numbered as in `_corner_numbers`.
    """
    corners, normals = _geometry()
    table = np.zeros((8, 3), np.int32)
    for place in itertools.product((-1, 1), repeat=3):
        mine = np.flatnonzero((corners == place).all(axis=1))
        first = next(i for i in mine if normals[i][1])
        a, b = (i for i in mine if i != first)
        volume = np.linalg.det(np.stack([normals[i] for i in (first, a, b)]))
        # Looked at from outside, vectors of a negative volume follow one another
        # clockwise.
        x, y, z = place
        number = 4 * (y < 0) + 2 * (z < 0) + (x < 0)
        table[number] = (first, a, b) if volume < 0 else (first, b, a)
    return table


TURN_TABLE = _turns()
ROTATIONS = _rotations()
CORNERS = _corners()
SOLVED = np.repeat(np.arange(6, dtype=np.int32), 4)
# Orders of the seven corners that are not at home, in lexicographic order.
_ORDERS = np.array(list(itertools.permutations(range(_HOME))), np.int8)
_PLACE_VALUES = np.array([720, 120, 24, 6, 2, 1, 1], np.int32)
_TWIST_VALUES = 3 ** np.arange(5, -1, -1, dtype=np.int32)
# For each sticker, in the order of `CORNERS`: the stickers, in that order, of the cube
# in the orientation that makes this sticker the first of the home corner.
_HOLDS = np.stack(
    [
        ROTATIONS[np.flatnonzero(ROTATIONS[:, CORNERS[_HOME, 0]] == sticker)[0]][
            CORNERS
        ].reshape(-1)
        for sticker in CORNERS.reshape(-1)
    ]
)


def state_number(stickers: Int[Array, "24"]) -> Int[Array, ""]:
    """Number of a state from 0 to `NUM_STATES` - 1, equal in every orientation."""
    colors = stickers[CORNERS.reshape(-1)].reshape(8, 3)
    is_home = _corner_numbers(colors) == _HOME
    where = jnp.argmax((is_home[:, None] & (colors == _D)).reshape(-1))
    # The first sticker of the corner at home shows D; this is where it is.
    held = stickers[jnp.asarray(_HOLDS)[where]].reshape(8, 3)[:_HOME]
    order = _corner_numbers(held)
    # A corner's twist is the slot of its U or D sticker. Six twists give the seventh:
    # their sum is a multiple of 3.
    twists = jnp.argmax((held == 0) | (held == _D), axis=1).astype(jnp.int32)
    # The rank of the order among all permutations (Lehmer code).
    is_later = np.triu(np.ones((_HOME, _HOME), bool), 1)
    smaller = jnp.sum((order[None, :] < order[:, None]) & is_later, axis=1)
    rank = jnp.sum(smaller.astype(jnp.int32) * _PLACE_VALUES)
    return rank * NUM_TWISTS + jnp.sum(twists[:6] * _TWIST_VALUES)


def stickers_of(number: Int[Array, ""]) -> Int[Array, "24"]:
    """Stickers of the state of a number, the home corner in its place."""
    order = jnp.asarray(_ORDERS)[number // NUM_TWISTS].astype(jnp.int32)
    twists = number % NUM_TWISTS // _TWIST_VALUES % 3
    twists = jnp.append(twists, -jnp.sum(twists) % 3)
    order, twists = jnp.append(order, _HOME), jnp.append(twists, 0)
    # The colour with twist `t` on place `i` is that on place `i - t` of the corner.
    turned = (jnp.arange(3)[None, :] - twists[:, None]) % 3
    colors = jnp.asarray(SOLVED[CORNERS])[order[:, None], turned].reshape(-1)
    return colors[np.argsort(CORNERS.reshape(-1))]


@functools.cache
def distances() -> UInt8[np.ndarray, " states"]:
    """Fewest quarter turns from the state of each number to a solved cube.

    Takes about half a second, once per process.
    """
    table = np.zeros(NUM_STATES, np.uint8)
    for distance, numbers in enumerate(numbers_by_distance()):
        table[numbers] = distance
    return table


def numbers_by_distance() -> Iterator[Int[np.ndarray, " n"]]:
    """Numbers of the states 0, 1, 2, ... quarter turns from solved, each sorted.

    A breadth-first search, as far as the caller iterates.
    """
    orders, twists = _free_turns()
    is_seen = np.zeros(NUM_STATES, bool)
    frontier = np.zeros(1, np.int32)  # the solved cube
    while frontier.size:
        yield frontier
        is_seen[frontier] = True
        order, twist = np.divmod(frontier, NUM_TWISTS)
        near = orders[:, order] * NUM_TWISTS + twists[:, twist]
        is_near = np.zeros(NUM_STATES, bool)
        is_near[near.reshape(-1)] = True
        frontier = np.flatnonzero(is_near & ~is_seen).astype(np.int32)


def distance(
    stickers: Int[Array, "24"], table: UInt8[Array, " states"]
) -> Int[Array, ""]:
    """Fewest quarter turns that solve a cube; `table` is `distances()`."""
    return table[state_number(stickers)].astype(jnp.int32)


def faces_of_colors(stickers: Int[Array, "24"]) -> Int[Array, "6"]:
    """The face that each colour belongs to if the right back down corner does not move.

    Turns of the up, left and front face do not move that corner, and solve any cube.
    """
    stays = CORNERS[_RIGHT_BACK_DOWN]
    colors, faces = stickers[stays], stays // 4
    opposite = jnp.asarray(_OPPOSITE)
    result = jnp.zeros(6, jnp.int32).at[colors].set(faces)
    return result.at[opposite[colors]].set(_OPPOSITE[faces])


def _corner_numbers(colors: Int[Array, "n 3"]) -> Int[Array, " n"]:
    """The corner with three colours: its bits say whether D, B and L are among them."""
    bits = [jnp.any(colors == c, axis=1).astype(jnp.int32) for c in (_D, _B, _L)]
    return 4 * bits[0] + 2 * bits[1] + bits[2]


def _free_turns() -> tuple[Int[np.ndarray, "6 5040"], Int[np.ndarray, "6 729"]]:
    """The order of the corners and their twists after each free turn.

    Neither depends on the other. In NumPy, which also works while a program is traced.
    """
    place_of, slot_of = np.divmod(np.argsort(CORNERS.reshape(-1)), 3)
    order_codes = _ORDERS @ 8 ** np.arange(_HOME - 1, -1, -1)
    twists = np.arange(NUM_TWISTS)[:, None] // _TWIST_VALUES[None, :] % 3
    twists = np.append(twists, -twists.sum(axis=1, keepdims=True) % 3, axis=1)
    orders_after, twists_after = [], []
    for turn in _FREE_TURNS:
        came_from = TURN_TABLE[TURNS.index(turn)][CORNERS[:_HOME, 0]]
        places, slots = place_of[came_from], slot_of[came_from]
        codes = _ORDERS[:, places] @ 8 ** np.arange(_HOME - 1, -1, -1)
        orders_after.append(np.searchsorted(order_codes, codes))
        turned = (twists[:, places] - slots[None, :]) % 3
        twists_after.append(turned[:, :6] @ _TWIST_VALUES)
    return np.stack(orders_after), np.stack(twists_after)
