"""Boards as pictures: sizes, looks of meanings, and the PNG file."""

import io
import json

import numpy as np
import pytest
from matplotlib import image

from envs.frozen_lake import FrozenLake
from envs.sokoban import Sokoban
from ragen_jax.runs import boards

LOOKS = boards._looks()


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


@pytest.mark.parametrize("meanings", [Sokoban.meanings, FrozenLake.meanings])
def test_every_meaning_has_a_look_of_its_own(meanings):
    assert set(meanings) <= set(LOOKS)
    cells = [boards.draw_boards([["x"]], {"x": meaning}) for meaning in meanings]
    assert len({cell.tobytes() for cell in cells}) == len(meanings)


def test_symbols_without_a_meaning_differ():
    a, b = (boards.draw_boards([[symbol]], {}).tobytes() for symbol in "ab")
    assert a != b


def test_every_look_can_be_drawn():
    assert {look["shape"] for look in LOOKS.values()} <= set(boards.SHAPES)
    colors = [v for look in LOOKS.values() for k, v in look.items() if k != "shape"]
    assert json.dumps(colors).count("#") == len(colors)
    assert {len(color) for color in colors} == {7}
