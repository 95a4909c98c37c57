"""Grids and seeds as texts: what they name, and what is refused."""

import re

import pytest

from configs import sokoban
from ragen_jax.sweeps.grid import check_cells, make_cells, parse_grid, parse_seeds
from tests.launch import users_functions

MINE = f"{users_functions.__name__}:"


def cells_of(*texts):
    return make_cells(sokoban.get_config().lock(), parse_grid(texts))


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0:5", [0, 1, 2, 3, 4]), ("1,4,9", [1, 4, 9]), ("7", [7]), ("0:2, 5", [0, 1, 5])],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is neither a seed nor a range"),
        ("a:b", "'a:b' is neither"),
        ("-1", "'-1' is neither"),
        ("0:5:2", "'0:5:2' is neither"),
        ("3:3", "does not name a seed"),
        ("0:3,2", "names 2 twice"),
        ("1,4294967296", "4294967296 is not a seed; use 0 to 2**32 - 1"),
        ("0:99999999999", "99999999998 is not a seed"),
        ("0:4000000000", "names more than 10,000 seeds"),
    ],
)
def test_bad_seeds(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=1e-4,2e-4", [1e-4, 2e-4]),
        ("a.b= gae , grpo", ["gae", "grpo"]),
        ("a.b=true,False,None", [True, False, None]),
        ("a.b=(1, 4), [2, 3]", [(1, 4), [2, 3]]),
        ("a.b='x,y',\"it's\"", ["x,y", "it's"]),
        (
            "a.b=(('bandit', 4, {'label': 'A,B'}),)",
            [(("bandit", 4, {"label": "A,B"}),)],
        ),
    ],
)
def test_values(text, values):
    assert parse_grid([text]) == {"a.b": values}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["optimizer.learning_rate"], "is not a setting; write --set KEY=VALUE"),
        (["a=1,,2"], "has an empty value"),
        (["a="], "has an empty value"),
        (["a=(1, 2"], "lacks a closing )"),
        (["a='x"], "lacks a closing '"),
        (["a=1", "a=2"], "names a twice"),
        (["seed=1,2"], "give seeds by --seeds"),
    ],
)
def test_bad_texts(texts, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_grid(texts)


def test_a_grid_is_the_product_of_its_values():
    cells = cells_of("optimizer.learning_rate=1e-4,2e-4", "algo.lam=0.9,1")
    assert [cell.label for cell in cells] == [
        "learning_rate=0.0001, lam=0.9",
        "learning_rate=0.0001, lam=1.0",
        "learning_rate=0.0002, lam=0.9",
        "learning_rate=0.0002, lam=1.0",
    ]
    assert cells[1].name == "optimizer.learning_rate=0.0001,algo.lam=1.0"
    assert cells[1].config.optimizer.learning_rate == 1e-4
    assert cells[3].config.algo.lam == 1.0
    assert cells[2].with_seed(7).seed == 7
    check_cells(cells)


def test_without_a_grid_there_is_one_cell():
    (cell,) = cells_of()
    assert cell.name == cell.label == ""
    assert cell.with_seed(3).to_dict() == sokoban.get_config().to_dict() | {"seed": 3}


def test_keys_that_end_alike_are_told_in_full():
    (cell,) = cells_of("optimizer.learning_rate=1e-4", "critic.learning_rate=1e-3")
    assert cell.label == "optimizer.learning_rate=0.0001, critic.learning_rate=0.001"


def test_any_value_has_another_folder():
    values = "env.mix=(('bandit', 4), ('sokoban', 28)),(('bandit', 5), ('sokoban', 27))"
    names = [cell.name for cell in cells_of(values)]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"[\w.=,+-]+", name) for name in names)
    (long,) = cells_of(f"model.path='{'x/' * 200}'")
    assert len(long.name) < 140


def test_keys_that_no_file_lists():
    (cell,) = cells_of("env.kwargs.num_boxes=2")
    assert cell.config.env.kwargs.num_boxes == 2
    (cell,) = cells_of(f"algo.advantage={MINE}scaled_grpo", "algo.strength=3.0")
    assert cell.config.algo.strength == 3.0


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["optimizer.learning_rat=1"], "Did you mean 'optimizer.learning_rate'?"),
        (["optimizer.learning_rate=fast"], "takes values such as 0.0002"),
        (["train.num_iterations=2.5"], "the value has type float"),
        (["optimizer=3"], "no configuration key 'optimizer'"),
        (["optimizer.learning_rate=True"], "the value has type bool"),
        (["algo.strength=3"], "no configuration key 'algo.strength'"),
        (["optimizer.learning_rate=1e-4,0.0001"], "has learning_rate=0.0001 twice"),
        (["algo.lam=1,1.0"], "has lam=1.0 twice"),
    ],
)
def test_bad_keys_and_values(texts, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        cells_of(*texts)


@pytest.mark.parametrize(
    ("texts", "overrides", "words"),
    [
        (["algo.gamma=0.9,1.5"], [], "gamma=1.5: algo.gamma = 1.5"),
        (
            ["algo.advantage=gae,grpo", "critic.learning_rate=1e-3"],
            [],
            "advantage=grpo, learning_rate=0.001: critic.learning_rate has no effect",
        ),
        (["algo.lam=0.9"], ["algo.lam"], "set the same key"),
        ([], ["seed"], "--config.seed sets a single seed"),
    ],
)
def test_bad_cells_are_named(texts, overrides, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        check_cells(cells_of(*texts), overrides)
