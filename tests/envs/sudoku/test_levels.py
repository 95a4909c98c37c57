"""Levels of Sudoku against backtracking."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.sudoku import levels as sudoku_levels
from tests.reference import sudoku_oracle as oracle


def sample(env, num_levels, seed=0):
    keys = jax.random.split(jax.random.key(seed), num_levels)
    reset = jax.jit(jax.vmap(env.reset_env, (0, None)))
    return jax.device_get(reset(keys, env.default_params)[1])


def flat(board):
    return tuple(board.reshape(-1).tolist())


@functools.cache
def all_grids():
    return sorted(oracle.solutions((0,) * 16, 4))


def test_all_grids_of_four_are_drawn_alike():
    assert len(all_grids()) == 288
    draws = 288 * 50
    keys = jax.random.split(jax.random.key(0), draws)
    draw = jax.jit(jax.vmap(lambda key: sudoku_levels.sample_grid(key, 4)[0]))
    grids, counts = np.unique(
        np.asarray(draw(keys)).reshape(draws, 16), axis=0, return_counts=True
    )
    assert [tuple(grid) for grid in grids.tolist()] == all_grids()
    chi_square = ((counts - 50) ** 2 / 50).sum()
    # Mean 287, standard deviation 24: 5 of them, a false alarm once in a million seeds.
    assert chi_square < 287 + 5 * 24


def test_grids_of_nine_are_valid_and_keep_their_origins():
    keys = jax.random.split(jax.random.key(0), 100)
    draw = jax.jit(jax.vmap(lambda key: sudoku_levels.sample_grid(key, 9)))
    grids, origins = jax.device_get(draw(keys))
    assert all(oracle.is_valid(flat(grid), 9) for grid in grids)
    assert len({flat(grid) for grid in grids}) == 100
    stored = np.array([int(digit) for digit in sudoku_levels.GRIDS[9][0]])
    assert oracle.is_valid(tuple(stored.tolist()), 9)
    for grid, origin in zip(grids, origins, strict=True):
        # One name per digit.
        assert len(set(zip(stored[origin.ravel()], grid.ravel(), strict=True))) == 9


def test_lines_are_exchanged_in_every_way_alike():
    draws = 1296 * 40
    keys = jax.random.split(jax.random.key(0), draws)
    draw = jax.jit(jax.vmap(lambda key: sudoku_levels._line_order(key, 3)))
    orders, counts = np.unique(np.asarray(draw(keys)), axis=0, return_counts=True)
    assert len(orders) == 6**4
    # Three lines in a row come from one band.
    bands = orders.reshape(-1, 3, 3) // 3
    assert (bands == bands[:, :, :1]).all()
    assert (np.sort(orders, axis=1) == np.arange(9)).all()
    # Mean 1295, standard deviation 51.
    assert ((counts - 40) ** 2 / 40).sum() < 1295 + 5 * 51


CASES = [(4, 4, 8), (4, 1, 1), (4, 12, 12), (9, 32, 48), (9, 50, 50)]


@pytest.mark.parametrize(("size", "least", "most"), CASES)
@pytest.mark.parametrize("tries", [sudoku_levels.ORDER_TRIES, 0])
def test_levels_have_one_solution_that_singles_find(
    size, least, most, tries, monkeypatch
):
    # Without tries every level is made in the known order.
    monkeypatch.setattr(sudoku_levels, "ORDER_TRIES", tries)
    env = envs.make("sudoku", size=size, min_blanks=least, max_blanks=most)
    states = sample(env, 200 if size == 4 else 12)
    blanks = (~states.givens).sum((1, 2))
    assert set(blanks.tolist()) <= set(range(least, most + 1))
    if size == 4:
        assert set(blanks.tolist()) == set(range(least, most + 1))
    for board, givens, solution in zip(
        states.board, states.givens, states.solution, strict=True
    ):
        assert (board == np.where(givens, solution, 0)).all()
        assert oracle.solve_by_singles(flat(board), size) == flat(solution)
        assert oracle.is_valid(flat(solution), size)
        assert list(oracle.solutions(flat(board), size)) == [flat(solution)]


@pytest.mark.parametrize("size", [4, 9])
def test_the_known_order_reaches_the_promised_blanks(size):
    """On every stored grid; symmetries carry that over to all others."""
    order = [*sudoku_levels.KNOWN_ORDERS[size]]
    order += sorted(set(range(size**2)) - set(order))
    for grid in sudoku_levels.GRIDS[size]:
        grid = jnp.array([int(digit) for digit in grid], jnp.int32).reshape(size, size)
        givens = sudoku_levels.dig(
            grid, jnp.array(order, jnp.int32), jnp.int32(size**2)
        )
        assert int((~givens).sum()) >= sudoku_levels.MOST_BLANKS[size]


@pytest.mark.parametrize("size", [4, 9])
def test_forced_cells_are_those_of_the_rules(size):
    rng = np.random.default_rng(0)
    keys = jax.random.split(jax.random.key(3), 200)
    grids = jax.vmap(lambda key: sudoku_levels.sample_grid(key, size)[0])(keys)
    grids = np.asarray(grids)
    cells = rng.integers(0, size**2, len(grids))
    shares = rng.uniform(0.2, 0.9, (len(grids), 1))
    givens = rng.uniform(size=(len(grids), size**2)) < shares
    is_cell = np.arange(size**2)[None, :] == cells[:, None]
    givens &= ~is_cell
    shape = (-1, size, size)
    found = jax.jit(jax.vmap(sudoku_levels.is_forced))(
        jnp.asarray(givens.reshape(shape)),
        jnp.asarray(grids),
        jnp.asarray(is_cell.reshape(shape)),
    )
    expected = []
    for grid, given, cell in zip(grids, givens, cells, strict=True):
        board = tuple(np.where(given, grid.reshape(-1), 0).tolist())
        options = oracle.candidates(board, cell, size)
        digit = int(grid.reshape(-1)[cell])
        is_hidden = oracle.is_hidden_single(board, cell, digit, size)
        expected.append(options == [digit] or is_hidden)
    np.testing.assert_array_equal(found, expected)
    assert 0.2 < np.mean(expected) < 0.95
