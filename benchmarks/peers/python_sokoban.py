"""Sokoban, its messages and its answers in plain Python, for the peers.

The rules and the words are those of `envs/sokoban/env.py` and of the terse style; a
test holds the two together. Cells are numbered row by row.
"""

import re

NAMES = ("up", "down", "left", "right")
STEP_REWARD, BOX_REWARD, SOLVE_REWARD = -0.1, 1.0, 10.0
_REPLY = re.compile(r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", re.DOTALL)
_TAGS = re.compile(r"</?(?:think|answer)>|<\|im_(?:start|end)\|>")


class Sokoban:
    """A game in progress.

    Attributes:
      is_solved: every box is on a target.
    """

    def __init__(self, walls, targets, boxes, player: int, cols: int):
        """`walls`, `targets` and `boxes` are cells."""
        self._walls, self._targets = frozenset(walls), frozenset(targets)
        self._boxes, self._player = set(boxes), player
        self._steps = (-cols, cols, -1, 1)
        self._cols, self._cells = cols, cols * cols
        self.is_solved = self._boxes == self._targets

    def step(self, action: int) -> float:
        """Takes an action of `NAMES`; the reward."""
        covered = len(self._boxes & self._targets)
        ahead = self._player + self._steps[action]
        beyond = ahead + self._steps[action]
        if ahead in self._boxes:
            if beyond in self._walls or beyond in self._boxes:
                return STEP_REWARD
            self._boxes.remove(ahead)
            self._boxes.add(beyond)
        elif ahead in self._walls:
            return STEP_REWARD
        self._player = ahead
        reward = STEP_REWARD
        reward += BOX_REWARD * (len(self._boxes & self._targets) - covered)
        self.is_solved = self._boxes == self._targets
        return reward + SOLVE_REWARD * self.is_solved

    def picture(self) -> str:
        """The board, a line per row."""
        symbols = []
        for cell in range(self._cells):
            is_target = cell in self._targets
            if cell in self._walls:
                symbols.append("#")
            elif cell in self._boxes:
                symbols.append("√" if is_target else "X")
            elif cell == self._player:
                symbols.append("S" if is_target else "P")
            else:
                symbols.append("O" if is_target else "_")
        rows = range(0, self._cells, self._cols)
        return "".join("".join(symbols[i : i + self._cols]) + "\n" for i in rows)


def opening(picture: str, actions_left: int) -> str:
    """The first message, up to the reply."""
    return (
        "<|im_start|>system\nsokoban<|im_end|>\n<|im_start|>user\n"
        f"{_turn(1, picture, actions_left)}"
    )


def following(
    turn: int,
    picture: str,
    actions_left: int,
    *,
    reward: float,
    was_invalid: bool,
    was_cut: bool,
) -> str:
    """A later message, from the end of the last reply to the next one. Turns from 1."""
    end = "<|im_end|>" if was_cut else ""
    amount = f"{round(100 * reward) / 100:g}"
    warning = "Invalid\n" if was_invalid else ""
    return (
        f"{end}\n<|im_start|>user\nReward {amount}\n{warning}"
        f"{_turn(turn, picture, actions_left)}"
    )


def _turn(turn: int, picture: str, actions_left: int) -> str:
    return (
        f"Turn {turn}\n{picture}Left {actions_left}<|im_end|>\n"
        "<|im_start|>assistant\n<think>"
    )


def read_answer(reply: str, max_actions: int) -> tuple[list[int], bool]:
    """Actions of a reply, and whether a format penalty is due."""
    match = _REPLY.search("<think>" + reply)
    if match is None:
        return [], True
    pieces = (piece.strip() for piece in _TAGS.sub("", match[2]).split("||"))
    names = [piece.lower() for piece in pieces if piece][:max_actions]
    actions = [NAMES.index(name) for name in names if name in NAMES]
    return actions, len(actions) < len(names) or not actions
