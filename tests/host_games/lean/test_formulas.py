"""Formulas, terms and tactics of propositional logic."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_jax.host_games.lean.formulas import (
    AND,
    ASCII_SYMBOLS,
    FALSE,
    IFF,
    IMPLIES,
    NOT,
    OR,
    SYMBOLS,
    FormulaError,
    atom,
    atoms_of,
    canonical,
    parse,
    rename,
    render,
)
from ragen_jax.host_games.lean.tactics import (
    Goal,
    TacticError,
    TacticSyntaxError,
    parse_tactic,
    render_goal,
    run_tactic,
)

P, Q, R = atom("p"), atom("q"), atom("r")

FORMULAS = st.recursive(
    st.sampled_from([P, Q, R, FALSE]),
    lambda inner: st.one_of(
        st.tuples(st.just(NOT), inner),
        st.tuples(st.sampled_from([AND, OR, IMPLIES, IFF]), inner, inner),
    ),
    max_leaves=12,
)


@given(FORMULAS, st.sampled_from([SYMBOLS, ASCII_SYMBOLS]))
def test_text_is_read_back(formula, symbols):
    assert parse(render(formula, symbols)) == formula


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("p → q → r", (IMPLIES, P, (IMPLIES, Q, R))),
        ("p ∧ q ∧ r", (AND, P, (AND, Q, R))),
        ("p ∨ q ∧ r", (OR, P, (AND, Q, R))),
        ("~p /\\ q", (AND, (NOT, P), Q)),
        ("p <-> q -> r", (IFF, P, (IMPLIES, Q, R))),
        ("p ∨ q → False", (IMPLIES, (OR, P, Q), FALSE)),
        ("¬¬p", (NOT, (NOT, P))),
        ("((p))", P),
    ],
)
def test_lean_binds_so(text, formula):
    assert parse(text) == formula


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "missing at the end"),
        ("p q", "unexpected 'q'"),
        ("(p", r"'\)' is missing"),
        ("p)", r"unexpected '\)'"),
        ("p <-> q <-> r", "needs brackets"),
        ("t", "unexpected 't'"),
        ("p ∧", "missing at the end"),
        ("(" * 100 + "p" + ")" * 100, "more than 40 brackets"),
        ("~" * 1000 + "p", "more than 40 brackets"),
        ("p->" * 1000 + "p", "more than 40 brackets"),
    ],
)
def test_what_is_no_formula(text, problem):
    with pytest.raises(FormulaError, match=problem):
        parse(text)


@given(st.lists(FORMULAS, max_size=3), FORMULAS, st.permutations(["p", "q", "r"]))
def test_canonical_form_forgets_names_and_order(hypotheses, target, order):
    mapping = dict(zip(["p", "q", "r"], order, strict=True))
    renamed = [rename(formula, mapping) for formula in reversed(hypotheses)]
    expected = canonical(hypotheses, target)
    assert canonical(renamed, rename(target, mapping)) == expected


def test_canonical_form_tells_problems_apart():
    problems = [
        ([P], P),
        ([P], Q),
        ([(IMPLIES, P, Q)], P),
        ([(IMPLIES, P, Q)], Q),
        ([(AND, P, Q)], P),
        ([(AND, P, Q)], Q),
    ]
    assert len({canonical(*problem) for problem in problems}) == len(problems)


def test_atoms_in_order():
    assert atoms_of(parse("(q → p) ∧ ¬q")) == ("q", "p")


def goal(target, **hypotheses):
    named = tuple((name, parse(text)) for name, text in hypotheses.items())
    return Goal("", named, parse(target))


def play(start, *tactics):
    goals = (start,)
    for text in tactics:
        goals = run_tactic(goals, parse_tactic(text))
    return [render_goal(left, "pqr").split("Prop\n", 1)[1] for left in goals]


@pytest.mark.parametrize(
    ("start", "tactics", "left"),
    [
        (goal("p → q"), ["intro h"], ["h : p\n⊢ q"]),
        (goal("p → q → p"), ["intro a b"], ["a : p\nb : q\n⊢ p"]),
        (goal("p → q → p"), ["intro", "intro"], ["h1 : p\nh2 : q\n⊢ p"]),
        (goal("¬p"), ["intro h"], ["h : p\n⊢ False"]),
        (goal("p", h="p"), ["exact h"], []),
        (goal("q", f="p → q", h="p"), ["exact f h"], []),
        (goal("r", f="p → q → r", a="p", b="q"), ["exact (f a) b"], []),
        (goal("q", h="(p ∧ q) ∧ r"), ["exact h.1.right"], []),
        (goal("q", h="p ↔ q", a="p"), ["exact h.mp a"], []),
        (goal("p", h="p ↔ q", a="q"), ["exact h.2 a"], []),
        (goal("p ∧ q", a="p", b="q"), ["exact ⟨a, b⟩"], []),
        (goal("p ∨ q", b="q"), ["exact Or.inr b"], []),
        (goal("False", n="¬p", h="p"), ["exact n h"], []),
        (goal("p → False", n="¬p"), ["exact n"], []),
        (goal("¬p", n="p → False"), ["assumption"], []),
        (
            goal("r", f="p → q → r"),
            ["apply f"],
            ["f : p → q → r\n⊢ p", "f : p → q → r\n⊢ q"],
        ),
        (goal("q → r", f="p → q → r"), ["apply f"], ["f : p → q → r\n⊢ p"]),
        (goal("False", n="¬p"), ["apply n"], ["n : ¬p\n⊢ p"]),
        (goal("p", h="p"), ["apply h"], []),
        (goal("r", h="p ∧ q"), ["cases h"], ["h1 : p\nh2 : q\n⊢ r"]),
        (goal("r", h1="p ∧ q"), ["cases h1"], ["h2 : p\nh3 : q\n⊢ r"]),
        (goal("r", h="p ∨ q"), ["cases h"], ["h1 : p\n⊢ r", "h1 : q\n⊢ r"]),
        (goal("r", h="p ↔ q"), ["cases h"], ["h1 : p → q\nh2 : q → p\n⊢ r"]),
        (goal("r", h="False"), ["cases h"], []),
        (goal("r", h="p ∧ q"), ["rcases h with ⟨a, b⟩"], ["a : p\nb : q\n⊢ r"]),
        (goal("r", h="p ∨ q"), ["rcases h with a | b"], ["a : p\n⊢ r", "b : q\n⊢ r"]),
        (goal("p ∧ q"), ["constructor"], ["⊢ p", "⊢ q"]),
        (goal("p ↔ q"), ["constructor"], ["⊢ p → q", "⊢ q → p"]),
        (goal("p ∨ q"), ["left"], ["⊢ p"]),
        (goal("p ∨ q"), ["right"], ["⊢ q"]),
        (goal("p"), ["exfalso"], ["⊢ False"]),
        (goal("r", n="¬p", h="p"), ["contradiction"], []),
        (goal("r", h="False"), ["contradiction"], []),
        (goal("r"), ["have h : p → q"], ["⊢ p → q", "h : p → q\n⊢ r"]),
    ],
)
def test_tactics(start, tactics, left):
    assert play(start, *tactics) == left


def test_lines_of_have_and_cases_of_a_term():
    start = goal("r", f="p → q ∨ r", a="p")
    kept = "f : p → q ∨ r\na : p\n"
    assert play(start, "have h : q ∨ r := f a") == play(start, "have h := f a")
    assert play(start, "have h := f a") == [f"{kept}h : q ∨ r\n⊢ r"]
    assert play(start, "cases f a") == [f"{kept}h1 : q\n⊢ r", f"{kept}h1 : r\n⊢ r"]


@pytest.mark.parametrize(
    ("start", "tactic", "problem"),
    [
        (goal("p"), "exact h", "unknown identifier 'h'"),
        (goal("p", h="q"), "exact h", "type mismatch: proves q, not p"),
        (goal("p", h="q"), "apply h", "q does not end in p"),
        (goal("p", h="q"), "exact h.1", "q has no part '1'"),
        (goal("p", h="p ∧ q"), "exact h.mp", "has no part 'mp'"),
        (goal("p", h="q"), "exact h h", "q takes no argument"),
        (goal("p", f="q → p", h="r"), "exact f h", "proves r, not q"),
        (goal("p"), "intro h", "intro needs → or ¬"),
        (goal("p → q", h="r"), "intro h", "the name 'h' is taken"),
        (goal("p → q"), "intro a a", "intro needs"),
        (goal("p → p → q"), "intro a a", "the name 'a' is taken"),
        (goal("p", h="p → q"), "cases h", "cases needs"),
        (goal("p", h="p ∧ q"), "rcases h with a | b", "does not fit"),
        (goal("p", h="p ∨ q"), "rcases h with ⟨a, b⟩", "does not fit"),
        (goal("p", h="p ∧ q"), "rcases h with ⟨a, a⟩", "the name 'a' is taken"),
        (goal("p → q"), "constructor", "constructor needs"),
        (goal("p ∧ q"), "left", "left needs ∨"),
        (goal("p ∧ q"), "exact Or.inl h", "Or.inl does not prove"),
        (goal("p ∨ q"), "exact ⟨h, h⟩", "a pair does not prove"),
        (goal("p", h="q"), "have a := ⟨h, h⟩", "is not known"),
        (goal("p", h="q"), "assumption", "no hypothesis is the goal"),
        (goal("p", h="q", n="¬r"), "contradiction", "no hypothesis is False"),
        (goal("p", h="q"), "have a : p := h", "proves q, not p"),
        (goal("p", h="q"), "have h := h", "the name 'h' is taken"),
    ],
)
def test_tactics_that_fail(start, tactic, problem):
    with pytest.raises(TacticError, match=problem):
        play(start, tactic)


def test_no_goals():
    with pytest.raises(TacticError, match="no goals"):
        play(goal("p", h="p"), "exact h", "exact h")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sorry",
        "simp",
        "Intro h",
        "intro H",
        "intro p",
        "intro exact",
        "intro with",
        "intro h;exact h",
        "intro a_name_that_is_long",
        "left h",
        "exact",
        "exact h.3",
        "exact (h",
        "exact h)",
        "exact ⟨h⟩",
        "exact h.1x",
        "exact fun x => x",
        "exact " + "(" * 100 + "h" + ")" * 100,
        "rcases h",
        "rcases h with a",
        "have h",
        "have : p",
        "have h : t",
        "have h :=",
    ],
)
def test_what_is_no_tactic(text):
    with pytest.raises(TacticSyntaxError):
        parse_tactic(text)


@given(st.text(max_size=200) | st.text(alphabet="hpq()⟨⟩,.12 :=→∧∨¬↔|~", max_size=200))
def test_any_text_is_a_tactic_or_one_of_two_errors(text):
    verbs = ("", "intro ", "exact ", "apply ", "cases ", "rcases ", "have ", "have h :")
    for verb in verbs:
        try:
            tactic = parse_tactic(verb + text)
        except TacticSyntaxError:
            continue
        with contextlib.suppress(TacticError):
            run_tactic((goal("p ∧ q", h="p → q", h1="p ∨ q"),), tactic)


def test_goals_read_as_leans():
    (mp, mpr) = run_tactic((goal("p ↔ q", h="r"),), parse_tactic("constructor"))
    assert render_goal(mp, "pqr") == "case mp\np q r : Prop\nh : r\n⊢ p → q"
    (inner,) = run_tactic((mpr,), parse_tactic("intro h2"))
    assert render_goal(inner, "pqr").startswith("case mpr\n")
