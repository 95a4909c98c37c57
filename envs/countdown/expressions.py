"""Arithmetic expressions over a few numbers, each used once: numbered, valued, read.

In: the index of an expression, or a text, and the numbers. Out: exact values, indices,
and how an expression is written. Knows no game.

An expression over `n` numbers is a tree, an order of the numbers and `n - 1` operators
in the order they are written; its index is

    (tree * n! + order) * 4**(n - 1) + operators

with orders in lexicographic order and operators as digits to the base of 4, the first
one leading. That makes 192 expressions over 3 numbers and 7,680 over 4.

Values are pairs of int32, numerator over denominator, never reduced: with four numbers
up to `LARGEST_NUMBER` no entry exceeds 3 * 99**4 = 288,178,803 in size. A denominator
of 0 stands for "no value": it comes from a division by 0, and every operation keeps it.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

OPERATORS = "+-*/"
LARGEST_NUMBER = 99
# Every tree as a list of places: the operator there combines its two neighbours, then
# one of the operators left does, and so on. With four numbers a b c d:
# ((a b) c) d, (a (b c)) d, (a b) (c d), a ((b c) d), a (b (c d)).
TREES = {
    3: ((0, 0), (1, 0)),
    4: ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0)),
}
# In (a b) (c d) either product may come first.
_SAME_TREE = {(2, 0, 0): (0, 1, 0)}
# Numbers of three or more digits are read as this one, which a level never has.
_TOO_LARGE = 10 * (LARGEST_NUMBER + 1) - 1

# A value as numerator and denominator.
Fraction = tuple[Int[Array, ""], Int[Array, ""]]


def num_expressions(num_numbers: int) -> int:
    """Number of expressions over `num_numbers` numbers."""
    trees, orders = len(TREES[num_numbers]), math.factorial(num_numbers)
    return trees * orders * _num_signs(num_numbers)


def evaluate(index: Int[Array, ""], numbers: Int[Array, " n"]) -> Fraction:
    """Value of an expression: numerator and denominator, which is at least 0.

    Args:
      index: of the expression.
      numbers: from 1 to `LARGEST_NUMBER`.
    """
    tree, ordered, operators = _parts(index, numbers)
    values = [(number, jnp.ones_like(number)) for number in ordered]
    for order in zip(*TREES[numbers.shape[0]], strict=True):
        place = _entry(order, tree)
        left, right = _pick(values, place)[0], _pick(values[1:], place)[0]
        operator, operators = _pick(operators, place)
        result = _combine(left, right, operator)
        values = [
            _where(place == i, result, _where(place < i, values[i + 1], values[i]))
            for i in range(len(values) - 1)
        ]
    numerator, denominator = values[0]
    return jnp.sign(denominator) * numerator, jnp.abs(denominator)


def evaluate_all(numbers: Int[Array, " n"]) -> tuple[Int[Array, " E"], Int[Array, "E"]]:
    """Values of all expressions over some numbers, by index."""
    indices = jnp.arange(num_expressions(numbers.shape[0]), dtype=jnp.int32)
    return jax.vmap(evaluate, in_axes=(0, None))(indices, numbers)


def first_step(
    index: Int[Array, ""], numbers: Int[Array, " n"]
) -> tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """Number, operator and number of the first operation of an expression."""
    tree, ordered, operators = _parts(index, numbers)
    place = _entry([order[0] for order in TREES[numbers.shape[0]]], tree)
    left, right = _pick(ordered, place)[0], _pick(ordered[1:], place)[0]
    return left, _pick(operators, place)[0], right


class _Reading(NamedTuple):
    """State of the reader. Numbers and operators fill up from the left."""

    is_fine: Array
    follows_operand: Array
    follows_digit: Array
    depth: Array
    count: Array
    numbers: Array
    operators: Array
    priorities: Array


def read_expression(
    text: UInt8[Array, " bytes"], size: Int[Array, ""], numbers: Int[Array, " n"]
) -> Int[Array, ""]:
    """Index of the expression in a text; -1 if the text is not one.

        sum     = product, then any number of ("+" or "-") and a product
        product = operand, then any number of ("*" or "/") and an operand
        operand = number, or "(" sum ")"
        number  = decimal digits, the first of them not 0

    Blanks and tabs may stand between these, and nothing else anywhere. The numbers in
    the text must be those given, in any order. Operators of a kind bind to the left.
    With equal numbers, the index is the lowest that fits.

    Args:
      text: bytes; those from `size` on do not count.
      size: length of the text.
      numbers: to be used, from 1 to `LARGEST_NUMBER`.

    Operators in deeper parentheses come first, then `*` and `/` before `+` and `-`,
    then those further left: that order alone makes the tree, so nothing is stacked.
    """
    n = numbers.shape[0]
    no, zero = jnp.bool_(False), jnp.int32(0)
    blank = _Reading(
        jnp.bool_(True), no, no, zero, zero, *(jnp.zeros(n, jnp.int32),) * 3
    )
    is_inside = jnp.arange(text.shape[0], dtype=jnp.int32) < size
    codes = jnp.where(is_inside, text.astype(jnp.int32), ord(" "))
    read = jax.lax.scan(lambda r, code: (_read_byte(r, code), None), blank, codes)[0]
    orders = list(itertools.permutations(range(n)))
    fits = jnp.stack(
        [jnp.all(numbers[np.array(order)] == read.numbers) for order in orders]
    )
    # The text ends after an operand, outside all parentheses.
    is_fine = read.is_fine & read.follows_operand & (read.depth == 0)
    is_fine &= (read.count == n) & jnp.any(fits)
    order = jnp.argmax(fits).astype(jnp.int32)
    operators = functools.reduce(
        lambda x, i: 4 * x + read.operators[i], range(n - 1), 0
    )
    tree = _tree_of([read.priorities[i] for i in range(n - 1)])
    index = (tree * len(orders) + order) * _num_signs(n) + operators
    return jnp.where(is_fine, index, -1).astype(jnp.int32)


def _read_byte(read: _Reading, code: Int[Array, ""]) -> _Reading:
    """The state of the reader after one more byte."""
    is_digit = (code >= ord("0")) & (code <= ord("9"))
    is_open, is_close = code == ord("("), code == ord(")")
    operator = _place(code, [ord(c) for c in OPERATORS])
    is_operator, is_blank = operator >= 0, _place(code, [ord(" "), ord("\t")]) >= 0
    begins = is_digit & ~read.follows_digit
    is_known = is_digit | is_open | is_close | is_operator | is_blank
    is_misplaced = jnp.where(
        read.follows_operand, begins | is_open, is_operator | is_close
    )
    # A number must not begin with 0, nor a parenthesis close before it was opened.
    depth = read.depth + is_open.astype(jnp.int32) - is_close.astype(jnp.int32)
    is_wrong = ~is_known | is_misplaced | (begins & (code == ord("0"))) | (depth < 0)
    count = read.count + begins.astype(jnp.int32)
    is_current = jnp.arange(read.numbers.shape[0]) == count - 1
    # Capped, or a long row of digits would overflow.
    value = jnp.minimum(10 * read.numbers + code - ord("0"), _TOO_LARGE)
    priority = 2 * depth + (operator >= OPERATORS.index("*")).astype(jnp.int32)
    return _Reading(
        is_fine=read.is_fine & ~is_wrong,
        follows_operand=jnp.where(is_blank, read.follows_operand, is_digit | is_close),
        follows_digit=is_digit,
        depth=depth,
        count=count,
        numbers=jnp.where(is_current & is_digit, value, read.numbers),
        operators=jnp.where(is_current & is_operator, operator, read.operators),
        priorities=jnp.where(is_current & is_operator, priority, read.priorities),
    )


def _tree_of(priorities: list[Int[Array, ""]]) -> Int[Array, ""]:
    """The tree that applies operators of higher priority first, equal ones leftmost."""
    trees = TREES[len(priorities) + 1]
    orders: list = []
    while priorities:
        # `argmax` takes the first of several: operators of a kind bind to the left.
        place = jnp.argmax(jnp.stack(priorities)).astype(jnp.int32)
        orders.append(place)
        _, priorities = _pick(priorities, place)
    tree = jnp.int32(0)
    for i, places in [*enumerate(trees), *_twins(trees)]:
        is_it = functools.reduce(
            jnp.logical_and, (a == b for a, b in zip(orders, places, strict=True))
        )
        tree = jnp.where(is_it, i, tree)
    return tree


def _twins(trees) -> list[tuple[int, tuple[int, ...]]]:
    return [(trees.index(b), a) for a, b in _SAME_TREE.items() if b in trees]


@functools.cache
def writing(num_numbers: int) -> tuple[tuple[tuple[str, ...], ...], np.ndarray]:
    """How expressions are written, with the fewest parentheses that keep their values.

    Returns:
      The texts that can stand at each of the `n + 1` places before, between and after
      the numbers; and for every tree and operators the index of the text at each place,
      int32[trees, 4**(n - 1), n + 1].
    """
    written = [
        [
            _write(tree, [OPERATORS[digit] for digit in digits]).split("#")
            for digits in itertools.product(range(4), repeat=num_numbers - 1)
        ]
        for tree in TREES[num_numbers]
    ]
    table = np.array(written)
    texts = tuple(tuple(np.unique(x).tolist()) for x in np.moveaxis(table, 2, 0))
    places = [np.searchsorted(t, table[:, :, i]) for i, t in enumerate(texts)]
    return texts, np.stack(places, axis=2).astype(np.int32)


def written_fields(
    index: Int[Array, ""], numbers: Int[Array, " n"]
) -> tuple[Int[Array, " places"], Int[Array, " n"]]:
    """Indices of the texts around the numbers, see `writing`, and the numbers."""
    n = numbers.shape[0]
    table = jnp.asarray(writing(n)[1])
    index = jnp.asarray(index, jnp.int32)
    tree = index // (math.factorial(n) * _num_signs(n))
    ordered = _parts(index, numbers)[1]
    return table[tree, index % _num_signs(n)], jnp.stack(ordered)


def _write(tree: tuple[int, ...], operators: list[str]) -> str:
    """An expression with `#` for every number."""
    # Every part is its text and the operator that it applies last.
    parts = [("#", "")] * (len(operators) + 1)
    operators = list(operators)
    for place in tree:
        operator = operators.pop(place)
        (left, on_left), (right, on_right) = parts[place : place + 2]
        if operator in "*/" and on_left in ("+", "-"):
            left = f"({left})"
        # a+(b-c) is a+b-c, and a*(b/c) is a*b/c.
        loose = {"+": (), "-": "+-", "*": "+-", "/": "+-*/"}[operator]
        if on_right and on_right in loose:
            right = f"({right})"
        parts[place : place + 2] = [(f"{left}{operator}{right}", operator)]
    return parts[0][0]


def _parts(index, numbers) -> tuple[Array, list[Array], list[Array]]:
    """Tree, numbers as ordered, and operators of an expression."""
    n = numbers.shape[0]
    signs = index % _num_signs(n)
    order = index // _num_signs(n) % math.factorial(n)
    operators = [signs // 4**i % 4 for i in reversed(range(n - 1))]
    ordered, rest = [], [numbers[i] for i in range(n)]
    for i in reversed(range(n)):
        number, rest = _pick(rest, order // math.factorial(i) % (i + 1))
        ordered.append(number)
    return index // (_num_signs(n) * math.factorial(n)), ordered, operators


def _combine(left: Fraction, right: Fraction, operator: Int[Array, ""]) -> Fraction:
    (a, b), (c, d) = left, right
    across, back, below = a * d, c * b, b * d
    numerator = _entry([across + back, across - back, a * c, across], operator)
    denominator = jnp.where(operator == OPERATORS.index("/"), back, below)
    # c/d without a value, d = 0: a division would swap its 0 into the numerator.
    return numerator, jnp.where(d == 0, 0, denominator)


def _pick(items: list, place: Int[Array, ""]) -> tuple:
    """The item at a place, and the others; by selections, since gathers are slow."""
    rest = [_where(place <= i, items[i + 1], items[i]) for i in range(len(items) - 1)]
    return _entry(items, place), rest


def _entry(items, place: Int[Array, ""]):
    chosen = items[0]
    for i in range(1, len(items)):
        chosen = _where(place == i, items[i], chosen)
    return chosen


def _where(condition, first, second):
    return jax.tree.map(functools.partial(jnp.where, condition), first, second)


def _place(value: Int[Array, ""], values: list[int]) -> Int[Array, ""]:
    """Index of a value among constants, -1 if it is not one of them."""
    place = jnp.int32(-1)
    for i, constant in enumerate(values):
        place = jnp.where(value == constant, i, place)
    return place


def _num_signs(num_numbers: int) -> int:
    return 4 ** (num_numbers - 1)
