"""The decision procedure against Kripke models, its scripts against the tactics.

For every formula one of two things is shown by other means: a script that the tactics
accept, or a model in which the formula does not hold.
"""

import functools
import itertools
import random

import numpy as np
import pytest

from ragen_jax.host_games.lean.formulas import (
    AND,
    ASCII_SYMBOLS,
    ATOM,
    FALSE,
    FALSE_OP,
    IFF,
    IMPLIES,
    NOT,
    OR,
    atom,
    parse,
    render,
)
from ragen_jax.host_games.lean.prover import Prover, SearchGivenUp, script
from ragen_jax.host_games.lean.shortest_proof import ShortestProofs
from ragen_jax.host_games.lean.tactics import (
    Goal,
    TacticError,
    parse_tactic,
    run_tactic,
)


class Models:
    """All Kripke models on one frame, as an algebra of its upward closed sets."""

    def __init__(self, above: tuple[int, ...]) -> None:
        """`above[w]`: bits of the worlds that w sees, itself among them."""
        worlds = range(len(above))
        sets = [
            bits
            for bits in range(2 ** len(above))
            if all(above[w] & ~bits == 0 for w in worlds if bits >> w & 1)
        ]
        index = {bits: i for i, bits in enumerate(sets)}

        def implied(a: int, b: int) -> int:
            return sum(1 << w for w in worlds if above[w] & a & ~b == 0)

        self.size = len(sets)
        self.top = index[2 ** len(above) - 1]
        self.bottom = index[0]
        self.tables = {
            op: np.array([[index[rule(a, b)] for b in sets] for a in sets])
            for op, rule in (
                (AND, lambda a, b: a & b),
                (OR, lambda a, b: a | b),
                (IMPLIES, implied),
                (IFF, lambda a, b: implied(a, b) & implied(b, a)),
            )
        }

    def refute(self, formula: tuple, names: str) -> bool:
        """Whether a model on this frame has a world where the formula fails."""
        grid = np.meshgrid(*[np.arange(self.size)] * len(names), indexing="ij")
        values = dict(zip(names, grid, strict=True))
        return bool(np.any(self._value(formula, values) != self.top))

    def _value(self, formula: tuple, values: dict) -> np.ndarray:
        op = formula[0]
        if op == ATOM:
            return values[formula[1]]
        if op == FALSE_OP:
            return np.asarray(self.bottom)
        parts = [self._value(part, values) for part in formula[1:]]
        if op == NOT:
            return self.tables[IMPLIES][parts[0], self.bottom]
        return self.tables[op][parts[0], parts[1]]


@functools.cache
def frames(worlds: int) -> tuple[Models, ...]:
    """All orders of so many worlds with a least one (numbered along the order)."""
    pairs = list(itertools.combinations(range(1, worlds), 2))
    found = {}
    for chosen in itertools.product((False, True), repeat=len(pairs)):
        sees = {pair for pair, is_in in zip(pairs, chosen, strict=True) if is_in}
        if any(
            (a, d) not in sees
            for (a, b), (c, d) in itertools.product(sees, sees)
            if b == c
        ):
            continue
        above = [2**worlds - 1] + [1 << w for w in range(1, worlds)]
        for a, b in sees:
            above[a] |= 1 << b
        found[tuple(above)] = Models(tuple(above))
    return tuple(found.values())


def has_countermodel(formula: tuple, names: str, most_worlds: int) -> bool:
    return any(
        models.refute(formula, names)
        for worlds in range(1, most_worlds + 1)
        for models in frames(worlds)
    )


def closed(goal: Goal) -> tuple:
    formula = goal.target
    for _, given in reversed(goal.hypotheses):
        formula = (IMPLIES, given, formula)
    return formula


def check_script(goal: Goal, lines: list[str]) -> None:
    goals = (goal,)
    for text in lines:
        goals = run_tactic(goals, parse_tactic(text))
    assert goals == (), (goal, lines)


def formulas_of(connectives: int) -> list[list[tuple]]:
    """Formulas over p, q and False by number of connectives (without ↔)."""
    found = [[atom("p"), atom("q"), FALSE]]
    for count in range(1, connectives + 1):
        level = [(NOT, inner) for inner in found[count - 1]]
        for left in range(count):
            level += [
                (op, a, b)
                for op in (AND, OR, IMPLIES)
                for a in found[left]
                for b in found[count - 1 - left]
            ]
        found.append(level)
    return found


@pytest.mark.slow
def test_every_small_formula():
    prover, provable, total = Prover(), 0, 0
    for formula in itertools.chain(*formulas_of(3)):
        total += 1
        proof = prover.prove((), formula)
        assert (proof is None) == has_countermodel(formula, "pq", 4), render(formula)
        if proof is not None:
            provable += 1
            check_script(goal := Goal("", (), formula), script(goal, proof))
    assert total == 3 + 30 + 570 + 13_530
    assert provable > 3_000


def random_formula(draw: random.Random, depth: int) -> tuple:
    if depth == 0 or draw.random() < 0.25:
        leaf = draw.random()
        return FALSE if leaf < 0.07 else atom("pqr"[int(leaf * 100) % 3])
    op = (NOT, AND, OR, IMPLIES, IMPLIES, IFF)[int(draw.random() * 6)]
    first = random_formula(draw, depth - 1)
    return (op, first) if op == NOT else (op, first, random_formula(draw, depth - 1))


