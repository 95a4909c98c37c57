"""No reply that a scorer would run as Python, or not finish with, reaches it."""

import pytest

from ragen_jax.host_games.adapters.reasoning_gym_replies import MAX_CHARS, is_scorable

EVALUATED = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
PARSED = (
    "countdown",
    "intermediate_integration",
    "polynomial_multiplication",
    "simple_integration",
)
CODE = (
    "__import__('os').system('true')",
    "open('file', 'w')",
    "exec(chr(112))",
    "print(1)",
    "().__class__.__bases__",
    "[x for x in (1, 2)]",
    "[0]*10**10",
    "9**9**9**9",
    "lambda: 0",
    "(x := 3)",
    "f'{open(1)}'",
    "exit()",
)


@pytest.mark.parametrize("data_set", [*EVALUATED, *PARSED])
@pytest.mark.parametrize("reply", CODE)
def test_code_is_refused(data_set, reply):
    assert not is_scorable(reply, data_set, {"answer": "x"})
    assert is_scorable(reply, "chain_sum", {"answer": "x"})


@pytest.mark.parametrize("data_set", EVALUATED)
@pytest.mark.parametrize(
    "reply",
    [
        "ABCDE",
        "0 -1 2\n3 4 5",
        "[[1, 2], [3, 4]]",
        "['A', 'B']",
        "(1, 2)",
        "It is: A!",
        "\x00",
    ],
)
def test_words_and_literals_are_scored(data_set, reply):
    assert is_scorable(reply, data_set, {"answer": "A"})


def test_the_answer_itself_is_scored():
    assert is_scorable("a.b", "n_queens", {"answer": "a.b"})
    assert not is_scorable("a.b", "n_queens", {"answer": "a"})


@pytest.mark.parametrize("data_set", PARSED)
@pytest.mark.parametrize(
    "reply",
    ["(3+4)*2 - 6/3", "2*x**3 + C", "exp(sin(2*y))**2/3", "-x**(-1/2)", "0.5*z**99"],
)
def test_formulas_are_scored(data_set, reply):
    assert is_scorable(reply, data_set, {"answer": "x"})


@pytest.mark.parametrize("data_set", PARSED)
@pytest.mark.parametrize(
    "reply",
    [
        "x**100",
        "x**(50*2)",
        "x**1e999999999",
        "1e999999999",
        "sin(cos(sin(cos(x))))",
        "(((x**2)**2)**2)**2",
        "+".join("x" * 200),
        "x.y",
        "sin",
        "True",
        "'x'",
        "x//2",
        "x@y",
        "sin(x, y)",
        "sin(x=1)",
        "foo(x)",
        "price*2",
        "2x",
        "(" * 250,
        "\x00",
    ],
)
def test_other_formulas_are_refused(data_set, reply):
    assert not is_scorable(reply, data_set, {"answer": "x"})


def test_names_of_the_answer_may_be_used():
    assert is_scorable("price*2", "simple_integration", {"answer": "price**2"})


@pytest.mark.parametrize(
    ("data_set", "good", "bad"),
    [
        ("complex_arithmetic", "3.0 - 4.5i", "nan"),
        ("complex_arithmetic", "0", "-Infi"),
        ("propositional_logic", "¬(P ∧ Q) → R", "P ∧ Q" * 9),
        ("propositional_logic", "P", "(" * 301),
        ("number_sorting", "['1', '2.5']", '["NaN", "\\u006ean"]'),
        ("number_sorting", "no list", "[1, NaN]"),
        ("number_sorting", "{}", '["1e999"]'),
        ("string_insertion", "ABCD", "oracle_answer"),
        ("rubiks_cube", "R U2 R' U'", "R9999"),
        ("rubiks_cube", "R U " * 500, "R U " * 501),
        ("rush_hour", "A+2 B-1", "A+600 A-600"),
        ("rush_hour", "A+9", "A+" + "9" * 5000),
        ("chain_sum", "9" * MAX_CHARS, "9" * (MAX_CHARS + 1)),
    ],
)
def test_replies_that_scorers_mistake_or_never_finish(data_set, good, bad):
    assert is_scorable(good, data_set, {"answer": "x"})
    assert not is_scorable(bad, data_set, {"answer": "x"})
