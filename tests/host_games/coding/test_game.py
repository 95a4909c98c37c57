"""The game of programming tasks: its own tasks, its rules and comparisons."""

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.coding import judge as code_judge
from ragen_jax.host_games.coding.examples import EXAMPLES
from ragen_jax.host_games.coding.game import Coding, extract_code
from ragen_jax.host_games.coding.judge import texts_agree, values_agree
from ragen_jax.host_games.workers.pool import GameSpec, Pool
from tests.host_games.coding.games import playing
from tests.host_games.episodes import printed
from tests.pace import examples

SPLITS = ("training", "validation")
TEXTS = st.text(max_size=40) | st.sampled_from(
    ["", " \n", "\x00", "(" * 3000, "\ud800", "```", "```python\n", "def f(:", "||"]
)


@pytest.fixture(scope="module")
def game():
    with playing() as game:
        yield game


@pytest.fixture(scope="module")
def short_game():
    with playing(max_tests=1) as game:
        yield game


@pytest.mark.parametrize("split", SPLITS)
def test_every_solution_of_our_own_tasks_passes(split):
    with playing(split) as game:
        assert game.is_solvable
        for task in range(game.num_tasks):
            game.reset(0, task)
            (code,) = game.solution()
            step = game.step(f"Here it is:\n```python\n{code}\n```")
            assert (step.reward, step.terminated) == (1.0, True), step.observation
            assert step.info["success"]


def test_our_own_tasks_are_twenty_and_in_one_split_each():
    assert len(EXAMPLES) == len({task.statement for task in EXAMPLES}) == 20
    assert all(4 <= len(task.tests) <= 6 for task in EXAMPLES)
    with playing("training") as first, playing("validation") as second:
        texts = [
            {game.reset(0, task).text for task in range(game.num_tasks)}
            for game in (first, second)
        ]
        assert {first.reset(seed).text for seed in range(500)} == texts[0]
    assert not texts[0] & texts[1]
    assert [len(part) for part in texts] == [16, 4]


def test_the_reward_is_the_share_of_tests_passed(game):
    game.reset(0, task=2)
    step = game.step("def is_mirror(text): return True")
    assert step.reward == 3 / 5
    assert step.observation.text == "3 of 5 tests passed."
    assert step.info == {"success": False, "valid": True, "timed_out_tests": 0.0}


def test_an_honest_exit_does_not_lose(game):
    game.reset(0, task=1)
    code = "import sys\nprint(max(map(int, input().split())))\nsys.exit()"
    assert game.step(code).reward == 1.0
    assert game.step(code.replace("exit()", "exit(0)")).reward == 1.0
    for word in ("exit()", "quit()", "exit(0)"):
        assert game.step(f"{code.removesuffix('sys.exit()')}{word}").reward == 1.0
    # A failure that it reports is one.
    assert game.step(code.replace("exit()", "exit(1)")).reward == 0.0
    game.reset(0, task=2)
    code = "import sys\ndef is_mirror(text): return text == text[::-1]\nsys.exit()"
    assert game.step(code).reward == 1.0


LARGEST = "print(max(map(int, input().split())))"
IMPORTED_NAMES = (
    "deque([1]); math.inf; inf; cache; heappush; Counter; defaultdict; datetime.date",
    "accumulate; reduce; bisect_left; deepcopy; gcd; sqrt; ascii_lowercase; randint",
    "StringIO; json.dumps; itemgetter; mean; List; Optional; sys.stdin; stdin",
    # What modules cover, and `builtins` has.
    "assert pow(2, 5, 7) == 4; open('file', 'w').close()",
    "assert sys.getrecursionlimit() >= 50_000",
)


@pytest.mark.parametrize("names", IMPORTED_NAMES)
def test_what_the_graders_of_the_data_import_is_there(game, names):
    game.reset(0, task=1)
    assert game.step(f"{names}\n{LARGEST}").reward == 1.0
    game.reset(0, task=2)
    code = f"{names}\ndef is_mirror(text): return text == text[::-1]"
    assert game.step(code).reward == 1.0


