"""PDDL: what is read, what is possible, what changes, what is refused."""

import itertools

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.alfworld.houses import DOMAIN, TASKS, invent
from ragen_jax.host_games.alfworld.logic import Move, World
from ragen_jax.host_games.alfworld.pddl import read_domain, read_problem

HEAD = """(define (domain d) (:requirements :adl) ; a comment (
  (:types cat dog - pet stone) (:constants ROCK - stone)
  (:predicates (p ?x) (q ?x ?y) (r)) (:functions (cost) - number)
"""
PROBLEM = """(define (problem x) (:domain d) (:objects c1 c2 - cat d1 - dog) (:metric
  minimize (cost)) (:init (= (cost) 0) (P c1) (q c1 d1) (q d1 d1) (q c2 rock)
  (p rock) (not (r)) (unheard c1)) (:goal (r)))"""
OBJECTS = {"c1": "cat", "c2": "cat", "d1": "dog", "rock": "stone"}
ABOVE = {"cat": "pet", "dog": "pet", "pet": "object", "stone": "object"}
FACTS = {("p", "c1"), ("p", "rock"), ("q", "c1", "d1"), ("q", "d1", "d1")}
FACTS |= {("q", "c2", "rock")}


def read(domain, problem):
    domain = read_domain(domain)
    return World(domain, read_problem(problem, domain))


def world(actions, problem=PROBLEM):
    return read(f"{HEAD}{actions})", problem)


def action(precondition, effect="(r)", parameters="?x - pet ?y"):
    return (
        f"(:action a :parameters ({parameters}) :precondition {precondition} "
        f":effect {effect})"
    )


# --- conditions


def is_a(name, type_):
    kind = OBJECTS[name]
    while kind != type_ and kind in ABOVE:
        kind = ABOVE[kind]
    return kind == type_


def holds(condition, names):
    """The meaning of a condition, written down once more."""
    if condition == []:
        return True
    head, *rest = condition
    if head == "and":
        return all(holds(part, names) for part in rest)
    if head == "or":
        return any(holds(part, names) for part in rest)
    if head == "not":
        return not holds(rest[0], names)
    if head == "imply":
        return not holds(rest[0], names) or holds(rest[1], names)
    if head == "=":
        return names.get(rest[0], rest[0]) == names.get(rest[1], rest[1])
    if head in ("exists", "forall"):
        (variable, _, type_), body = rest
        found = [x for x in OBJECTS if is_a(x, type_)]
        values = [holds(body, names | {variable: x}) for x in found]
        return any(values) if head == "exists" else all(values)
    return (head, *(names.get(x, x) for x in rest)) in FACTS


def write(words):
    return words if isinstance(words, str) else f"({' '.join(map(write, words))})"


TERMS = st.sampled_from(["?x", "?y", "?x", "?y", "rock", "c1"])
ATOMS = st.one_of(
    st.tuples(st.just("p"), TERMS),
    st.tuples(st.just("q"), TERMS, TERMS),
    st.tuples(st.just("="), TERMS, TERMS),
    st.just(("r",)),
).map(list)
VARIABLES = st.tuples(
    st.sampled_from(["?x", "?y"]), st.just("-"), st.sampled_from([*ABOVE, "object"])
).map(list)


def grow(inner):
    some = st.lists(inner, max_size=3)
    return st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), some).map(lambda x: [x[0], *x[1]]),
        inner.map(lambda x: ["not", x]),
        st.tuples(st.just("imply"), inner, inner).map(list),
        st.tuples(st.sampled_from(["exists", "forall"]), VARIABLES, inner).map(list),
    )