def random_goal(draw: random.Random, depth: int = 2) -> Goal:
    count = int(draw.random() * 4)
    given = tuple((f"h{i + 1}", random_formula(draw, depth)) for i in range(count))
    return Goal("", given, random_formula(draw, depth))


@pytest.mark.slow
def test_random_goals_of_three_atoms():
    draw, prover, provable = random.Random(0), Prover(), 0
    for _ in range(3_000):
        goal = random_goal(draw)
        proof = prover.prove([f for _, f in goal.hypotheses], goal.target)
        assert (proof is None) == has_countermodel(closed(goal), "pqr", 4), goal
        if proof is not None:
            provable += 1
            check_script(goal, script(goal, proof, ASCII_SYMBOLS))
    assert 700 < provable < 2_300


@pytest.mark.parametrize(
    ("text", "is_theorem"),
    [
        ("p ∨ ¬p", False),
        ("¬¬(p ∨ ¬p)", True),
        ("((p → q) → p) → p", False),
        ("¬¬(((p → q) → p) → p)", True),
        ("¬¬p → p", False),
        ("¬¬¬p → ¬p", True),
        ("(p → q) ∨ (q → p)", False),
        ("¬(p ∧ q) → ¬p ∨ ¬q", False),
        ("¬(p ∨ q) ↔ ¬p ∧ ¬q", True),
        ("¬p ∨ ¬¬p", False),
        # Kreisel and Putnam's, which intuitionistic logic does not have.
        ("(¬p → q ∨ r) → (¬p → q) ∨ (¬p → r)", False),
        ("((p ↔ q) ↔ r) ↔ (p ↔ (q ↔ r))", False),
        ("(((p → q) → p) → p) → q", False),
        ("((((p → q) → p) → p) → q) → q", True),
    ],
)
def test_known_formulas(text, is_theorem):
    assert (Prover().prove((), parse(text)) is not None) == is_theorem


def test_what_is_too_hard_is_given_up():
    formula = parse("((p ↔ q) ↔ r) ↔ (p ↔ (q ↔ r))")
    with pytest.raises(SearchGivenUp, match="more than 5 sequents"):
        Prover(max_sequents=5).prove((), formula)


def moves(goal: Goal) -> list[str]:
    """Every plain tactic, sensible or not."""
    names = [name for name, _ in goal.hypotheses]
    found = ["intro", "constructor", "left", "right", "exfalso", "contradiction"]
    found += [f"{verb} {n}" for verb in ("exact", "apply", "cases") for n in names]
    found += [f"have new{len(names)} := {a} {b}" for a in names for b in names]
    for _, formula in goal.hypotheses:
        while formula[0] == IMPLIES:
            formula = formula[2]
            found.append(f"have new{len(names)} : {render(formula)}")
    return found


def can_be_proved(goals: tuple[Goal, ...], tactics: int) -> bool:
    """Whether so many tactics are enough, by trying all."""
    if not goals:
        return True
    if tactics < len(goals):
        return False
    for text in moves(goals[0]):
        try:
            left = run_tactic(goals, parse_tactic(text))
        except TacticError:
            continue
        if can_be_proved(left, tactics - 1):
            return True
    return False


def test_no_proof_is_shorter_than_the_shortest():
    draw, prover = random.Random(1), Prover()
    search, sizes = ShortestProofs(prover), [0] * 5
    for _ in range(400):
        goal = random_goal(draw)
        found = search.find(goal, 4)
        size = 5 if found is None else len(found)
        if found is not None:
            check_script(goal, found)
            sizes[size] += 1
        assert not can_be_proved((goal,), min(size - 1, 3)), (goal, found)
    assert all(count >= 10 for count in sizes[1:])


@pytest.mark.parametrize(
    ("given", "target", "expected"),
    [
        (["¬(p → p)"], "q", "exfalso; apply h1; intro h2; exact h2"),
        (["p → q ∨ r", "p"], "r ∨ q", "have h3 := h1 h2; cases h3; right; exact h4; "),
        (["(p → p) → q ∧ r"], "r", "have h2 : q /\\ r; apply h1; intro h2; exact h2; "),
        (["p ↔ q", "q"], "p", "cases h1; apply h4; exact h2"),
        (["p", "¬p"], "q", "contradiction"),
    ],
)
def test_shortest_proofs_of_every_kind(given, target, expected):
    named = tuple((f"h{i + 1}", parse(text)) for i, text in enumerate(given))
    goal = Goal("", named, parse(target))
    found = ShortestProofs(Prover()).find(goal, 7, ASCII_SYMBOLS)
    check_script(goal, found)
    assert "; ".join(found).startswith(expected)


def test_shortest_proofs_are_not_longer_than_the_provers():
    draw, prover = random.Random(2), Prover()
    search, compared = ShortestProofs(prover), 0
    for _ in range(500):
        goal = random_goal(draw)
        proof = prover.prove([f for _, f in goal.hypotheses], goal.target)
        found = search.find(goal, 7)
        if proof is None:
            assert found is None
        elif found is not None:
            compared += 1
            assert len(found) <= len(script(goal, proof))
    assert compared > 100
