"""Exact best play of Sokoban: shortest solutions by breadth-first search backwards.

In: walls, targets, boxes and player. Out: how many actions the shortest solution takes
after each possible action. With one box the search is an array program for one level,
to be `vmap`ped and jitted; with more boxes it runs on the host in NumPy.

Both search backwards from the solved states. A state (box cells, player) is preceded by
a step of the player from a neighbouring cell, or by a push, which a pull undoes. A
state is reached in as many rounds as its shortest solution has actions.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from envs.base import NEVER
from envs.bitboards import (
    DIRECTIONS,
    Bitboard,
    from_mask,
    neighbour_offsets,
    num_words,
    single,
)

# States the host search may hold; a byte pair each, plus its working space.
MAX_HOST_STATES = 20_000_000


def action_distances(
    walls: Bool[Array, "rows cols"],
    target: Int[Array, ""],
    box: Int[Array, ""],
    player: Int[Array, ""],
) -> Int[Array, "4"]:
    """Actions of the shortest solution that begins with each action, one box.

    Args:
      walls: cells nothing can enter; the border must be wall.
      target, box, player: cells, numbered row by row; box and player may be anywhere
        the game can bring them.

    Returns:
      At least 1 per action; `NEVER` if no solution begins with it; all 0 when the level
      is solved. A blocked action wastes one move. The smallest entry is the length of
      the shortest solution.
    """
    _, cols = walls.shape
    offsets = neighbour_offsets(cols)
    words = num_words(walls.size)
    floor = from_mask(~walls.reshape(-1))
    boxes, players = _next_states(floor, offsets, box, player)

    # Sets of player cells, one for every cell of the box: `known` holds all states that
    # are at most `rounds` actions from solved.
    cells = jnp.arange(walls.size)
    box_cells = single(cells, words)
    free = (floor & ~box_cells).where(floor.contains(cells))
    solved = free.where(cells == target)

    def is_known(known: Bitboard) -> Bool[Array, "4"]:
        return Bitboard(tuple(w[boxes] for w in known.words)).contains(players)

    def is_searching(carry) -> Bool[Array, ""]:
        _, distances, _, has_grown = carry
        return has_grown & (distances == NEVER).any()

    def search(carry):
        known, distances, rounds, _ = carry
        reached = known | known.spread(offsets)
        for offset in offsets:
            # Before the push the box is here and the player on its other side; after it
            # the box is one cell further and the player where the box was.
            further = Bitboard(tuple(jnp.roll(w, -offset) for w in known.words))
            is_pushed = (further & box_cells).is_nonempty()
            reached |= box_cells.shift(-offset).where(is_pushed)
        reached &= free
        lengths = jnp.where(is_known(reached), rounds + 1, NEVER)
        has_grown = (reached & ~known).is_nonempty().any()
        return reached, jnp.minimum(distances, lengths), rounds + 1, has_grown

    # The number of actions from each next state on; ends when no round reaches more.
    distances = jnp.where(is_known(solved), 0, NEVER)
    start = (solved, distances, jnp.int32(0), jnp.bool_(True))
    _, distances, _, _ = jax.lax.while_loop(is_searching, search, start)
    distances = jnp.minimum(distances + 1, NEVER)
    return jnp.where(box == target, 0, distances)


def host_action_distances(
    walls: Bool[np.ndarray, "B rows cols"],
    targets: Bool[np.ndarray, "B rows cols"],
    boxes: Int[np.ndarray, "B boxes"],
    players: Int[np.ndarray, " B"],
    *,
    max_states: int = MAX_HOST_STATES,
) -> Int[np.ndarray, "B 4"]:
    """`action_distances` for any number of boxes, searched on the host.

    One search per room: rows that share walls and targets share it.

    Raises:
      ValueError: a room has more than `max_states` states.
    """
    searches: dict[bytes, _RoomSearch] = {}
    distances = np.empty((len(walls), len(DIRECTIONS)), np.int32)
    for i in range(len(walls)):
        room = walls[i].tobytes() + targets[i].tobytes()
        if room not in searches:
            searches[room] = _RoomSearch(
                walls[i], targets[i], boxes.shape[1], max_states
            )
        distances[i] = searches[room].action_distances(boxes[i], players[i])
    return distances


class _RoomSearch:
    """Distances of all states of one room with several boxes.

    States are numbered: floor cells from 0 on, a set of boxes by its rank among all
    sets of that size (the combinatorial number system), then the player's cell.
    """

    def __init__(self, walls, targets, num_boxes: int, max_states: int):
        self.floor = np.flatnonzero(~walls)
        size = len(self.floor)
        self.num_states = math.comb(size, num_boxes) * size
        if self.num_states > max_states:
            raise ValueError(
                f"{num_boxes} boxes on {size} floor cells make {self.num_states} "
                f"states, more than the {max_states} the exact solver searches; use "
                "fewer boxes or a smaller board"
            )
        self.cols = walls.shape[1]
        self.index = np.full(walls.size, -1)
        self.index[self.floor] = np.arange(size)
        offsets = np.array(neighbour_offsets(self.cols))
        self.neighbours = self.index[self.floor[:, None] + offsets[None, :]]
        self.ranks = np.array(
            [[math.comb(cell, i + 1) for cell in range(size)] for i in range(num_boxes)]
        )
        self.distances = self._search(self.index[np.flatnonzero(targets)])

    def action_distances(self, boxes, player) -> list[int]:
        """Actions of the shortest solution that begins with each action."""
        boxes, player = np.sort(self.index[boxes]), int(self.index[player])
        if self._distance(boxes, player) == 0:
            return [0] * len(DIRECTIONS)
        return [
            min(1 + self._distance(*self._step(boxes, player, action)), NEVER)
            for action in range(len(DIRECTIONS))
        ]

    def _step(self, boxes, player: int, action: int):
        ahead = self.neighbours[player, action]
        if ahead < 0:
            return boxes, player
        if ahead not in boxes:
            return boxes, ahead
        beyond = self.neighbours[ahead, action]
        if beyond < 0 or beyond in boxes:
            return boxes, player
        return np.sort(np.where(boxes == ahead, beyond, boxes)), ahead

    def _distance(self, boxes, player: int) -> int:
        distance = int(self.distances[self._number(boxes[None], np.array([player]))[0]])
        return NEVER if distance < 0 else distance

    def _number(self, boxes, players):
        ranks = self.ranks[np.arange(boxes.shape[1])[None, :], boxes].sum(axis=1)
        return ranks * len(self.floor) + players

    def _search(self, targets):
        """Distance of every state, -1 where unsolvable: a wave of states per round."""
        players = np.setdiff1d(np.arange(len(self.floor)), targets)
        boxes = np.tile(targets, (len(players), 1))
        distances = np.full(self.num_states, -1, np.int32)
        distances[self._number(boxes, players)] = 0
        rounds = 0
        while len(players):
            rounds += 1
            boxes, players = self._states_before(boxes, players)
            numbers, first = np.unique(self._number(boxes, players), return_index=True)
            first = first[distances[numbers] < 0]
            boxes, players = boxes[first], players[first]
            distances[self._number(boxes, players)] = rounds
        return distances

    def _states_before(self, boxes, players):
        """All states from which one action leads to one of these, with repetitions."""
        states = []
        for action in range(len(DIRECTIONS)):
            ahead = self.neighbours[players, action]
            # Directions come in opposite pairs: 0 and 1, 2 and 3.
            behind = self.neighbours[players, action ^ 1]
            is_free = (behind >= 0) & ~(boxes == behind[:, None]).any(axis=1)
            states.append((boxes[is_free], behind[is_free]))
            pulled = (
                is_free[:, None] & (ahead >= 0)[:, None] & (boxes == ahead[:, None])
            )
            moved = np.sort(np.where(pulled, players[:, None], boxes), axis=1)
            has_pulled = pulled.any(axis=1)
            states.append((moved[has_pulled], behind[has_pulled]))
        return tuple(np.concatenate(parts) for parts in zip(*states, strict=True))


def _next_states(
    floor: Bitboard, offsets: Sequence[int], box: Int[Array, ""], player: Int[Array, ""]
) -> tuple[Int[Array, "4"], Int[Array, "4"]]:
    steps = jnp.asarray(offsets, jnp.int32)
    ahead, beyond = player + steps, player + 2 * steps
    has_box = ahead == box
    moves = floor.contains(ahead) & (~has_box | floor.contains(beyond))
    boxes = jnp.where(moves & has_box, beyond, box)
    return boxes, jnp.where(moves, ahead, player)
