"""The shortest proof of a propositional goal in plain tactics.

In: a goal. Out: the fewest tactics that prove it, which is also what the generator
calls a problem's size. Does not try what cannot succeed: a goal that the prover finds
unprovable is not looked into.

Plain tactics are `intro`, `constructor`, `left`, `right`, `cases h`, `exact h`,
`apply h`, `contradiction`, `exfalso`, and `have` for what an implication gives at once
or what is to be taken apart. Of a goal's proofs in these, the shortest is found
exactly. Terms such as `h1 h2` or `⟨a, b⟩`, which say several tactics at once, are left
to the player.
"""

from collections.abc import Iterator

from ragen_jax.host_games.lean.formulas import (
    AND,
    FALSE,
    FALSE_OP,
    IFF,
    IMPLIES,
    NOT,
    OR,
    SYMBOLS,
    Formula,
    is_absurd,
    render,
    unfold,
)
from ragen_jax.host_games.lean.prover import Prover, SearchGivenUp
from ragen_jax.host_games.lean.tactics import (
    Goal,
    TacticError,
    fresh_names,
    parse_tactic,
    run_tactic,
)

# Goals expanded before a search is given up; problems of 6 tactics need about 100.
MAX_EXPANSIONS = 20_000


class ShortestProofs:
    """The search, by deepening, with a memory of goals that a length does not prove.

    Attributes:
      prover: decides which goals are worth a look.
    """

    def __init__(self, prover: Prover) -> None:
        self.prover = prover
        self._too_short: dict[tuple, int] = {}

    def find(
        self, goal: Goal, most: int, symbols: dict[str, str] = SYMBOLS
    ) -> list[str] | None:
        """The shortest script; None: none has up to `most` tactics.

        Args:
          goal: what is to be proved.
          most: tactics allowed.
          symbols: for formulas in it.

        Raises:
          SearchGivenUp: it takes too long, here or in the prover.
        """
        self._too_short.clear()
        self._left = MAX_EXPANSIONS
        self._symbols = symbols
        return self._shortest(goal, most)

    def _shortest(self, goal: Goal, most: int) -> list[str] | None:
        given = frozenset(unfold(formula) for _, formula in goal.hypotheses)
        key = (given, goal.target)
        start = self._too_short.get(key, 0) + 1
        if start > most or not self._is_provable(goal):
            return None
        for length in range(start, most + 1):
            script = self._of_length(goal, given, length)
            if script is not None:
                return script
            self._too_short[key] = length
        return None

    def _is_provable(self, goal: Goal) -> bool:
        formulas = [formula for _, formula in goal.hypotheses]
        return self.prover.prove(formulas, goal.target) is not None

    def _of_length(self, goal: Goal, given: frozenset, length: int) -> list[str] | None:
        """A script of exactly this length, given that none is shorter."""
        if length == 1:
            closing = _closing(goal, given)
            return None if closing is None else [closing]
        self._left -= 1
        if self._left < 0:
            raise SearchGivenUp(f"more than {MAX_EXPANSIONS} goals expanded")
        for text in self._moves(goal, given, length):
            try:
                children = run_tactic((goal,), parse_tactic(text))
            except TacticError:
                continue
            rest = self._all(children, length - 1)
            if rest is not None:
                return [text, *rest]
        return None

    def _all(self, goals: tuple[Goal, ...], most: int) -> list[str] | None:
        """Scripts of all goals, one after the other; None: they are too long."""
        if not all(self._is_provable(goal) for goal in goals):
            return None
        lines: list[str] = []
        for i, goal in enumerate(goals):
            # Every goal that follows needs a tactic, too.
            left = most - len(lines) - (len(goals) - i - 1)
            script = self._shortest(goal, left)
            if script is None:
                return None
            lines += script
        return lines

    def _moves(self, goal: Goal, given: frozenset, length: int) -> Iterator[str]:
        op = goal.target[0]
        if op in (IMPLIES, NOT):
            yield f"intro {fresh_names(goal, 1)[0]}"
        if op in (AND, IFF):
            yield "constructor"
        if op == OR:
            yield "left"
            yield "right"
        wanted = unfold(goal.target)
        for name, formula in goal.hypotheses:
            if formula[0] in (AND, OR, IFF):
                yield f"cases {name}"
            elif formula[0] in (IMPLIES, NOT) and _ends_in(unfold(formula), wanted):
                yield f"apply {name}"
        if wanted != FALSE and any(_denies(formula) for formula in given):
            yield "exfalso"
        if length > 2:
            yield from self._cuts(goal, given)

    def _cuts(self, goal: Goal, given: frozenset) -> Iterator[str]:
        """What implications give: at once, or where only `cases` can make use of it."""
        new = fresh_names(goal, 1)[0]
        names = {unfold(formula): name for name, formula in goal.hypotheses}
        for name, formula in goal.hypotheses:
            formula = unfold(formula)
            if formula[0] != IMPLIES:
                continue
            if formula[1] in given and formula[2] not in given:
                yield f"have {new} := {name} {names[formula[1]]}"
            while formula[0] == IMPLIES:
                formula = formula[2]
                if formula[0] in (AND, OR, IFF) and formula not in given:
                    yield f"have {new} : {render(formula, self._symbols)}"


def _closing(goal: Goal, given: frozenset) -> str | None:
    """The tactic that ends a goal at once."""
    wanted = unfold(goal.target)
    for name, formula in goal.hypotheses:
        if unfold(formula) == wanted:
            return f"exact {name}"
    return "contradiction" if is_absurd(given) else None


def _ends_in(formula: Formula, wanted: Formula) -> bool:
    while formula[0] == IMPLIES:
        formula = formula[2]
        if formula == wanted:
            return True
    return False


def _denies(formula: Formula) -> bool:
    """Whether False occurs in a formula without ¬."""
    if formula[0] == FALSE_OP:
        return True
    return any(_denies(part) for part in formula[1:] if isinstance(part, tuple))
