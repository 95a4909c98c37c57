"""The 2x2x2 cube in plain Python: turns as written down, distances by a search.

In: cubes as tuples of 24 colours. Out: cubes after turns; the fewest turns from solved.
The turns are data here, and the ways to hold a cube are pairs of turns: nothing comes
from `envs.cube.tables`.
"""

# Sticker `i` is afterwards what sticker `TURNS[t][i]` was. U, D, L, R and F are those
# of RAGEN's repository. Its turn of the back takes 22 for 23 and 4 for 6, which tears
# two corners apart; here is what a real cube does.
_CLOCKWISE = {
    "U": "2 0 3 1 8 9 6 7 12 13 10 11 16 17 14 15 4 5 18 19 20 21 22 23",
    "D": "0 1 2 3 4 5 18 19 8 9 6 7 12 13 10 11 16 17 14 15 22 20 23 21",
    "L": "19 1 17 3 6 4 7 5 0 9 2 11 12 13 14 15 16 22 18 20 8 21 10 23",
    "R": "0 9 2 11 4 5 6 7 8 21 10 23 14 12 15 13 3 17 1 19 20 18 22 16",
    "F": "0 1 7 5 4 20 6 21 10 8 11 9 2 13 3 15 16 17 18 19 14 12 22 23",
    "B": "13 15 2 3 1 5 0 7 8 9 10 11 12 23 14 22 18 16 19 17 20 21 4 6",
}
SOLVED = tuple(i // 4 for i in range(24))
TURNS = {}
for _name, _text in _CLOCKWISE.items():
    _source = tuple(map(int, _text.split()))
    TURNS[_name] = _source
    TURNS[_name + "'"] = tuple(_source.index(i) for i in range(24))


def turn(cube, *names):
    for name in names:
        cube = tuple(cube[i] for i in TURNS[name])
    return cube


def holds(cube):
    """The 24 ways to hold a cube."""
    found = [cube]
    for held in found:
        for pair in (("U", "D'"), ("R", "L'")):
            other = turn(held, *pair)
            if other not in found:
                found.append(other)
    return found


def is_solved(cube):
    return all(len(set(cube[i : i + 4])) == 1 for i in range(0, 24, 4))


def distances(depth):
    """Cubes within `depth` turns of solved -> their distance, as held at the least."""
    found = {min(holds(SOLVED)): 0}
    frontier = list(found)
    for distance in range(1, depth + 1):
        near = {min(holds(turn(cube, name))) for cube in frontier for name in TURNS}
        frontier = [cube for cube in near if cube not in found]
        found.update(dict.fromkeys(frontier, distance))
    return found
