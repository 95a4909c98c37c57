"""Generated theorems: provable, of the size asked for, and in one split only."""

import random

import pytest

from ragen_jax.host_games.lean.formulas import atoms_of, parse, rename
from ragen_jax.host_games.lean.problems import Problems, split_of
from ragen_jax.host_games.lean.prover import Prover
from ragen_jax.host_games.lean.shortest_proof import ShortestProofs
from ragen_jax.host_games.lean.tactics import Goal

DEFAULTS = {"max_depth": 2, "num_atoms": 3, "min_tactics": 1, "max_tactics": 6}


def depth_of(formula: tuple) -> int:
    """Connectives inside one another: 0 for an atom."""
    parts = [part for part in formula[1:] if isinstance(part, tuple)]
    return 1 + max(map(depth_of, parts)) if parts else 0


def formulas_of(goal: Goal) -> list[tuple]:
    return [*(formula for _, formula in goal.hypotheses), goal.target]


@pytest.mark.parametrize(
    "split", ["training", pytest.param("validation", marks=pytest.mark.slow)]
)
def test_problems_are_theorems_of_the_size_they_say(split):
    problems, sizes = Problems(split, **DEFAULTS), set()
    for seed in range(150):
        goal, tactics = problems.problem(seed)
        sizes.add(tactics)
        assert split_of(goal) == split
        assert len(ShortestProofs(Prover()).find(goal, 8)) == tactics
        for formula in formulas_of(goal):
            assert depth_of(formula) <= 2
            assert set(atoms_of(formula)) <= {"p", "q", "r"}
        names = [name for name, _ in goal.hypotheses]
        assert names == [f"h{i + 1}" for i in range(len(names))]
    assert sizes == {1, 2, 3, 4, 5, 6}


@pytest.mark.slow
def test_splits_share_no_problem_under_any_names():
    """The split is a function of the class, and both have problems of it in plenty."""
    draw = random.Random(0)
    for split in ("training", "validation"):
        problems = Problems(split, **DEFAULTS)
        for seed in range(100):
            goal = problems.problem(seed).goal
            names = ["p", "q", "r"]
            draw.shuffle(names)
            mapping = dict(zip("pqr", names, strict=True))
            given = [(name, rename(f, mapping)) for name, f in goal.hypotheses]
            draw.shuffle(given)
            renamed = Goal("", tuple(given), rename(goal.target, mapping))
            assert split_of(renamed) == split


def test_split_is_the_same_in_every_process():
    """Golden values: a hash that changes would move problems between the splits."""
    goals = ["p → p", "p ∧ q → q", "(p ↔ q) → p → q", "¬¬¬p → ¬p", "p ∧ ¬p → q"]
    splits = [split_of(Goal("", (), parse(text)))[0] for text in goals]
    assert "".join(splits) == "ttvtv"


def test_a_seed_has_one_problem():
    first, second = (Problems("training", **DEFAULTS) for _ in range(2))
    for seed in reversed(range(20)):
        second.problem(seed)
    assert [first.problem(s) for s in range(20)] == [
        second.problem(s) for s in range(20)
    ]
    assert len({first.problem(s).goal for s in range(20)}) == 20


@pytest.mark.parametrize(
    "options",
    [
        {"max_depth": 1, "num_atoms": 2, "max_tactics": 3},
        {"max_depth": 3, "num_atoms": 4},
        {"min_tactics": 4, "max_tactics": 5},
    ],
)
def test_options_are_kept(options):
    options = {**DEFAULTS, **options}
    problems = Problems("training", **options)
    for seed in range(30):
        goal, tactics = problems.problem(seed)
        assert options["min_tactics"] <= tactics <= options["max_tactics"]
        for formula in formulas_of(goal):
            assert depth_of(formula) <= options["max_depth"]
            assert len(atoms_of(formula)) <= options["num_atoms"]


def test_options_that_leave_no_problem():
    tight = {"max_depth": 1, "num_atoms": 1, "min_tactics": 9, "max_tactics": 9}
    with pytest.raises(ValueError, match="no theorem of 9 to 9 tactics in"):
        Problems("training", **tight).problem(0)
