"""Tactics of natural deduction over propositional goals, with Lean's names.

In: open goals and one tactic's text. Out: the goals that are left. Does not know
where goals come from and what an episode is.

Where this differs from Lean: `cases h` and a bare `intro` name what they introduce, and
the names can be used (Lean's are inaccessible; `rcases h with ⟨a, b⟩` and `intro a`
are in both); a name already taken is refused instead of shadowed; `have h : F` without
a proof opens a goal, as Mathlib's does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ragen_jax.host_games.lean.formulas import (
    AND,
    ATOMS,
    FALSE,
    IFF,
    IMPLIES,
    NOT,
    OR,
    TURNSTILE,
    Formula,
    FormulaError,
    conjuncts,
    is_absurd,
    parse,
    render,
    unfold,
)
from ragen_jax.host_games.lean.terms import (
    NAME,
    Term,
    TermError,
    TermSyntaxError,
    check,
    infer,
    parse_term,
)

# What a name must not be, besides the name of a tactic.
KEYWORDS = frozenset({"at", "by", "from", "fun", "show", "with", *ATOMS})


class Goal(NamedTuple):
    """What is to be proved, and from what.

    Attributes:
      tag: name of the case, such as `left` or `mp.inl`; empty at the beginning.
      hypotheses: names and formulas, oldest first.
      target: the formula to prove.
    """

    tag: str
    hypotheses: tuple[tuple[str, Formula], ...]
    target: Formula


Goals = tuple[Goal, ...]


class TacticSyntaxError(ValueError):
    """Text that is not a tactic."""


class TacticError(ValueError):
    """A tactic that fails on this goal."""


class Tactic(NamedTuple):
    """A tactic that has been read.

    Attributes:
      verb: its name.
      names: for what it introduces; empty: chosen automatically.
      term: that it uses; None: none.
      formula: what `have` states; None: what its term proves.
      pattern: ∧ or ∨, by the brackets or the bar of `rcases`; None: any.
    """

    verb: str
    names: tuple[str, ...] = ()
    term: Term | None = None
    formula: Formula | None = None
    pattern: str | None = None


def parse_tactic(text: str) -> Tactic:
    """The tactic that a line of text is.

    Raises:
      TacticSyntaxError: not a tactic; the message says why.
    """
    verb, _, rest = text.strip().partition(" ")
    if verb not in _TACTICS:
        raise TacticSyntaxError("unknown tactic")
    try:
        return _TACTICS[verb][0](verb, rest.strip())
    except (TermSyntaxError, FormulaError) as error:
        raise TacticSyntaxError(str(error)) from error


def _read_bare(verb: str, rest: str) -> Tactic:
    if rest:
        raise TacticSyntaxError(f"'{verb}' stands alone")
    return Tactic(verb)


def _read_names(verb: str, rest: str) -> Tactic:
    return Tactic(verb, names=tuple(_name(word) for word in rest.split()))


def _read_term(verb: str, rest: str) -> Tactic:
    return Tactic(verb, term=parse_term(rest))


def _read_rcases(verb: str, rest: str) -> Tactic:
    head, _, pattern = rest.partition(" with ")
    match = re.fullmatch(r"\s*⟨(.*),(.*)⟩\s*", pattern) or re.fullmatch(
        r"(.*)\|(.*)", pattern
    )
    if match is None:
        raise TacticSyntaxError("rcases is written 'h with ⟨a, b⟩' or 'h with a | b'")
    names = tuple(_name(word.strip()) for word in match.groups())
    op = OR if "|" in pattern else AND
    return Tactic(verb, names, parse_term(head), pattern=op)


def _read_have(verb: str, rest: str) -> Tactic:
    statement, assigned, proof = rest.partition(":=")
    name, colon, formula = statement.partition(":")
    if not (assigned or colon):
        raise TacticSyntaxError("have is written 'h : F' or 'h := term'")
    return Tactic(
        verb,
        names=(_name(name.strip()),),
        term=parse_term(proof) if assigned else None,
        formula=parse(formula) if colon else None,
    )


def _name(word: str) -> str:
    if not re.fullmatch(NAME, word) or word in KEYWORDS or word in _TACTICS:
        raise TacticSyntaxError(f"'{word[:20]}' is no name for a hypothesis")
    return word


def run_tactic(goals: Goals, tactic: Tactic) -> Goals:
    """The goals left after a tactic on the first goal.

    Args:
      goals: those open.
      tactic: see `parse_tactic`.

    Raises:
      TacticError: the tactic fails; nothing has changed.
    """
    if not goals:
        raise TacticError("no goals to be solved")
    try:
        return (*_TACTICS[tactic.verb][1](goals[0], tactic), *goals[1:])
    except TermError as error:
        raise TacticError(str(error)) from error


def fresh_names(goal: Goal, count: int) -> tuple[str, ...]:
    """The first names `h1`, `h2`, ... that no hypothesis of the goal has."""
    taken = {name for name, _ in goal.hypotheses}
    numbers = (k for k in range(1, len(taken) + count + 1) if f"h{k}" not in taken)
    return tuple(f"h{next(numbers)}" for _ in range(count))


def _child(goal: Goal, target: Formula, tag: str = "", given: tuple = ()) -> Goal:
    taken = {name for name, _ in goal.hypotheses}
    for name, _ in given:
        if name in taken:
            raise TacticError(f"the name '{name}' is taken")
        taken.add(name)
    tags = ".".join(part for part in (goal.tag, tag) if part)
    return Goal(tags, (*goal.hypotheses, *given), target)


def _intro(goal: Goal, tactic: Tactic) -> Goals:
    for name in tactic.names or fresh_names(goal, 1):
        if goal.target[0] not in (IMPLIES, NOT):
            raise TacticError(f"intro needs → or ¬, not {render(goal.target)}")
        target = FALSE if goal.target[0] == NOT else goal.target[2]
        goal = _child(goal, target, given=((name, goal.target[1]),))
    return (goal,)


def _exact(goal: Goal, tactic: Tactic) -> Goals:
    check(tactic.term, goal.target, dict(goal.hypotheses))
    return ()


def _apply(goal: Goal, tactic: Tactic) -> Goals:
    """Of all numbers of arguments left open, the least that gives the target."""
    proved = infer(tactic.term, dict(goal.hypotheses))
    wanted = unfold(goal.target)
    result, arguments = proved, []
    while unfold(result) != wanted:
        if result[0] not in (IMPLIES, NOT):
            raise TacticError(
                f"apply: {render(proved)} does not end in {render(goal.target)}"
            )
        arguments.append(result[1])
        result = FALSE if result[0] == NOT else result[2]
    return tuple(_child(goal, argument, "a") for argument in arguments)


def _cases(goal: Goal, tactic: Tactic) -> Goals:
    """∧, ↔, ∨ and False taken apart; a hypothesis is replaced by its parts."""
    formula = infer(tactic.term, dict(goal.hypotheses))
    op = formula[0]
    if op not in (AND, IFF, OR, FALSE[0]):
        raise TacticError(f"cases needs ∧, ∨, ↔ or False, not {render(formula)}")
    if op in (AND, OR) and tactic.pattern not in (None, op):
        raise TacticError(f"the pattern does not fit {render(formula)}")
    if op == FALSE[0]:
        return ()
    names = tactic.names or fresh_names(goal, 1 if op == OR else 2)
    if tactic.term[0] == "name":
        rest = tuple(pair for pair in goal.hypotheses if pair[0] != tactic.term[1])
        goal = goal._replace(hypotheses=rest)
    if op == OR:
        return (
            _child(goal, goal.target, "inl", ((names[0], formula[1]),)),
            _child(goal, goal.target, "inr", ((names[-1], formula[2]),)),
        )
    given = tuple(zip(names, conjuncts(formula), strict=True))
    return (_child(goal, goal.target, "mk" if op == IFF else "intro", given),)


def _constructor(goal: Goal, tactic: Tactic) -> Goals:
    tags = {AND: ("left", "right"), IFF: ("mp", "mpr")}.get(goal.target[0])
    if tags is None:
        raise TacticError(f"constructor needs ∧ or ↔, not {render(goal.target)}")
    sides = zip(conjuncts(goal.target), tags, strict=True)
    return tuple(_child(goal, side, tag) for side, tag in sides)


def _side(goal: Goal, tactic: Tactic) -> Goals:
    if goal.target[0] != OR:
        raise TacticError(f"{tactic.verb} needs ∨, not {render(goal.target)}")
    return (_child(goal, goal.target[1 if tactic.verb == "left" else 2], "h"),)


def _assumption(goal: Goal, tactic: Tactic) -> Goals:
    wanted = unfold(goal.target)
    if all(unfold(formula) != wanted for _, formula in goal.hypotheses):
        raise TacticError("no hypothesis is the goal")
    return ()


def _contradiction(goal: Goal, tactic: Tactic) -> Goals:
    given = {unfold(formula) for _, formula in goal.hypotheses}
    if not is_absurd(given):
        raise TacticError("no hypothesis is False and none denies another")
    return ()


def _exfalso(goal: Goal, tactic: Tactic) -> Goals:
    return (_child(goal, FALSE),)


def _have(goal: Goal, tactic: Tactic) -> Goals:
    formula = tactic.formula
    if tactic.term is not None:
        hypotheses = dict(goal.hypotheses)
        if formula is None:
            formula = infer(tactic.term, hypotheses)
        else:
            check(tactic.term, formula, hypotheses)
    rest = _child(goal, goal.target, given=((tactic.names[0], formula),))
    return (rest,) if tactic.term is not None else (_child(goal, formula), rest)


def _skip(goal: Goal, tactic: Tactic) -> Goals:
    return (goal,)


# Name -> how the rest of its line is read, and what it does to the first goal.
_TACTICS: Mapping[
    str, tuple[Callable[[str, str], Tactic], Callable[[Goal, Tactic], Goals]]
] = {
    "intro": (_read_names, _intro),
    "exact": (_read_term, _exact),
    "apply": (_read_term, _apply),
    "cases": (_read_term, _cases),
    "rcases": (_read_rcases, _cases),
    "constructor": (_read_bare, _constructor),
    "left": (_read_bare, _side),
    "right": (_read_bare, _side),
    "assumption": (_read_bare, _assumption),
    "contradiction": (_read_bare, _contradiction),
    "exfalso": (_read_bare, _exfalso),
    "have": (_read_have, _have),
    "skip": (_read_bare, _skip),
}


def render_goal(goal: Goal, atoms: Sequence[str]) -> str:
    """A goal as Lean prints it; ends without a newline.

    Args:
      goal: what is printed.
      atoms: propositions that the theorem declares.
    """
    lines = [f"case {goal.tag}"] if goal.tag else []
    lines.append(f"{' '.join(atoms)} : Prop")
    lines += [f"{name} : {render(formula)}" for name, formula in goal.hypotheses]
    return "\n".join([*lines, f"{TURNSTILE} {render(goal.target)}"])
