"""2048 in plain Python: slides of boards of tiles, and best play by trying everything.

In: boards as tuples of rows of tiles (0, 2, 4, ...). Out: boards, sums of new tiles,
values, chances.
"""

import functools
import math

ACTIONS = ("Up", "Right", "Down", "Left")


def slide_row(row):
    """A row after its tiles slid to the front, and the sum of the new ones."""
    tiles, after, merged = [tile for tile in row if tile], [], 0
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tile += tiles.pop(0)
            merged += tile
        after.append(tile)
    return tuple(after + [0] * (len(row) - len(after))), merged


def slide(board, action):
    """The board after a slide, and the sum of the new tiles."""
    name = ACTIONS[action]
    lines = list(zip(*board, strict=True)) if name in ("Up", "Down") else list(board)
    back = -1 if name in ("Right", "Down") else 1
    slid = [slide_row(line[::back]) for line in lines]
    lines = [line[::back] for line, _ in slid]
    if name in ("Up", "Down"):
        lines = list(zip(*lines, strict=True))
    return tuple(map(tuple, lines)), sum(merged for _, merged in slid)


def new_tiles(board, two_probability):
    """[(chance, board)] after the new tile."""
    empty = [(r, c) for r, row in enumerate(board) for c, x in enumerate(row) if not x]
    found = []
    for r, c in empty:
        for tile, chance in ((2, two_probability), (4, 1 - two_probability)):
            rows = [list(row) for row in board]
            rows[r][c] = tile
            found.append((chance / len(empty), tuple(map(tuple, rows))))
    return found


def has(board, goal):
    return any(goal in row for row in board)


class BestPlay:
    """Best play on tiny boards."""

    def __init__(
        self, goal, two_probability=0.9, idle_reward=-0.1, goal_reward=0.0, discount=1.0
    ):
        self.goal, self.two_probability = goal, two_probability
        self.idle_reward, self.goal_reward = idle_reward, goal_reward
        self.discount = discount

    @functools.cache  # noqa: B019
    def value(self, board):
        """Best expected return; a board without a slide is worth 0."""
        return max(self.returns(board).values(), default=0.0)

    def returns(self, board):
        """Action -> expected return, of the slides that change something."""
        found = {}
        for action in range(4):
            after, merged = slide(board, action)
            if after != board:
                reward = 0.1 * math.log2(merged + 1)
                if has(after, self.goal):
                    found[action] = reward + self.goal_reward
                else:
                    found[action] = reward + self.discount * self._mean(after)
        return found

    def action_values(self, board):
        idle = self.idle_reward + self.discount * self.value(board)
        returns = self.returns(board)
        return [returns.get(action, idle) for action in range(4)]

    def _mean(self, after):
        outcomes = new_tiles(after, self.two_probability)
        return sum(chance * self.value(board) for chance, board in outcomes)

    @functools.cache  # noqa: B019
    def chance(self, board, count):
        """Best chance to make the goal tile with so many slides."""
        if has(board, self.goal):
            return 1.0
        best = 0.0
        for action in range(4) if count else ():
            after, _ = slide(board, action)
            if after != board:
                outcomes = new_tiles(after, self.two_probability)
                if has(after, self.goal):
                    return 1.0
                mean = sum(c * self.chance(b, count - 1) for c, b in outcomes)
                best = max(best, mean)
        return best

    def fewest(self, board, most=60):
        """Slides of the luckiest win, None without one."""
        return next((n for n in range(most) if self._can_win(board, n)), None)

    @functools.cache  # noqa: B019
    def _can_win(self, board, count):
        return self.chance(board, count) > 0
