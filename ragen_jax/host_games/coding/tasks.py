"""Programming tasks: their tests, and the files they are read from.

In: a file of DeepCoder's data set or HumanEval's. Out: `Task`s of a split. Does not
know how programs are run.

Formats. agentica-org/DeepCoder-Preview-Dataset (parquet, JSON or JSON lines):
`problem`, `tests` (JSON text), and if there `starter_code`, `solutions` and `metadata`.
The tests are a list of `input`, `output` and a `type` (or `testtype`), function calls
with `fn_name` (or `metadata.func_name`), or, in the part from TACO, one object of
`inputs`, `outputs` and if there `fn_name`. HumanEval (the wheel's .jsonl.gz):
`prompt`, `entry_point`, `canonical_solution`, `test`.
"""

import dataclasses
import json
import logging

from ragen_jax.host_games.common.files import parse_json, read_each, read_rows
from ragen_jax.host_games.common.splits import split_of

# Before a function's result, which is the last such line printed.
MARK = "\x1eresult "
# Modules that graders of these data import for a solution, with all of their names;
# LiveCodeBench's and DeepCoder's list. `builtins` undoes what the others cover, such as
# `open` of `io` and `pow` of `math`.
IMPORTED = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy")
IMPORTED += ("math", "random", "statistics", "itertools", "functools", "operator")
IMPORTED += ("io", "sys", "json", "builtins", "typing")
PREAMBLE = "".join(
    [
        *(f"from {name} import *\n" for name in IMPORTED),
        *(f"import {name}\n" for name in IMPORTED),
        "sys.setrecursionlimit(50_000)\n",
        "sys.set_int_max_str_digits(50_000)\n",
    ]
)
# Runs as the program: names are imported in advance, outside of the source, which may
# begin with `from __future__`.
PROGRAM = """
exec({preamble!r})
exec(compile({source!r}, "solution.py", "exec"))
"""
# Runs as the program where a function is asked for: its arguments come on stdin.
CALL = """
import json, sys
def call(source, name, mark, preamble):
    arguments = json.loads(sys.stdin.read())
    space = {{"__name__": "solution"}}
    exec(preamble, space)
    try:
        exec(compile(source, "solution.py", "exec"), space)
    except SystemExit:
        pass
    function = space.get(name)
    if function is None:
        function = getattr(space["Solution"](), name)
    result = json.dumps(function(*arguments))
    print("\\n" + mark + result)
call({source!r}, {name!r}, {mark!r}, {preamble!r})
"""
# Prints the calls that HumanEval's `check` makes, with the results of its solution.
RECORD = """
import json
def record(source, test, name, mark):
    space = {{"__name__": "solution"}}
    exec(compile(source, "solution.py", "exec"), space)
    function, calls = space[name], []
    def candidate(*arguments):
        given = json.dumps(arguments)
        result = function(*arguments)
        calls.append([given, json.loads(json.dumps(result))])
        return result
    exec(compile(test, "test.py", "exec"), space)
    space["check"](candidate)
    print("\\n" + mark + json.dumps(calls))
record({source!r}, {test!r}, {name!r}, {mark!r})
"""

CURE = "give a file of DeepCoder's data set or HumanEval's"

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Test:
    """One test.

    Attributes:
      given: standard input; of a function its arguments, a JSON list.
      expected: what may be printed, a text; of a function the results that it may give,
        JSON values.
    """

    given: str
    expected: tuple


@dataclasses.dataclass(frozen=True)
class Task:
    """A programming task.

    Attributes:
      statement: shown to the player.
      function: name of the function asked for; None: a program.
      tests: at least one, or none where `recording` has to be run for them.
      solution: code that is known to pass, if there is any.
      recording: a program that prints the calls and results to be tested.
    """

    statement: str
    function: str | None
    tests: tuple[Test, ...]
    solution: str | None = None
    recording: str | None = None

    def program(self, code: str) -> str:
        """What is run with a test's `given` as standard input."""
        given = {"source": code, "preamble": PREAMBLE}
        if self.function is None:
            return PROGRAM.format(**given)
        return CALL.format(**given, name=self.function, mark=MARK)


