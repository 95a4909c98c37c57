"""Formulas of propositional logic, written as Lean writes them.

In: text in Lean's symbols or in ASCII. Out: formulas, their text, and the form of a
problem that renaming its atoms does not change. Does not know what a proof is.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

# A formula is ("atom", name), ("false",), ("not", a) or (connective, a, b).
Formula = tuple

ATOM, FALSE_OP, NOT, AND, OR, IMPLIES, IFF = (
    "atom",
    "false",
    "not",
    "and",
    "or",
    "implies",
    "iff",
)
FALSE: Formula = (FALSE_OP,)
ATOMS = ("p", "q", "r", "s")

SYMBOLS = {NOT: "¬", AND: "∧", OR: "∨", IMPLIES: "→", IFF: "↔"}
ASCII_SYMBOLS = {NOT: "~", AND: "/\\", OR: "\\/", IMPLIES: "->", IFF: "<->"}
TURNSTILE, ASCII_TURNSTILE = "⊢", "|-"

# How tightly a connective binds, and the least that its two sides must: Lean's `infixr`
# for ∧, ∨ and →, and `infix` for ↔ (Init/Prelude.lean and Init/Core.lean of Lean 4).
BINDING = {
    IFF: (20, 21, 21),
    IMPLIES: (25, 26, 25),
    OR: (30, 31, 30),
    AND: (35, 36, 35),
}
NOT_BINDING = 40

# Brackets and negations inside one another; deeper text would exhaust Python's stack.
MAX_NESTING = 40

_TOKEN = re.compile(
    r"\s*(?:(?P<iff><->|↔)|(?P<implies>->|→)|(?P<and>/\\|∧)|(?P<or>\\/|∨)"
    r"|(?P<not>~|¬)|(?P<open>\()|(?P<close>\))|(?P<word>[A-Za-z]+)|(?P<bad>\S))"
)


class FormulaError(ValueError):
    """Text that is not a formula; the message says why."""


def atom(name: str) -> Formula:
    return (ATOM, name)


def render(formula: Formula, symbols: dict[str, str] = SYMBOLS) -> str:
    """A formula as text, with no more brackets than reading it back needs.

    Args:
      formula: what is written.
      symbols: `SYMBOLS` or `ASCII_SYMBOLS`.
    """
    return _render(formula, 0, symbols)


def _render(formula: Formula, least: int, symbols: dict[str, str]) -> str:
    op = formula[0]
    if op == ATOM:
        return formula[1]
    if op == FALSE_OP:
        return "False"
    if op == NOT:
        return symbols[NOT] + _render(formula[1], NOT_BINDING, symbols)
    binding, left, right = BINDING[op]
    text = (
        f"{_render(formula[1], left, symbols)} {symbols[op]} "
        f"{_render(formula[2], right, symbols)}"
    )
    return f"({text})" if binding < least else text


def parse(text: str, atoms: Iterable[str] = ATOMS) -> Formula:
    """The formula that a text writes, in either spelling.

    Args:
      text: for example `p /\\ (q → ~r)`.
      atoms: names that may occur.

    Raises:
      FormulaError: the text is not a formula.
    """
    tokens = [(match.lastgroup, match[match.lastgroup]) for match in _matches(text)]
    formula, rest = _parse(tokens, 0, 0, 0, frozenset(atoms))
    if rest < len(tokens):
        raise FormulaError(f"unexpected '{tokens[rest][1]}'")
    return formula


def _matches(text: str) -> Iterable[re.Match]:
    # `finditer` skips what it cannot match: only blanks at the end, as `bad` takes the
    # rest.
    return _TOKEN.finditer(text)


def _parse(
    tokens: Sequence[tuple], start: int, least: int, depth: int, atoms: frozenset
) -> tuple[Formula, int]:
    """Precedence climbing: the formula from token `start`, and the token after it."""
    if depth > MAX_NESTING:
        raise FormulaError(f"more than {MAX_NESTING} brackets inside one another")
    if start >= len(tokens):
        raise FormulaError("a formula is missing at the end")
    kind, text = tokens[start]
    if kind == "not":
        inner, here = _parse(tokens, start + 1, NOT_BINDING, depth + 1, atoms)
        formula = (NOT, inner)
    elif kind == "open":
        formula, here = _parse(tokens, start + 1, 0, depth + 1, atoms)
        if here >= len(tokens) or tokens[here][0] != "close":
            raise FormulaError("')' is missing")
        here += 1
    elif kind == "word" and (text == "False" or text in atoms):
        formula, here = (FALSE if text == "False" else atom(text)), start + 1
    else:
        raise FormulaError(f"unexpected '{text}'")
    while here < len(tokens) and tokens[here][0] in BINDING:
        op = tokens[here][0]
        binding, _, right = BINDING[op]
        if binding < least:
            break
        second, here = _parse(tokens, here + 1, right, depth + 1, atoms)
        formula = (op, formula, second)
        if op == IFF and here < len(tokens) and tokens[here][0] == IFF:
            raise FormulaError("'a ↔ b ↔ c' needs brackets")
    return formula, here


def unfold(formula: Formula) -> Formula:
    """A formula without ¬: `¬a` is `a → False`, in Lean by definition."""
    op = formula[0]
    if op in (ATOM, FALSE_OP):
        return formula
    if op == NOT:
        return (IMPLIES, unfold(formula[1]), FALSE)
    return (op, unfold(formula[1]), unfold(formula[2]))


def atoms_of(formula: Formula) -> tuple[str, ...]:
    """Names of a formula's atoms in the order in which they first occur."""
    if formula[0] == ATOM:
        return (formula[1],)
    names: dict[str, None] = {}
    for part in formula[1:]:
        names.update(dict.fromkeys(atoms_of(part)))
    return tuple(names)


def depth_of(formula: Formula) -> int:
    """Connectives inside one another: 0 for an atom."""
    if formula[0] in (ATOM, FALSE_OP):
        return 0
    return 1 + max(depth_of(part) for part in formula[1:])


def rename(formula: Formula, names: dict[str, str]) -> Formula:
    if formula[0] == ATOM:
        return (ATOM, names[formula[1]])
    return (formula[0], *(rename(part, names) for part in formula[1:]))


def canonical(hypotheses: Sequence[Formula], target: Formula) -> str:
    """One text for all problems that differ in names and order of hypotheses only.

    Args:
      hypotheses: what is given, in any order; a repetition counts once.
      target: what is to be proved.
    """
    names: dict[str, None] = {}
    for formula in (*hypotheses, target):
        names.update(dict.fromkeys(atoms_of(formula)))
    texts = []
    for order in itertools.permutations(ATOMS[: len(names)]):
        mapping = dict(zip(names, order, strict=True))
        given = sorted({render(rename(formula, mapping)) for formula in hypotheses})
        texts.append(
            f"{', '.join(given)} {TURNSTILE} {render(rename(target, mapping))}"
        )
    return min(texts)
