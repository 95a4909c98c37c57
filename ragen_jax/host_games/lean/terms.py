"""Proof terms: what follows `exact`, `apply`, `cases` and `have ... :=`.

In: text and named hypotheses. Out: the formula that a term proves, or a sentence that
says why it proves none. Does not know goals beyond the one formula asked for.

A term is a hypothesis, an application `h1 h2`, a part `h.1`, `h.2`, `h.left`,
`h.right`, `h.mp`, `h.mpr`, a pair `⟨a, b⟩`, and `Or.inl a` or `Or.inr a`. Lean's
`fun` is not among them: `intro` does its work.
"""

import re
from collections.abc import Mapping, Sequence

from ragen_jax.host_games.lean.formulas import (
    AND,
    FALSE,
    IFF,
    IMPLIES,
    NOT,
    OR,
    Formula,
    conjuncts,
    render,
    unfold,
)

# ("name", n), ("apply", f, a), ("part", t, which), ("pair", a, b), ("inl" | "inr", a).
Term = tuple

# A hypothesis' name, as Lean's but in Latin letters and of at most 12 characters.
NAME = r"[a-z][A-Za-z0-9_'₀-₉]{0,11}"
MAX_NESTING = 40

_TOKEN = re.compile(
    rf"\s*(?:(?P<side>Or\.inl|Or\.inr)|(?P<name>{NAME})"
    r"|\.(?P<part>1|2|left|right|mpr|mp)(?![A-Za-z0-9_'])"
    r"|(?P<mark>[()⟨⟩,])|(?P<bad>\S))"
)
# Of ∧ and of ↔, which part a name stands for.
_PARTS = {
    AND: {"1": 0, "2": 1, "left": 0, "right": 1},
    IFF: {"1": 0, "2": 1, "mp": 0, "mpr": 1},
}


class TermSyntaxError(ValueError):
    """Text that is not a term."""


class TermError(ValueError):
    """A term that does not prove what it should."""


def parse_term(text: str) -> Term:
    """The term that a text writes.

    Raises:
      TermSyntaxError: the text is not a term.
    """
    matches = _TOKEN.finditer(text)
    tokens = [(match.lastgroup, match[match.lastgroup]) for match in matches]
    term, rest = _application(tokens, 0, 0)
    if rest < len(tokens):
        raise TermSyntaxError(f"unexpected '{tokens[rest][1]}'")
    return term


def _application(tokens: Sequence[tuple], start: int, depth: int) -> tuple[Term, int]:
    if depth > MAX_NESTING:
        raise TermSyntaxError(f"more than {MAX_NESTING} brackets inside one another")
    if start < len(tokens) and tokens[start][0] == "side":
        inner, here = _single(tokens, start + 1, depth)
        return (tokens[start][1][3:], inner), here
    term, here = _single(tokens, start, depth)
    while here < len(tokens) and (
        tokens[here][0] == "name" or tokens[here][1] in ("(", "⟨")
    ):
        argument, here = _single(tokens, here, depth)
        term = ("apply", term, argument)
    return term, here


def _single(tokens: Sequence[tuple], start: int, depth: int) -> tuple[Term, int]:
    """A name, a bracket or a pair, and the parts taken of it."""
    if start >= len(tokens):
        raise TermSyntaxError("a term is missing at the end")
    kind, text = tokens[start]
    if kind == "name":
        term, here = ("name", text), start + 1
    elif text == "(":
        term, here = _application(tokens, start + 1, depth + 1)
        here = _expect(tokens, here, ")")
    elif text == "⟨":
        first, here = _application(tokens, start + 1, depth + 1)
        here = _expect(tokens, here, ",")
        second, here = _application(tokens, here, depth + 1)
        here = _expect(tokens, here, "⟩")
        term = ("pair", first, second)
    else:
        raise TermSyntaxError(f"unexpected '{text}'")
    while here < len(tokens) and tokens[here][0] == "part":
        term, here = ("part", term, tokens[here][1]), here + 1
    return term, here


def _expect(tokens: Sequence[tuple], here: int, mark: str) -> int:
    if here >= len(tokens) or tokens[here][1] != mark:
        raise TermSyntaxError(f"'{mark}' is missing")
    return here + 1


def infer(term: Term, hypotheses: Mapping[str, Formula]) -> Formula:
    """The formula that a term proves.

    Raises:
      TermError: it proves none, or its formula depends on the goal (a pair).
    """
    kind = term[0]
    if kind == "name":
        if term[1] not in hypotheses:
            raise TermError(f"unknown identifier '{term[1]}'")
        return hypotheses[term[1]]
    if kind == "part":
        whole = infer(term[1], hypotheses)
        which = _PARTS.get(whole[0], {}).get(term[2])
        if which is None:
            raise TermError(f"{render(whole)} has no part '{term[2]}'")
        return conjuncts(whole)[which]
    if kind == "apply":
        function = infer(term[1], hypotheses)
        if function[0] not in (IMPLIES, NOT):
            raise TermError(f"{render(function)} takes no argument")
        check(term[2], function[1], hypotheses)
        return FALSE if function[0] == NOT else function[2]
    raise TermError("a pair or Or.inl, Or.inr stands where its formula is not known")


def check(term: Term, expected: Formula, hypotheses: Mapping[str, Formula]) -> None:
    """Nothing, if a term proves the formula; `¬a` and `a → False` are the same.

    Raises:
      TermError: it does not.
    """
    kind = term[0]
    if kind == "pair":
        if expected[0] not in (AND, IFF):
            raise TermError(f"a pair does not prove {render(expected)}")
        for part, formula in zip(term[1:], conjuncts(expected), strict=True):
            check(part, formula, hypotheses)
    elif kind in ("inl", "inr"):
        if expected[0] != OR:
            raise TermError(f"Or.{kind} does not prove {render(expected)}")
        check(term[1], expected[1 if kind == "inl" else 2], hypotheses)
    else:
        proved = infer(term, hypotheses)
        if unfold(proved) != unfold(expected):
            raise TermError(
                f"type mismatch: proves {render(proved)}, not {render(expected)}"
            )
