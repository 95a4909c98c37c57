"""Twenty built-in programming tasks: statements, tests and a solution each.

Out: `EXAMPLES`. A statement shows the first of its task's tests; expected values
were worked out by hand, not by the solution.
"""

import json

from ragen_jax.host_games.coding.tasks import Task, Test


def _program(statement: str, solution: str, *pairs: tuple[str, str]) -> Task:
    """A task on standard input and output; the first pair is its example."""
    (given, expected), *_ = pairs
    statement = f"{statement}\nExample input:\n{given}\nExample output:\n{expected}"
    tests = tuple(Test(f"{given}\n", (expected,)) for given, expected in pairs)
    return Task(statement, None, tests, solution)


def _function(
    signature: str, statement: str, body: str, *pairs: tuple[list, object]
) -> Task:
    """A task on a function; the first pair is its example."""
    name = signature.partition("(")[0]
    (arguments, result), *_ = pairs
    called = ", ".join(map(repr, arguments))
    statement = (
        f"Write the function {signature}. {statement}\n"
        f"Example: {name}({called}) is {result!r}."
    )
    tests = tuple(Test(json.dumps(given), (wanted,)) for given, wanted in pairs)
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return Task(statement, name, tests, f"def {signature}:\n{lines}")


EXAMPLES = (
    _function(
        "add_up(numbers)",
        "It returns the sum of a list of whole numbers, 0 for none.",
        "return sum(numbers)",
        ([[1, 2, 3]], 6),
        ([[]], 0),
        ([[-5, 5]], 0),
        ([[7]], 7),
        ([[10, -20, 30, -40]], -20),
    ),
    _program(
        "Read two whole numbers from one line and print the larger.",
        "print(max(map(int, input().split())))",
        ("3 8", "8"),
        ("8 3", "8"),
        ("-4 -9", "-4"),
        ("5 5", "5"),
        ("0 1000000000000", "1000000000000"),
    ),
    _function(
        "is_mirror(text)",
        "It tells whether a text reads the same backwards, as True or False.",
        "return text == text[::-1]",
        (["level"], True),
        (["ab"], False),
        ([""], True),
        (["abba"], True),
        (["Aba"], False),
    ),
    _function(
        "count_vowels(text)",
        "It counts the letters a, e, i, o and u of a text, large or small.",
        "return sum(letter in 'aeiou' for letter in text.lower())",
        (["banana"], 3),
        (["rhythm"], 0),
        (["AEIou"], 5),
        ([""], 0),
        (["Quick brown fox"], 4),
    ),
    _program(
        "Read a line and print its words in reverse order.",
        "print(*reversed(input().split()))",
        ("one two three", "three two one"),
        ("word", "word"),
        ("a b a c", "c a b a"),
        ("left right", "right left"),
        ("1 2 3 4 5", "5 4 3 2 1"),
    ),
    _function(
        "drop_repeats(values)",
        "It returns a list with each value once, in the order of their first places.",
        "return list(dict.fromkeys(values))",
        ([[3, 1, 3, 2, 1]], [3, 1, 2]),
        ([[]], []),
        ([["b", "a", "b"]], ["b", "a"]),
        ([[5, 5, 5]], [5]),
        ([[1, 2, 3]], [1, 2, 3]),
    ),
    _program(
        "Read n. For each number from 1 to n print a line: fizz for multiples of 3, "
        "buzz for multiples of 5, fizzbuzz for both, else the number.",
        "for i in range(1, int(input()) + 1):\n"
        "    print('fizz' * (i % 3 == 0) + 'buzz' * (i % 5 == 0) or i)",
        ("5", "1\n2\nfizz\n4\nbuzz"),
        ("1", "1"),
        ("3", "1\n2\nfizz"),
        (
            "15",
            "1\n2\nfizz\n4\nbuzz\nfizz\n7\n8\nfizz\nbuzz\n11\nfizz\n13\n14\nfizzbuzz",
        ),
    ),
    _function(
        "is_prime(number)",
        "It tells whether a whole number is prime, as True or False.",
        "if number < 2:\n"
        "    return False\n"
        "return all(number % d for d in range(2, int(number ** 0.5) + 1))",
        ([7], True),
        ([1], False),
        ([2], True),
        ([49], False),
        ([104729], True),
        ([0], False),
    ),
    _function(
        "count_words(text)",
        "It returns a dictionary from each word of a text, parted by blanks, to how "
        "often it is there.",
        "counts = {}\n"
        "for word in text.split():\n"
        "    counts[word] = counts.get(word, 0) + 1\n"
        "return counts",
        (["a b a"], {"a": 2, "b": 1}),
        ([""], {}),
        (["x"], {"x": 1}),
        (["to be or not to be"], {"to": 2, "be": 2, "or": 1, "not": 1}),
        (["  A  a "], {"A": 1, "a": 1}),
    ),
    _program(
        "Read n, then n lines with a whole number each. Print their mean.",
        "numbers = [int(input()) for _ in range(int(input()))]\n"
        "print(sum(numbers) / len(numbers))",
        ("2\n1\n2", "1.5"),
        ("1\n7", "7.0"),
        ("3\n1\n1\n2", "1.3333333333"),
        ("4\n-1\n1\n-2\n2", "0.0"),
        ("3\n10\n20\n40", "23.3333333333"),
    ),
    _function(
        "second_largest(numbers)",
        "It returns the second largest of the different numbers of a list, None if "
        "there is none.",
        "ordered = sorted(set(numbers))\n"
        "return ordered[-2] if len(ordered) > 1 else None",
        ([[4, 9, 9, 2]], 4),
        ([[1]], None),
        ([[5, 5]], None),
        ([[]], None),
        ([[-1, -2, -3]], -2),
    ),
    _function(
        "rotate(values, steps)",
        "It returns a list with its values moved so many places to the right, those "
        "that fall off coming in again from the left.",
        "if not values:\n"
        "    return []\n"
        "steps %= len(values)\n"
        "return values[-steps:] + values[:-steps] if steps else values",
        ([[1, 2, 3, 4], 1], [4, 1, 2, 3]),
        ([[], 3], []),
        ([[1, 2, 3], 0], [1, 2, 3]),
        ([[1, 2, 3], 3], [1, 2, 3]),
        ([[1, 2, 3], 5], [2, 3, 1]),
    ),
    _program(
        "Read a line of brackets out of ()[]. Print yes if they are balanced, else no.",
        "stack, good = [], True\n"
        "for mark in input():\n"
        "    if mark in '([':\n"
        "        stack.append(mark)\n"
        "    elif not stack or stack.pop() + mark not in ('()', '[]'):\n"
        "        good = False\n"
        "        break\n"
        "print('yes' if good and not stack else 'no')",
        ("([])", "yes"),
        ("(]", "no"),
        ("((", "no"),
        (")(", "no"),
        ("()[]([()])", "yes"),
        ("([)]", "no"),
    ),
    _function(
        "common_divisor(a, b)",
        "It returns the greatest common divisor of two positive whole numbers.",
        "while b:\n    a, b = b, a % b\nreturn a",
        ([12, 18], 6),
        ([7, 5], 1),
        ([10, 10], 10),
        ([1, 999], 1),
        ([1000000, 750000], 250000),
    ),
    _function(
        "merge(first, second)",
        "It merges two lists in ascending order into one in ascending order.",
        "return sorted(first + second)",
        ([[1, 4], [2, 3]], [1, 2, 3, 4]),
        ([[], []], []),
        ([[1], []], [1]),
        ([[2, 2], [2]], [2, 2, 2]),
        ([[-3, 8], [-5, 0, 9]], [-5, -3, 0, 8, 9]),
    ),
    _program(
        "Read a whole number that is not negative and print the sum of its digits.",
        "print(sum(map(int, input().strip())))",
        ("305", "8"),
        ("0", "0"),
        ("9", "9"),
        ("999999999999", "108"),
        ("1000", "1"),
    ),
    _function(
        "encode(text)",
        "It replaces each run of a letter by the letter and the length of the run.",
        "from itertools import groupby\n"
        "return ''.join(f'{key}{len(list(run))}' for key, run in groupby(text))",
        (["aaab"], "a3b1"),
        ([""], ""),
        (["z"], "z1"),
        (["abab"], "a1b1a1b1"),
        (["ccccccccccc"], "c11"),
    ),
    _function(
        "transpose(rows)",
        "It returns the columns of a table; rows and columns are lists.",
        "return [list(column) for column in zip(*rows)]",
        ([[[1, 2], [3, 4]]], [[1, 3], [2, 4]]),
        ([[[1, 2, 3]]], [[1], [2], [3]]),
        ([[[1], [2]]], [[1, 2]]),
        ([[["a"]]], [["a"]]),
        ([[[1, 2], [3, 4], [5, 6]]], [[1, 3, 5], [2, 4, 6]]),
    ),
    _program(
        "Read rows and columns of a grid from one line, then the grid: . is free, # is "
        "a wall. One may step up, down, left and right. Print the fewest steps from "
        "the top left to the bottom right cell, or -1 if there is no way. Both are "
        "free.",
        "from collections import deque\n"
        "rows, columns = map(int, input().split())\n"
        "grid = [input() for _ in range(rows)]\n"
        "steps, queue = {(0, 0): 0}, deque([(0, 0)])\n"
        "while queue:\n"
        "    r, c = queue.popleft()\n"
        "    for cell in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):\n"
        "        inside = 0 <= cell[0] < rows and 0 <= cell[1] < columns\n"
        "        if inside and grid[cell[0]][cell[1]] == '.' and cell not in steps:\n"
        "            steps[cell] = steps[r, c] + 1\n"
        "            queue.append(cell)\n"
        "print(steps.get((rows - 1, columns - 1), -1))",
        ("2 3\n.#.\n...", "3"),
        ("1 1\n.", "0"),
        ("2 2\n.#\n#.", "-1"),
        ("3 3\n...\n##.\n...", "4"),
        ("3 5\n.#...\n.#.#.\n...#.", "10"),
    ),
    _function(
        "fewest_coins(values, amount)",
        "It returns the fewest coins of the given values that make an amount, each as "
        "often as needed, or -1 if none do.",
        "best = [0] + [amount + 1] * amount\n"
        "for total in range(1, amount + 1):\n"
        "    for value in values:\n"
        "        if value <= total:\n"
        "            best[total] = min(best[total], best[total - value] + 1)\n"
        "return best[amount] if best[amount] <= amount else -1",
        ([[1, 3, 4], 6], 2),
        ([[5], 3], -1),
        ([[2, 5], 0], 0),
        ([[2, 5], 11], 4),
        ([[1, 7, 10], 14], 2),
    ),
)
