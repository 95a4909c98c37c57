"""Options of the games: what each constructor refuses, and with which words."""

import pytest

import envs

REFUSED = [
    ("frozenlake", {}, "did you mean 'frozen_lake'.*choose one of bandit"),
    ("chess", {}, "no environment 'chess'; choose one of bandit"),
    ("bandit", {"slit": "test"}, "'slit' .did you mean 'split'.*split, reverse"),
    ("bandit", {"split": "validation"}, "choose one of train, test"),
    ("bandit", {"reverse": 1}, "reverse=1 must be True or False"),
    ("countdown", {"num_numbers": 5}, "num_numbers=5 must be 3 or 4"),
    ("countdown", {"num_numbers": 3.0}, "num_numbers=3.0 must be 3 or 4"),
    ("countdown", {"max_number": 100}, "must be a whole number from 9 to 99"),
    ("countdown", {"max_number": 8}, "max_number=8 .* from 9 to 99"),
    ("countdown", {"max_target": 98}, "max_target=98 .* from 99 to 9999"),
    ("countdown", {"max_target": 10_000}, "max_target=10000 .* from 99 to 9999"),
    ("countdown", {"signs_only": 1}, "signs_only=1 must be True or False"),
    ("cube2x2", {"min_distance": 0}, "min_distance=0 must be .* from 1 to 14"),
    ("cube2x2", {"max_distance": 15}, "max_distance=15 must be .* from 1 to 14"),
    ("cube2x2", {"max_distance": 4.0}, "max_distance=4.0 must be a whole number"),
    ("cube2x2", {"min_distance": 5}, "min_distance=5 is above max_distance=4"),
    ("cube2x2", {"symbols": "WOGRB"}, "6 different characters"),
    ("frozen_lake", {"self": 1}, "takes no argument 'self'"),
    ("frozen_lake", {"size": 1}, "size=1 must be a whole number, at least 2: start"),
    ("frozen_lake", {"size": 4.0}, "size=4.0 must be a whole number"),
    ("frozen_lake", {"frozen_probability": 90}, "must lie between 0 and 1"),
    ("frozen_lake", {"observation": "image"}, "grid, coord, grid_coord, relative"),
    ("frozen_lake", {"symbols": "PPOGX√"}, "6 different characters"),
    ("frozen_lake", {"symbols": "P OGX√"}, "one visible character"),
    ("frozen_lake", {"symbols": ("P", "__", *"OGX√")}, "one visible character"),
    ("game2048", {"size": 5}, "size=5 must be one of 2, 3, 4"),
    ("game2048", {"size": True}, "size=True must be one of"),
    ("game2048", {"goal": 30}, "goal=30 must be a power of two from 8 to 1024"),
    ("game2048", {"goal": 4}, "goal=4 must be a power of two"),
    ("game2048", {"size": 2, "goal": 64}, "must be a power of two from 8 to 32"),
    ("game2048", {"goal": 32.0}, "goal=32.0 must be a power of two"),
    ("sokoban", {"rows": 2}, "2 rows x 6 cols has no room"),
    ("sokoban", {"rows": 3, "cols": 4}, "no room to push"),
    ("sokoban", {"rows": 6.0}, "rows=6.0 must be a whole number, at least 1"),
    ("sokoban", {"num_boxes": 0}, "num_boxes=0"),
    ("sokoban", {"num_boxes": 9}, "takes 1 to 4 boxes"),
    ("sokoban", {"num_boxes": True}, "whole number"),
    ("sokoban", {"symbols": tuple("#_O√XPP")}, "7 different characters"),
    ("sokoban", {"size": 6}, "takes no argument 'size'.*rows, cols"),
    ("sudoku", {"size": 6}, "size=6 must be 4 or 9"),
    ("sudoku", {"size": 4.0}, "size=4.0 must be 4 or 9"),
    ("sudoku", {"min_blanks": 0}, "min_blanks=0 must be a whole number from 1 to 12"),
    ("sudoku", {"min_blanks": 9}, "min_blanks=9 is above max_blanks=8"),
    ("sudoku", {"max_blanks": 13}, "max_blanks=13 .* from 1 to 12"),
    ("sudoku", {"size": 9, "max_blanks": 51}, "max_blanks=51 .* from 1 to 50"),
    ("sudoku", {"max_blanks": True}, "max_blanks=True must be a whole number"),
]


@pytest.mark.parametrize(("name", "kwargs", "message"), REFUSED)
def test_what_a_game_refuses_is_explained(name, kwargs, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **kwargs)
