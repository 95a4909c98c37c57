"""Pictures of boards: every cell shows its symbol, and no two symbols look alike."""

import io

import jax
import numpy as np
import pytest
from PIL import Image

import envs
from envs.pictures import LARGEST_CELL, SHAPES, draw_cell, draw_cells, looks
from ragen_jax.runs import boards

GAMES = ["cube2x2", "frozen_lake", "game2048", "sokoban", "sudoku"]
# Mean difference of two cells in grey, of 255.
FEWEST_LEVELS = 4


def some_states(env, number=5):
    keys = jax.random.split(jax.random.key(1), number)
    return jax.vmap(lambda key: env.reset_env(key, env.default_params)[1])(keys)


@pytest.mark.parametrize("size", [16, 28])
@pytest.mark.parametrize("name", GAMES)
def test_every_cell_shows_its_symbol(name, size):
    env = envs.make(name)
    states, params = some_states(env), env.default_params
    drawn = jax.jit(jax.vmap(lambda state: env.pixels(state, params, size)))(states)
    symbols = jax.vmap(lambda state: env.board(state, params))(states)
    cells = draw_cells(env.picture.symbols, env.picture.meanings, size)
    assert drawn.dtype == np.uint8
    for picture, board in zip(np.asarray(drawn), np.asarray(symbols), strict=True):
        rows = [np.concatenate(list(cells[row]), axis=1) for row in board]
        np.testing.assert_array_equal(picture, np.concatenate(rows))


@pytest.mark.parametrize("name", GAMES)
def test_no_two_symbols_look_alike_in_grey(name):
    grid = envs.make(name).picture
    cells = draw_cells(grid.symbols, grid.meanings)
    grey = [np.asarray(Image.fromarray(cell).convert("L"), np.int32) for cell in cells]
    for i, one in enumerate(grey):
        for j, other in enumerate(grey[:i]):
            difference = np.abs(one - other).mean()
            assert difference > FEWEST_LEVELS, (grid.meanings[i], grid.meanings[j])


@pytest.mark.parametrize("name", GAMES)
def test_the_symbols_of_a_game_are_known(name):
    assert set(envs.make(name).picture.meanings) <= set(looks())


def test_all_tiles_of_2048_look_different():
    grid = envs.make("game2048", size=4, goal=2**17).picture
    assert len(draw_cells(grid.symbols, grid.meanings)) == 18


@pytest.mark.parametrize("observation", ["coord", "relative"])
def test_a_board_that_the_text_does_not_show_is_drawn(observation):
    shown, hidden = envs.make("sokoban"), envs.make("sokoban", observation=observation)
    state = jax.tree.map(lambda leaf: leaf[0], some_states(shown))
    params = shown.default_params
    np.testing.assert_array_equal(
        hidden.pixels(state, params), shown.pixels(state, params)
    )


def test_people_see_the_same_pictures():
    env = envs.make("sokoban")
    state = jax.tree.map(lambda leaf: leaf[0], some_states(env))
    grid, params = env.picture, env.default_params
    rows = grid.render(env.board(state, params)).split()
    legend = dict(zip(grid.symbols, grid.meanings, strict=True))
    drawn = Image.open(io.BytesIO(boards.png(boards.draw_boards([rows], legend))))
    np.testing.assert_array_equal(
        np.asarray(drawn), env.pixels(state, params, boards.CELL)
    )


def test_games_without_a_board_have_no_picture():
    env = envs.make("bandit")
    assert env.picture is None
    state = jax.tree.map(lambda leaf: leaf[0], some_states(env))
    with pytest.raises(ValueError, match="Bandit shows no board"):
        env.pixels(state, env.default_params)


def test_symbols_that_look_alike_are_refused():
    with pytest.raises(ValueError, match="'a' and 'b' look alike in a cell of 16"):
        draw_cells(("a", "b"), ("floor", "floor"))
    with pytest.raises(ValueError, match="a cell of 200 pixels; use 8 to 128"):
        draw_cells(("a",), (), LARGEST_CELL + 72)


def test_symbols_without_a_meaning_are_written():
    cells = draw_cells(tuple("#_OX√PS"), (), 16)
    assert len({cell.tobytes() for cell in cells}) == 7


def test_every_look_can_be_drawn():
    assert {look["shape"] for look in looks().values()} <= set(SHAPES)
    for meaning in looks():
        assert draw_cell(meaning, "x", 16).shape == (16, 16, 3)


@pytest.mark.parametrize("symbol", ["", "\ud800", "a\nb", "\x00", "x" * 2000, "🎲"])
def test_any_symbol_of_a_recorded_board_is_drawn(symbol):
    assert draw_cell("", symbol, 64).shape == (64, 64, 3)
