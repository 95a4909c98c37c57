"""Expressions as nested tuples and exact fractions; written from the rules alone."""

import fractions
import itertools
import re

TOKEN = re.compile(rb"[ \t]*(?:([1-9][0-9]*)|([-+*/()]))")


def trees(numbers):
    """All expressions over the numbers, in the order of their indices."""
    orders = list(itertools.permutations(numbers))
    signs = list(itertools.product("+-*/", repeat=len(numbers) - 1))
    cases = itertools.product(SHAPES[len(numbers)], orders, signs)
    return [shape(order, sign) for shape, order, sign in cases]


SHAPES = {
    3: (
        lambda n, s: (s[1], (s[0], n[0], n[1]), n[2]),
        lambda n, s: (s[0], n[0], (s[1], n[1], n[2])),
    ),
    4: (
        lambda n, s: (s[2], (s[1], (s[0], n[0], n[1]), n[2]), n[3]),
        lambda n, s: (s[2], (s[0], n[0], (s[1], n[1], n[2])), n[3]),
        lambda n, s: (s[1], (s[0], n[0], n[1]), (s[2], n[2], n[3])),
        lambda n, s: (s[0], n[0], (s[2], (s[1], n[1], n[2]), n[3])),
        lambda n, s: (s[0], n[0], (s[1], n[1], (s[2], n[2], n[3]))),
    ),
}


def value(tree):
    """Exact value, None after a division by 0."""
    if not isinstance(tree, tuple):
        return fractions.Fraction(tree)
    left, right = value(tree[1]), value(tree[2])
    if left is None or right is None or (tree[0] == "/" and right == 0):
        return None
    return {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left / right,
    }[tree[0]]()


def leaves(tree):
    if not isinstance(tree, tuple):
        return [tree]
    return leaves(tree[1]) + leaves(tree[2])


def outcome(tree, target):
    """1 too low, 2 too high, 3 no value, 4 the target."""
    made = value(tree)
    if made is None:
        return 3
    return 4 if made == target else 1 if made < target else 2


def index(text, numbers):
    """Index of the expression that `text`, bytes, writes over the numbers; or -1."""
    tree = parse(text)
    if tree is None or sorted(leaves(tree)) != sorted(numbers):
        return -1
    return trees(numbers).index(tree)


def parse(text):
    """The tree of a text by recursive descent, None where it is not an expression."""
    tokens, place = [], 0
    while text[place:].strip(b" \t"):
        match = TOKEN.match(text, place)
        if match is None:
            return None
        tokens.append(match[0].strip().decode())
        place = match.end()
    try:
        tree, rest = _sum([*tokens, "end"])
    except SyntaxError:
        return None
    return tree if rest == ["end"] else None


def _sum(tokens):
    return _chain(tokens, "+-", lambda rest: _chain(rest, "*/", _operand))


def _chain(tokens, operators, part):
    tree, tokens = part(tokens)
    while tokens[0] in operators:
        sign = tokens[0]
        right, tokens = part(tokens[1:])
        tree = (sign, tree, right)
    return tree, tokens


def _operand(tokens):
    if tokens[0].isdigit():
        return int(tokens[0]), tokens[1:]
    if tokens[0] != "(":
        raise SyntaxError(tokens[0])
    tree, tokens = _sum(tokens[1:])
    if tokens[0] != ")":
        raise SyntaxError(tokens[0])
    return tree, tokens[1:]


def largest_entry(tree):
    """Most that a numerator or denominator of the tree, or on the way, can be.

    Every entry is a sum of products of the numbers, with signs. All of them counted
    with a plus, it is largest where the numbers are.
    """
    if not isinstance(tree, tuple):
        return (tree, 1), max(tree, 1)
    ((a, b), on_left), ((c, d), on_right) = map(largest_entry, tree[1:])
    pairs = {
        "+": (a * d + c * b, b * d),
        "-": (a * d + c * b, b * d),
        "*": (a * c, b * d),
        "/": (a * d, c * b),
    }
    # The code works out all four before it picks one.
    most = max(on_left, on_right, *(x for pair in pairs.values() for x in pair))
    return pairs[tree[0]], most