@settings(deadline=None)
@given(st.recursive(ATOMS, grow, max_leaves=8), st.sampled_from([*ABOVE, "object"]))
def test_conditions_mean_what_they_say(condition, type_):
    """Any condition, against trying all objects; inner variables hide outer ones."""
    played = world(action(write(condition), parameters=f"?x - {type_} ?y"))
    expected = [
        Move("a", (x, y))
        for x, y in sorted(itertools.product(OBJECTS, OBJECTS))
        if is_a(x, type_) and holds(condition, {"?x": x, "?y": y})
    ]
    assert played.moves(played.start) == expected
    goal = PROBLEM.replace(
        "(:goal (r))", f"(:goal (exists (?x ?y) {write(condition)}))"
    )
    names = ({"?x": x, "?y": y} for x in OBJECTS for y in OBJECTS)
    is_won = any(holds(condition, chosen) for chosen in names)
    won = world(action("()"), goal)
    assert won.is_won(won.start) == is_won


def test_a_type_with_a_comma_has_no_objects():
    for text, count in (("cat", 2), ("cat,", 0)):
        played = world(action(f"(exists (?z - {text}) (= ?z ?x))", parameters="?x"))
        assert len(played.moves(played.start)) == count


# --- effects


def after(effect, *arguments, precondition="()", undone=False):
    played = world(action(precondition, effect))
    state = played.apply(played.start, Move("a", arguments))
    if undone:
        return state.undone
    return {(name, *row) for name, rows in state.facts.items() for row in rows} - {
        ("unheard", "c1")
    }


@pytest.mark.parametrize(
    ("effect", "added", "removed"),
    [
        ("(r)", {("r",)}, set()),
        ("(and (not (p ?x)) (increase (cost) 1))", set(), {("p", "c1")}),
        ("(and (p ?x) (not (p ?x)))", set(), set()),
        ("(forall (?z - cat) (p ?z))", {("p", "c2")}, set()),
        (
            "(forall (?z) (when (q ?z d1) (not (q ?z d1))))",
            set(),
            {("q", "c1", "d1"), ("q", "d1", "d1")},
        ),
        # Conditions are of the state before.
        (
            "(and (when (r) (not (r))) (when (not (r)) (r)) (when (r) (p d1)))",
            {("r",)},
            set(),
        ),
        ("()", set(), set()),
    ],
)
def test_effects(effect, added, removed):
    assert after(effect, "c1", "d1") == (FACTS | added) - removed


def test_what_was_undone_is_known():
    assert after("(not (p ?x))", "c1", "c1", undone=True) == {("p", "c1")}
    assert after("(and (not (p ?x)) (p ?x))", "c1", "c1", undone=True) == set()
    played = world(
        action("()", "(not (r))") + action("()", "(r)").replace(" a ", " b ")
    )
    off = played.apply(played.start, Move("a", ("c1", "c1")))
    on = played.apply(off, Move("b", ("c1", "c1")))
    assert (off.undone, on.undone) == ({("r",)}, set())


@pytest.mark.parametrize(
    ("precondition", "effect", "is_possible"),
    [
        # Nothing but what has to be so already: the planner drops such actions.
        ("(p c1)", "(p c1)", False),
        ("(not (r))", "(not (r))", False),
        ("(and (q ?x ?y) (q c1 d1))", "(and (not (q ?x ?y)) (q ?x ?y))", False),
        ("()", "()", False),
        ("()", "(increase (cost) 1)", False),
        # It happens to be so, but need not.
        ("()", "(p c1)", True),
        ("(p ?x)", "(and (p ?x) (r))", True),
        ("(p ?x)", "(when (r) (p ?x))", True),
    ],
)
def test_actions_that_change_nothing(precondition, effect, is_possible):
    played = world(action(precondition, effect))
    assert bool(played.moves(played.start)) == is_possible


# --- what is refused


