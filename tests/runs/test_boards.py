"""Boards as pictures: sizes, looks of meanings, and the PNG file."""

import io

import numpy as np
import pytest
from matplotlib import image

from envs.cube.env import Cube2x2
from envs.frozen_lake.env import FrozenLake
from envs.game2048.env import Game2048
from envs.pictures import looks
from envs.sokoban.env import Sokoban
from ragen_jax.runs import boards

LOOKS = looks()
TILES, *_ = Game2048(size=4, goal=2**17).template.parts


def read(data):
    """RGB of a PNG file, by matplotlib."""
    return np.round(image.imread(io.BytesIO(data), format="png") * 255).astype(np.uint8)


def test_a_picture_is_read_back_by_another_library():
    picture = boards.draw_boards([["P_X"]], {"P": "you", "X": "box"})
    np.testing.assert_array_equal(read(boards.png(picture)), np.asarray(picture))


def test_boards_stand_side_by_side():
    legend = {"P": "you", "_": "floor"}
    one = np.asarray(boards.draw_boards([["P_"]], legend))
    assert one.shape == (boards.CELL, 2 * boards.CELL, 3)
    both = np.asarray(boards.draw_boards([["P_"], ["_P", "__"]], legend))
    assert both.shape[0] == 2 * boards.CELL
    np.testing.assert_array_equal(both[: boards.CELL, : 2 * boards.CELL], one)
    assert not np.array_equal(both[: boards.CELL, -2 * boards.CELL :], one)


@pytest.mark.parametrize(
    "meanings",
    [Sokoban.meanings, FrozenLake.meanings, Cube2x2.meanings, TILES.meanings],
)
def test_every_meaning_has_a_look_of_its_own(meanings):
    assert set(meanings) <= set(LOOKS)
    cells = [boards.draw_boards([["x"]], {"x": meaning}) for meaning in meanings]
    assert len({cell.tobytes() for cell in cells}) == len(meanings)


def test_symbols_without_a_meaning_differ():
    a, b = (boards.draw_boards([[symbol]], {}).tobytes() for symbol in "√é")
    assert a != b


@pytest.mark.parametrize("symbol", ["8", "64", "1024", "131072"])
def test_numbers_are_written_inside_their_cells(symbol):
    """The cell next to it is as if alone, and so is the edge of its own."""
    legend = dict(zip(TILES.symbols, TILES.meanings, strict=True))
    one = np.asarray(boards.draw_boards([[[symbol]]], legend))
    blank = np.asarray(boards.draw_boards([[[""]]], {"": legend[symbol]}))
    is_ink = (one != blank).any(axis=2)
    assert is_ink.sum() > 8
    assert not is_ink[[0, -1]].any()
    assert not is_ink[:, [0, -1]].any()
    pair = np.asarray(boards.draw_boards([[["2", symbol]]], legend))
    np.testing.assert_array_equal(pair[:, boards.CELL :], one)


def test_long_symbols_stand_in_columns():
    legend = dict(zip(TILES.symbols, TILES.meanings, strict=True))
    board = [["2", "128", "."], ["16", ".", "2"]]
    shown = boards.color_board(board, legend, width=80)
    assert shown.plain == " 2  128  .  \n16   .   2  \n"
    assert boards.color_board(board, legend, width=9).plain == " 2 128 . \n16  .  2 \n"
    grounds = [str(span.style).split()[-1] for span in shown.spans]
    assert grounds[1] == LOOKS["tile of 128"]["ground"]