@pytest.mark.parametrize(
    "code",
    [
        f"\ufeff{LARGEST}",
        f"from __future__ import annotations\n{LARGEST}",
        f"if True:\n\xa0\xa0{LARGEST}",
        f"if True:\n\u3000{LARGEST}",
        f"if\xa0True:\n \u202f{LARGEST}",
        f"\u200b{LARGEST}",
        f"~~~python\n{LARGEST}\n~~~",
        f"```python {{.numberLines}}\n{LARGEST}\n```",
        f'```python title="x.py"\n{LARGEST}\n```',
        f"```\n\ufeff{LARGEST}\n```",
        f"if __name__ == '__main__':\n    {LARGEST}",
    ],
)
def test_right_programs_score_however_they_are_written(game, code):
    game.reset(0, task=1)
    assert game.step(code).reward == 1.0


def test_an_endless_program_scores_nothing_and_fails_no_row():
    kwargs = {"test_seconds": 0.3, "total_seconds": 0.7}
    game = "ragen_jax.host_games.coding.game:Coding"
    spec = GameSpec(game, kwargs, num_workers=1, step_seconds=20.0)
    with contextlib.closing(Pool(spec, "training", 1)) as pool:
        pool.reset([0], [1])
        answer = pool.step({0: "while True: pass"})[0]
    assert answer.failure is None
    assert (answer.reward, answer.terminated) == (0.0, True)


def test_functions_may_print_and_be_methods(game):
    game.reset(0, task=0)
    code = "print('hi')\nclass Solution:\n  def add_up(self, numbers: List[int]):\n"
    code += "    print(numbers, end='')\n    return sum(numbers)"
    assert game.step(code).reward == 1.0


@settings(deadline=None, max_examples=examples(60))
@given(TEXTS)
def test_any_reply_is_answered(short_game, reply):
    short_game.reset(0, task=1)
    step = short_game.step(reply)
    assert step.terminated
    assert step.reward == 0.0
    assert step.info["valid"] is bool(extract_code(reply).strip())


def test_a_reply_too_long_is_not_run(game):
    game.reset(0, task=1)
    code = "print(max(map(int, input().split())))\n"
    step = game.step(code + "#" * 300_000)
    assert (step.reward, step.info["valid"]) == (0.0, True)


TILDES = 'print("""\n~~~\na\n~~~\n""")\n'
DOCUMENTED = 'def f():\n    """Doc."""\n    return 1\n'
BACKTICKS = "print('''\n```\na\n```\n''')\n"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("First\n```\na\n```\nthen\n```py\nb\n```\nend", "b\n"),
        ("```python\nx = 1", "x = 1"),
        ("a```python is it\nx = 1", "a```python is it\nx = 1"),
        ("x = '\u3000'", "x = '\u3000'"),
        ("no fence ``` here", "no fence ``` here"),
        ("~~~py\na = '```'\n~~~", "a = '```'\n"),
        ("\ufeffx = 'a\xa0b'", "x = 'a\xa0b'"),
        # Lines like fences in the texts of a program.
        (TILDES, TILDES),
        (BACKTICKS, BACKTICKS),
        (f"Here's it:\n~~~python\n{TILDES}~~~\nIt's done.", TILDES),
        ("```\nprint('```')\n```", "print('```')\n"),
        ('```\nprint("a\\"```")\n```', 'print("a\\"```")\n'),
        # Quotes that are not closed, or not quotes.
        ("Don't use 'x:\n```\na\n```", "a\n"),
        ('A """ is a quote.\n```\na\n```', "a\n"),
        (f'A """ is a quote.\n```python\n{DOCUMENTED}```\nDone.', DOCUMENTED),
        (f"A ''' and a \"\"\".\n~~~\n{DOCUMENTED}~~~", DOCUMENTED),
        (f'A """ is a quote.\n~~~\n{TILDES}~~~\n', TILDES),
        ("~~~py\na = 1\n", "a = 1\n"),
        ("```\na = 1  # it's\n```\nThat's it.", "a = 1  # it's\n"),
        ("```\na = '#'\n```\nb", "a = '#'\n"),
        ("``` python\na\n```", "a\n"),
        ("```python3.11\na\n```", "a\n"),
        ("1. So:\n   ```py\n   if a:\n       b\n   ```", "if a:\n    b\n"),
        ("  a = 1\n  b = 2", "a = 1\nb = 2"),
    ],
)
def test_fences_are_stripped(reply, code):
    assert extract_code(reply) == code