DOMAIN_TEXT = HEAD + action("(p ?x)") + ")"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("(r))", "(r)", "brackets are not closed"),
        ("(define", ")(define", "closed that was not opened"),
        ("(define", "(" * 200, "more than 100 brackets"),
        ("(domain d)", "(problem d)", r"not of the form \(define \(domain"),
        ("(define", "(undefine", "not of the form"),
        ("(:types", "word (:types", "word stands alone in the domain"),
        ("(:types", "(:derived (r)) (:types", ":derived, which is not played"),
        ("- stone)", "- moon)", "constant rock is of the type moon"),
        ("dog - pet stone", "dog -", "a - stands between no name and type"),
        ("cat dog - pet", "- pet", "a - stands between no name and type"),
        ("cat dog - pet", "cat - (either a b)", "a name is expected"),
        ("?x - pet", "?x - moon", "parameter .x is of the type moon"),
        ("(p ?x) (q", "(p ?x) p (q", "a predicate is expected where p stands"),
        (":precondition (p ?x)", ":precondition (z ?x)", r"\(z \?x\) is not an atom"),
        (":precondition (p ?x)", ":precondition (p ?x ?y)", "is not an atom"),
        (":precondition (p ?x)", ":precondition (p ?z)", "variable .z is used"),
        (":precondition (p ?x)", ":precondition (not)", r"\(not\) is not a condition"),
        (":precondition (p ?x)", ":precondition ((p ?x))", "is not a condition"),
        (":precondition (p ?x)", ":precondition p", "a condition is expected"),
        (":precondition (p ?x)", ":precondition (p (r))", "a name is expected"),
        (":precondition (p ?x)", ":precondition (exists ?z (r))", "list of variables"),
        (
            ":precondition (p ?x)",
            ":precondition (exists (?z - moon) (r))",
            "type moon of a variable is not declared",
        ),
        (":precondition", ":condition", "parts that are not played"),
        (":effect (r)", ":effect", "is not \\(:action"),
        (":effect (r)", ":effect (r) :effect (r)", "is not \\(:action"),
        (":effect (r)", ":effect (when (r))", "a name is expected where .r. stands"),
        (":effect (r)", ":effect (p ?z)", "variable .z is used"),
        (":parameters (?x - pet ?y)", ":parameters x", "a are not in brackets"),
        ("?x - pet ?y", "?x ?x", "a parameter twice"),
        ("(:goal (r))", "", "has no :goal"),
        ("(:goal (r))", "(:goal (r) (r))", "not one condition"),
        ("(:goal (r))", "(:goal (s))", r"\(s\) is not an atom"),
        ("(:goal (r))", "(:constraints (r))", ":constraints, which is not played"),
        ("d1 - dog", "d1 - moon", "object d1 is of the type moon"),
        ("(P c1)", "(p c1 c2)", r"\(p c1 c2\) in :init has 2 arguments"),
        ("(P c1)", "(p c3)", "c3 in :init is not among the :objects"),
        ("(P c1)", "p", "a fact is expected where p stands"),
        ("(problem x)", "(domain x)", r"not of the form \(define \(problem"),
    ],
)
def test_texts_that_are_refused(old, new, words):
    assert old in DOMAIN_TEXT + PROBLEM
    problem = PROBLEM if old in DOMAIN_TEXT else PROBLEM.replace(old, new)
    with pytest.raises(ValueError, match=words):
        read(DOMAIN_TEXT.replace(old, new), problem)


@settings(deadline=None)
@given(st.data())
def test_broken_texts_are_refused_with_a_sentence(data):
    """A text with a piece taken out or put in is played or refused, nothing else."""
    texts = [DOMAIN, invent(0, TASKS, "training")["pddl_problem"]]
    which = data.draw(st.integers(0, 1))
    text = texts[which]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    put = data.draw(st.sampled_from(["", "(", ")", " - ", "?x", ";", "\x00", "é"]))
    texts[which] = text[:start] + put + text[end:]
    refusal = ""
    try:
        played = read(*texts)
    except ValueError as error:
        refusal = str(error)
        event(f"refused: {refusal[:30]}")
    else:
        # Without one of its conditions an action can be taken with all objects.
        assert len(played.moves(played.start)) < 10_000
    assert len(refusal) < 300
