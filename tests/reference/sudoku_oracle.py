"""Sudoku by dictionaries and backtracking, slow and obvious; from the rules alone.

A board is a tuple of digits, row by row, 0 where a cell is empty.
"""

import functools
import re

# Blanks between two parts of a text: some, or any number.
SOME, ANY = r"[ \t]+", r"[ \t]*"
N, R, C = r"(?P<n>\d)", r"(?P<r>\d)", r"(?P<c>\d)"
_AT = ("at", SOME, R, ANY, ",", ANY, C)
FORMS = [
    re.compile(ANY + "".join(parts) + ANY, re.ASCII | re.IGNORECASE)
    for parts in (
        ("place", SOME, N, SOME, "at", SOME, "row", SOME, R, SOME, "col", SOME, C),
        (
            "place",
            SOME,
            N,
            SOME,
            "at",
            ANY,
            r"\(",
            ANY,
            R,
            ANY,
            ",",
            ANY,
            C,
            ANY,
            r"\)",
        ),
        ("place", SOME, N, SOME, *_AT),
        (N, SOME, *_AT),
        (r"\(", ANY, R, ANY, ",", ANY, C, ANY, ",", ANY, N, ANY, r"\)"),
        (R, ANY, ",", ANY, C, ANY, ",", ANY, N),
    )
]


def read(text, size):
    """Index of the placement that bytes ask for, -1 if none."""
    for form in FORMS:
        match = form.fullmatch(text.decode("latin-1"))
        if match:
            row, col, digit = (int(match[name]) for name in "rcn")
            if all(1 <= x <= size for x in (row, col, digit)):
                return ((row - 1) * size + col - 1) * size + digit - 1
    return -1


@functools.cache
def peers(size):
    """Of every cell the others in its row, column and box."""
    side = {4: 2, 9: 3}[size]
    places = [divmod(i, size) for i in range(size * size)]

    def are_peers(a, b):
        same_box = (a[0] // side, a[1] // side) == (b[0] // side, b[1] // side)
        return a != b and (a[0] == b[0] or a[1] == b[1] or same_box)

    return [
        [j for j, other in enumerate(places) if are_peers(place, other)]
        for place in places
    ]


def candidates(board, cell, size):
    """Digits that do not stand around a cell."""
    around = {board[j] for j in peers(size)[cell]}
    return [digit for digit in range(1, size + 1) if digit not in around]


def is_valid(board, size):
    return all(
        1 <= digit <= size and digit in candidates(board, i, size)
        for i, digit in enumerate(board)
    )


def solutions(board, size):
    empty = [i for i, digit in enumerate(board) if digit == 0]
    if not empty:
        yield tuple(board)
        return
    options = {i: candidates(board, i, size) for i in empty}
    cell = min(empty, key=lambda i: len(options[i]))
    for digit in options[cell]:
        yield from solutions((*board[:cell], digit, *board[cell + 1 :]), size)


def solve_by_singles(board, size):
    """The board with everything filled that naked and hidden singles fill."""
    board = list(board)
    progress = True
    while progress:
        progress = False
        for i in range(size * size):
            options = [] if board[i] else candidates(board, i, size)
            for digit in options:
                if len(options) == 1 or is_hidden_single(board, i, digit, size):
                    board[i] = digit
                    progress = True
                    break
    return tuple(board)


def is_hidden_single(board, cell, digit, size):
    """Whether no other cell of the row, column or box can take the digit."""
    side = {4: 2, 9: 3}[size]
    keys = (
        lambda i: i // size,
        lambda i: i % size,
        lambda i: (i // size // side, i % size // side),
    )
    for key in keys:
        unit = [j for j in range(size * size) if key(j) == key(cell) and j != cell]
        if all(board[j] or digit not in candidates(board, j, size) for j in unit):
            return True
    return False


def step(board, givens, solution, action, size, rewards):
    """(board, reward) of a placement in a game that is not over.

    Args:
      givens: numbers of the cells given.
      rewards: for a correct, a legal, and an invalid digit, and for the solution.
    """
    correct, legal, invalid, solved = rewards
    cell, digit = action // size, action % size + 1
    against = any(board[j] == digit for j in peers(size)[cell] if j in givens)
    if cell in givens or against:
        return board, invalid
    reward = 0.0
    if board[cell] == 0:
        reward = correct if solution[cell] == digit else legal
    board = (*board[:cell], digit, *board[cell + 1 :])
    return board, reward + (solved if board == solution else 0.0)