def read_result(printed: str) -> object:
    """The value after the last mark.

    Raises:
      ValueError: nothing was marked, or the value is not JSON.
    """
    _, mark, line = printed.rpartition(MARK)
    if not mark:
        raise ValueError("no result was printed")
    return parse_json(line.split("\n", 1)[0])


def recorded_tests(printed: str) -> tuple[Test, ...]:
    """The tests that a `recording` printed, each once.

    Raises:
      ValueError: there are none.
    """
    tests = {given: Test(given, (result,)) for given, result in read_result(printed)}
    if not tests:
        raise ValueError("its test makes no call")
    return tuple(tests.values())


def read_tasks(path: str, split: str) -> list[Task]:
    """The tasks of a split, in the file's order.

    RAGEN's default trains on the test split of its files. Here any file is dealt to
    both splits by the content of its statements.

    Raises:
      ValueError: no such file, another kind of file, too many rows that are not tasks,
        or no task of the split that has tests.
      ImportError: a .parquet file without pyarrow.
    """
    tasks, dropped = [], 0
    for task in read_each(read_rows(path), _task, path, form=CURE):
        if split_of(task.statement) != split:
            continue
        if task.tests or task.recording:
            tasks.append(task)
        else:
            dropped += 1
    if dropped:
        _log.warning("%s: %d tasks without tests are left out", path, dropped)
    if not tasks:
        raise ValueError(
            f"{path} has no task for {split} with tests; give more rows: about one in "
            "ten is for validation."
        )
    return tasks


def _task(row: dict) -> Task:
    if "canonical_solution" in row:
        name, solution = row["entry_point"], row["prompt"] + row["canonical_solution"]
        recording = RECORD.format(
            source=solution, test=row["test"], name=name, mark=MARK
        )
        statement = f"Complete the function {name}.\n{row['prompt'].strip()}"
        return Task(statement, name, (), solution, recording)
    tests = row["tests"]
    if isinstance(tests, str):
        tests = parse_json(tests)
    metadata = row.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = parse_json(metadata)
    function, pairs = _pairs(tests, metadata)
    read = _stdin_test if function is None else _function_test
    statement = row["problem"].strip()
    if row.get("starter_code"):
        statement += f"\nBegin with:\n{row['starter_code'].strip()}"
    elif function is not None:
        statement += f"\nWrite the function {function}."
    solutions = row.get("solutions") or [None]
    if isinstance(solutions, str):
        solutions = [solutions]
    return Task(statement, function, tuple(read(*pair) for pair in pairs), solutions[0])


def _pairs(tests: list | dict, metadata: dict) -> tuple[str | None, list]:
    """The name of the function asked for, if one is, and inputs with outputs."""
    if isinstance(tests, dict):
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
        return tests.get("fn_name"), pairs
    names = {_function_name(test, metadata) for test in tests}
    if len(names) > 1:
        raise ValueError(f"tests call different functions: {sorted(map(str, names))}")
    return next(iter(names), None), [(test["input"], test["output"]) for test in tests]


def _function_name(test: dict, metadata: dict) -> str | None:
    kind = test.get("type") or test.get("testtype") or "stdin"
    if kind in ("stdin", "stdin_stdout"):
        return None
    if kind not in ("function_call", "functional"):
        raise ValueError(f"tests of type {kind!r} are not known")
    about = test.get("metadata") or metadata
    return test.get("fn_name") or about["func_name"]


def _lines(text: object) -> str:
    if isinstance(text, list):
        return "\n".join(map(str, text))
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} as a program's input or output")
    return text


def _stdin_test(given: object, expected: object) -> Test:
    return Test(_lines(given), (_lines(expected),))


def _function_test(given: object, expected: object) -> Test:
    """LiveCodeBench writes JSON texts; the others values, and results often in a list.

    A list of one may be a result or wrap it, and the two look alike: both count,
    as they do where the data come from.
    """
    if isinstance(given, str):
        arguments = [parse_json(line) for line in given.splitlines() if line.strip()]
        return Test(json.dumps(arguments), (parse_json(expected),))
    if not isinstance(given, list):
        raise TypeError(f"{type(given).__name__} as a function's arguments")
    wraps = isinstance(expected, list) and len(expected) == 1
    return Test(json.dumps(given), (expected, *(expected if wraps else ())))
