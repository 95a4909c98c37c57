"""Sokoban by sets of coordinates, slow and obvious; written from the rules alone."""

import collections
import dataclasses

import numpy as np

STEPS = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}


@dataclasses.dataclass(frozen=True)
class Level:
    """Cells are (row, column)."""

    shape: tuple[int, int]
    walls: frozenset
    targets: frozenset
    boxes: frozenset
    player: tuple[int, int]

    @property
    def is_solved(self) -> bool:
        return self.boxes == self.targets

    def board(self) -> np.ndarray:
        """0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 and 6 the player."""
        board = np.ones(self.shape, int)
        for cell in np.ndindex(*self.shape):
            on_target = cell in self.targets
            if cell in self.walls:
                board[cell] = 0
            elif cell in self.boxes:
                board[cell] = 3 if on_target else 4
            elif cell == self.player:
                board[cell] = 6 if on_target else 5
            elif on_target:
                board[cell] = 2
        return board


def read_level(board: np.ndarray) -> Level:
    def cells(*ids):
        return frozenset(
            (int(r), int(c)) for r, c in np.argwhere(np.isin(board, list(ids)))
        )

    (player,) = cells(5, 6)
    return Level(board.shape, cells(0), cells(2, 3, 6), cells(3, 4), player)


def move(level: Level, action: int) -> Level:
    """The level after an action; the same level when the way is blocked."""
    rows, cols = STEPS[action]
    ahead = (level.player[0] + rows, level.player[1] + cols)
    if ahead in level.walls:
        return level
    if ahead in level.boxes:
        beyond = (ahead[0] + rows, ahead[1] + cols)
        if beyond in level.walls or beyond in level.boxes:
            return level
        boxes = (level.boxes - {ahead}) | {beyond}
        return dataclasses.replace(level, boxes=boxes, player=ahead)
    return dataclasses.replace(level, player=ahead)


def play(level: Level, action: int) -> tuple[Level, float, bool]:
    """Next level, reward, and whether the action did anything, for a game going on."""
    after = move(level, action)
    gained = len(after.boxes & after.targets) - len(level.boxes & level.targets)
    reward = -0.1 + gained + (10 if after.is_solved else 0)
    return after, reward, after != level


def solution_length(level: Level) -> int | None:
    """Actions of the shortest solution, None if there is none."""
    if level.is_solved:
        return 0
    depth_of = {level: 0}
    queue = collections.deque([level])
    while queue:
        current = queue.popleft()
        for action in STEPS:
            after = move(current, action)
            if after.is_solved:
                return depth_of[current] + 1
            if after not in depth_of:
                depth_of[after] = depth_of[current] + 1
                queue.append(after)
    return None
