"""Which replies may reach the scorers of reasoning-gym that run them as Python.

In: a reply and the data set that asked. Out: whether its scorer may see it. Some
scorers give the reply to `eval`, or to SymPy's `parse_expr`, which does the same: a
reply such as `__import__("os").system("...")` would be carried out, and one such as
`9**9**9**9` would never end. Everything is decided on the reply's syntax; nothing of it
is run here.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

# No answer of a data set at its hardest is as long.
MAX_CHARS = 20_000
# No formula that answers a question is as long.
MAX_FORMULA_CHARS = 300
# Largest exponent, and how deep powers and functions may be in each other: beyond that
# SymPy takes longer than a step may take.
MAX_EXPONENT, MAX_DEPTH = 99, 3
# Of a proposition, and of a cube or cars: more take as long.
MAX_OPERATORS, MAX_MOVES = 8, 1_000
# Functions that the answers of integrals have.
# fmt: off
_FUNCTIONS = frozenset((
    "Abs", "acos", "asin", "atan", "cos", "cosh", "cot", "csc", "exp", "ln", "log",
    "sec", "sin", "sinh", "sqrt", "tan", "tanh",
))
# fmt: on
# Not a name with a line below, such as `oracle_answer`, a variable of a scorer.
_WORDS = re.compile(r"(?:[^\W_]|[\s-])*")
_HUGE = re.compile(r"[eE][+-]?[\d_,]{4,}")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.UAdd, ast.USub)


def is_scorable(reply: str, data_set: str, item: Mapping[str, Any]) -> bool:
    """Whether a reply may reach the scorer of an item.

    Args:
      reply: without blanks around it.
      data_set: that the item is from.
      item: what the data set made, with its answer.
    """
    check = _CHECKS.get(data_set)
    return len(reply) <= MAX_CHARS and (check is None or check(reply, item))


def is_harmless_literal(reply: str, item: Mapping[str, Any]) -> bool:
    """Whether `eval` of a reply gives what it says, or does nothing.

    That is so of a literal, such as a list of numbers; of words, which are no more than
    names to it; of what is no Python; and of the item's answer, which the scorers
    compare before they run it.
    """
    if reply == item["answer"] or _WORDS.fullmatch(reply):
        return True
    try:
        tree = ast.parse(reply, mode="eval")
    except (SyntaxError, ValueError):
        return True
    except (MemoryError, RecursionError):
        return False
    try:
        ast.literal_eval(tree)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def is_not_nan(reply: str, item: Mapping[str, Any]) -> bool:
    """Whether no part of a reply is `nan` or `inf`: the scorer finds them near all."""
    del item
    return not re.search("nan|inf", reply, re.IGNORECASE)


def is_finite_list(reply: str, item: Mapping[str, Any]) -> bool:
    """Whether a list is of finite numbers: not-a-number is near all to the scorer."""
    del item
    try:
        values = json.loads(reply.replace("'", '"'))
    except (ValueError, RecursionError):
        return True
    try:
        return not isinstance(values, list) or all(
            map(math.isfinite, map(float, values))
        )
    except (TypeError, ValueError, OverflowError):
        return False


def is_proposition(reply: str, item: Mapping[str, Any]) -> bool:
    """Whether a reply is short and has few operators.

    The scorer tries all values of its variables, which any text between operators is.
    """
    del item
    num_operators = len(re.findall("[∧∨→↔]", reply))
    return len(reply) <= MAX_FORMULA_CHARS and num_operators <= MAX_OPERATORS


def is_few_moves(reply: str, item: Mapping[str, Any]) -> bool:
    """Whether a reply has few moves, of a cube or of cars.

    A number repeats a move: R3 is R R R, and A+3 moves a car three times.
    """
    del item
    numbers = re.findall(r"\d+", reply)
    # Longer numbers may be too long for `int`.
    if any(len(number) > 3 for number in numbers):
        return False
    return len(reply.split()) + sum(map(int, numbers)) <= MAX_MOVES


def is_formula(reply: str, item: Mapping[str, Any]) -> bool:
    """Whether a reply is a formula of sums, products and small powers.

    It may have numbers, single letters, the names that are in the item's answer, and
    elementary functions.
    """
    if len(reply) > MAX_FORMULA_CHARS or _HUGE.search(reply):
        return False
    try:
        tree = ast.parse(reply, mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    names = set(re.findall(r"[A-Za-z_]\w*", str(item["answer"])))
    return _is_formula(tree, names, MAX_DEPTH)


def _is_formula(node: ast.AST, names: set[str], depth: int) -> bool:
    """Whether a part of a formula is one, with powers and functions `depth` deep."""
    match node:
        case ast.Constant(value):
            # True and False are integers to Python.
            return type(value) in (int, float)
        case ast.Name(name):
            return len(name) == 1 or name in names
        case ast.UnaryOp(operator, part):
            return isinstance(operator, _OPERATORS) and _is_formula(part, names, depth)
        case ast.BinOp(base, ast.Pow(), exponent):
            parts = (base, exponent)
            return (
                depth > 0
                and _is_small(exponent)
                and all(_is_formula(part, names, depth - 1) for part in parts)
            )
        case ast.BinOp(left, operator, right):
            return isinstance(operator, _OPERATORS) and all(
                _is_formula(part, names, depth) for part in (left, right)
            )
        case ast.Call(ast.Name(name), [part], []):
            return (
                depth > 0 and name in _FUNCTIONS and _is_formula(part, names, depth - 1)
            )
    return False


def _is_small(exponent: ast.AST) -> bool:
    """Whether the numbers of an exponent multiply to no more than `MAX_EXPONENT`."""
    product = 1.0
    for part in ast.walk(exponent):
        if isinstance(part, ast.Constant) and isinstance(part.value, int | float):
            product *= max(abs(part.value), 1)
    return product <= MAX_EXPONENT


# Data set -> what its scorer may see; the scorers of all others compare, count, or read
# JSON.
_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "binary_matrix": is_harmless_literal,
    "n_queens": is_harmless_literal,
    "number_sorting": is_finite_list,
    "spiral_matrix": is_harmless_literal,
    "string_insertion": is_harmless_literal,
    "complex_arithmetic": is_not_nan,
    "countdown": is_formula,
    "intermediate_integration": is_formula,
    "polynomial_multiplication": is_formula,
    "propositional_logic": is_proposition,
    "rubiks_cube": is_few_moves,
    "rush_hour": is_few_moves,
    "simple_integration": is_formula,
}
