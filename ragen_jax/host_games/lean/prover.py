"""Whether a propositional goal is provable, and a script of tactics that proves it.

In: a goal. Out: a yes or a no that is exact for intuitionistic logic, or tactics.
Does not know what is short: `shortest_proof` does.

The procedure is the contraction-free sequent calculus LJT, also called G4ip (R.
Dyckhoff, "Contraction-free sequent calculi for intuitionistic logic", Journal of
Symbolic Logic 57(3), 1992): every rule, read from below, makes the problem smaller, so
that the search ends without a look at what has been tried. Two things are ours. Any
`a → b` with `a` at hand becomes `b`, not only where `a` is an atom, which loses nothing
and saves steps; and ↔ is kept, as ∧ of both directions where it is used.
"""

from collections.abc import Iterator, Sequence

from ragen_jax.host_games.lean.formulas import (
    AND,
    FALSE,
    IFF,
    IMPLIES,
    OR,
    SYMBOLS,
    Formula,
    conjuncts,
    render,
    unfold,
)
from ragen_jax.host_games.lean.tactics import (
    Goal,
    fresh_names,
    parse_tactic,
    run_tactic,
)

# A proof is (rule, formula, proofs of the premises); the formula is None for rules that
# need none.
Proof = tuple

# Sequents looked at before a search is given up. Problems of the generator need below
# 100; the bound is for what a player's `have` may bring.
MAX_SEQUENTS = 20_000


class SearchGivenUp(Exception):
    """More sequents than allowed; nothing is known about the goal."""


class Prover:
    """The decision procedure, with a memory of sequents it has decided.

    Attributes:
      max_sequents: looked at in one question before `SearchGivenUp` is raised.
    """

    def __init__(self, max_sequents: int = MAX_SEQUENTS) -> None:
        self.max_sequents = max_sequents
        self._known: dict[tuple, Proof | None] = {}
        self._left = 0

    def prove(self, hypotheses: Sequence[Formula], target: Formula) -> Proof | None:
        """A proof; None: there is none in intuitionistic logic.

        Args:
          hypotheses: what is given.
          target: what is to be proved.

        Raises:
          SearchGivenUp: the question is too hard.
        """
        # The memory is for one problem's goals; it must not grow over a run.
        if len(self._known) > self.max_sequents:
            self._known.clear()
        self._left = self.max_sequents
        given = dict.fromkeys(unfold(formula) for formula in hypotheses)
        return self._search(tuple(given), unfold(target))

    def _search(self, context: tuple[Formula, ...], goal: Formula) -> Proof | None:
        # Contexts are ordered, so that proofs are the same in every process; the memory
        # is asked by their set.
        key = (frozenset(context), goal)
        if key not in self._known:
            self._left -= 1
            if self._left < 0:
                raise SearchGivenUp(f"more than {self.max_sequents} sequents")
            self._known[key] = self._decide(context, key[0], goal)
        return self._known[key]

    def _decide(
        self, context: tuple[Formula, ...], given: frozenset, goal: Formula
    ) -> Proof | None:
        if FALSE in given:
            return ("contradiction", None, ())
        if goal in given:
            return ("exact", goal, ())
        for formula in context:
            simpler = _replace(formula, given)
            if simpler is not None:
                rule, parts = simpler
                rest = _without(context, formula, parts)
                return self._conclude(rule, formula, (rest, goal))
        if goal[0] == IMPLIES:
            rest = _without(context, None, (goal[1],))
            return self._conclude("intro", None, (rest, goal[2]))
        if goal[0] in (AND, IFF):
            sides = [(context, side) for side in conjuncts(goal)]
            return self._conclude("constructor", None, *sides)
        for formula in context:
            if formula[0] == OR:
                sides = [(_without(context, formula, (x,)), goal) for x in formula[1:]]
                return self._conclude("cases", formula, *sides)
        return self._choose(context, goal)

    def _choose(self, context: tuple[Formula, ...], goal: Formula) -> Proof | None:
        """Tries the rules after which a goal may be lost, one after the other."""
        if goal[0] == OR:
            for rule, side in (("left", goal[1]), ("right", goal[2])):
                proof = self._conclude(rule, None, (context, side))
                if proof is not None:
                    return proof
        for formula in context:
            if formula[0] == IMPLIES and formula[1][0] == IMPLIES:
                (_, (_, _, inner), result) = formula
                weaker = _without(context, formula, ((IMPLIES, inner, result),))
                first = self._search(weaker, formula[1])
                if first is not None:
                    # The other premise follows from the conclusion: no other rule can
                    # help where it fails.
                    rest = _without(context, formula, (result,))
                    second = self._search(rest, goal)
                    return second and ("nested", formula, (first, second))
        return None

    def _conclude(
        self, rule: str, formula: Formula | None, *premises: tuple
    ) -> Proof | None:
        proofs = []
        for premise in premises:
            proof = self._search(*premise)
            if proof is None:
                return None
            proofs.append(proof)
        return (rule, formula, tuple(proofs))