@pytest.mark.parametrize(
    "piece",
    [
        *('"""\\', "'\\'", '"', "'''\n", '"""\\"', "#'", '```\n\\"""', "```\n"),
        *("~", "(", "-", "~~~\n'"),
    ],
)
def test_odd_quotes_take_no_time(piece):
    began = time.perf_counter()
    extract_code(piece * (200_000 // len(piece)))
    assert time.perf_counter() - began < 2


def test_one_test_and_all_tests_have_deadlines():
    slow = "import time; time.sleep(100)"
    with playing(test_seconds=0.3, total_seconds=0.7) as game:
        game.reset(0, task=1)
        step = game.step(slow)
        assert step.reward == 0.0
        assert step.info["timed_out_tests"] == 5
        # The first test is slow, the others are not; each has its own limit.
        first = "line = input()\nif line == '3 8': import time; time.sleep(100)\n"
        step = game.step(first + "print(max(map(int, line.split())))")
        assert step.info["timed_out_tests"] >= 1


def test_max_tests_takes_the_longest_inputs():
    with playing(max_tests=1) as game:
        game.reset(0, task=1)
        assert game.step("print(1000000000000)").reward == 1.0


def test_programs_print_the_same_in_another_process():
    code = "import random; print({'a', 'b', 'c', 'd'}, random.random(), hash('x'))"
    program = (
        "from ragen_jax.host_games.coding.game import Coding\n"
        f"game = Coding(); print(game._sandbox.run({code!r}, '', 5).printed, end='')\n"
        "game.close()"
    )
    assert b"'a'" in printed(program)


@pytest.mark.parametrize(
    ("expected", "printed", "agree"),
    [
        ("1 2\n3", "1 2\n3\n", True),
        ("1 2\n3", "\n 1  2 \n3\n\n", True),
        ("1 2\n3", "1 2 3", False),
        ("1.5", "1.50", True),
        ("1.5", "1.5000001", True),
        ("1.5", "1.6", False),
        ("0.3333333", "0.33333333333", True),
        ("15", "15.0", False),
        ("1.0", "1_0", False),
        ("1.0", "nan", False),
        ("1e400", "1e500", True),
        ("Yes", "yes", False),
        ("", "", True),
        ("1", "", False),
    ],
)
def test_printed_texts(expected, printed, agree):
    assert texts_agree(expected, printed) is agree


@pytest.mark.parametrize(
    ("expected", "value", "agree"),
    [
        (True, True, True),
        (True, 1, False),
        (1, True, False),
        ("x", "x", True),
        ("1", 1, False),
        ([3, 4], [3, 4], True),
        ([3, 4], [4, 3], False),
        ([3, 4], "[3, 4]", False),
        (0.3, 0.1 + 0.2, True),
        (1, 1.0, True),
        (10**17, 10**17 + 1, False),
        (1.5, 10**400, False),
        (None, None, True),
        (None, 0, False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
    ],
)
def test_results_are_compared_as_json_values(expected, value, agree):
    assert values_agree(expected, value) is agree


def test_what_json_cannot_say_fails(game):
    game.reset(0, task=0)
    for result in ("{1}", "object()", "'[' * 10**6", "10**5000", "float('nan')"):
        step = game.step(f"def add_up(numbers): return {result}")
        assert step.reward == 0.0, result
    deep = "x = []\nfor _ in range(900): x = [x]\ndef add_up(numbers): return x"
    assert game.step(deep).reward == 0.0


def test_other_systems_are_pointed_to_a_server(monkeypatch):
    monkeypatch.setattr(code_judge.sys, "platform", "darwin")
    with pytest.raises(ValueError, match="set sandbox_url"):
        Coding()