def _replace(formula: Formula, given: frozenset) -> tuple[str, tuple] | None:
    """The rule, if any, that replaces a hypothesis by simpler ones, and these."""
    op = formula[0]
    if op in (AND, IFF):
        return "cases", conjuncts(formula)
    if op != IMPLIES:
        return None
    _, cause, result = formula
    if cause == FALSE or result in given:
        return "drop", ()
    if cause in given:
        return "forward", (result,)
    if cause[0] in (AND, IFF):
        first, second = conjuncts(cause)
        return "curry", ((IMPLIES, first, (IMPLIES, second, result)),)
    if cause[0] == OR:
        return "split", tuple((IMPLIES, side, result) for side in cause[1:])
    return None


def _without(
    context: tuple[Formula, ...], formula: Formula | None, parts: tuple
) -> tuple[Formula, ...]:
    return tuple(dict.fromkeys((*(x for x in context if x != formula), *parts)))


def script(goal: Goal, proof: Proof, symbols: dict[str, str] = SYMBOLS) -> list[str]:
    """A proof as tactics for its goal; long where the calculus is clumsy.

    Args:
      goal: what `Prover.prove` has been asked.
      proof: what it has answered.
      symbols: for the formulas in it.
    """
    return _Writer(goal, symbols).write(proof)


class _Writer:
    """Writes tactics while it plays them, so that it knows the names of hypotheses."""

    def __init__(self, goal: Goal, symbols: dict[str, str]) -> None:
        self.goals = (goal,)
        self.symbols = symbols
        self.lines: list[str] = []

    def write(self, proof: Proof) -> list[str]:
        for tactic in self._tactics(proof):
            self._play(tactic)
        return self.lines

    def _play(self, text: str) -> None:
        self.lines.append(text)
        self.goals = run_tactic(self.goals, parse_tactic(text))

    def _name(self, formula: Formula) -> str:
        return next(
            name for name, given in self.goals[0].hypotheses if unfold(given) == formula
        )

    def _have(self, formula: Formula) -> str:
        name = fresh_names(self.goals[0], 1)[0]
        return f"have {name} : {render(formula, self.symbols)}"

    def _newest(self, back: int = 1) -> str:
        return self.goals[0].hypotheses[-back][0]

    def _tactics(self, proof: Proof) -> Iterator[str]:
        # Each tactic is played before the next is asked for.
        rule, formula, premises = proof
        if rule in ("contradiction", "intro", "constructor", "left", "right"):
            yield rule
        elif rule in ("exact", "cases"):
            yield f"{rule} {self._name(formula)}"
        elif rule == "forward":
            new = fresh_names(self.goals[0], 1)[0]
            cause = self._name(formula[1])
            yield f"have {new} := {self._name(formula)} {cause}"
        elif rule == "curry":
            yield from self._curry(formula)
        elif rule == "split":
            for side, tactic in zip(formula[1][1:], ("left", "right"), strict=True):
                name = self._name(formula)
                yield self._have((IMPLIES, side, formula[2]))
                yield from ("intro", f"apply {name}", tactic)
                yield f"exact {self._newest()}"
        elif rule == "nested":
            yield from self._nested(formula)
        for premise in premises:
            yield from self._tactics(premise)

    def _curry(self, formula: Formula) -> Iterator[str]:
        """`(a ∧ b) → c` as `a → b → c`."""
        name = self._name(formula)
        _, (curried,) = _replace(formula, frozenset())
        yield self._have(curried)
        yield from ("intro", "intro", f"apply {name}", "constructor")
        yield f"exact {self._newest(2)}"
        yield f"exact {self._newest()}"

    def _nested(self, formula: Formula) -> Iterator[str]:
        """`(a → b) → c`: `c` first, where `a → b` is to be proved with `b → c`."""
        name = self._name(formula)
        _, (_, _, inner), result = formula
        yield self._have(result)
        yield self._have((IMPLIES, inner, result))
        yield "intro"
        held = self._newest()
        yield from (f"apply {name}", "intro", f"exact {held}", f"apply {name}")
