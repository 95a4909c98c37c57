"""Programming tasks, after RAGEN's DeepCoder.

In: a split and options; one reply, Python code. Out: the share of tests it passes as
reward. Tasks come from a file (see `tasks`) or, by default, are twenty built-in ones,
so that nothing need be downloaded.

Where this differs from RAGEN (ragen/env/deepcoder): the judge is another process than
the program, whose output is data, so that no program can print its verdict; programs
may end by `sys.exit`; results of functions are compared as JSON values, not as texts,
under which `True` was not `true`; training and validation share no task; one reply ends
the game, also a blank one; a file that cannot be read is an error, not a toy task.
"""

import ast
import random
import re
import textwrap
import time
import warnings
from collections.abc import Iterator

from ragen_jax.host_games.base import TRAINING, HostGame, Observation, Step
from ragen_jax.host_games.coding.examples import EXAMPLES
from ragen_jax.host_games.coding.judge import (
    ISOLATIONS,
    FusionSandbox,
    LocalSandbox,
    texts_agree,
    values_agree,
)
from ragen_jax.host_games.coding.tasks import (
    Task,
    Test,
    read_result,
    read_tasks,
    recorded_tests,
)
from ragen_jax.host_games.common.options import (
    check_number,
    check_one_of,
    check_task,
    check_whole,
    refuse_given,
)
from ragen_jax.host_games.common.splits import check_split

# Longer replies fail without being run.
MAX_CODE_CHARACTERS = 200_000
# For running HumanEval's own solution once, from which its tests come.
RECORDING_SECONDS = 45.0
# Every fifth of our own tasks is for validation.
VALIDATION_EVERY = 5
# A mark, a language, and what some write behind it: {.numbered}, title="x.py".
OPENING = re.compile(
    r"(```|~~~)[ \t]*[\w.+#-]*(?:[ \t]*\{[^\n`]*\}|[ \t]+\w+=[^\n`]*)?[ \t]*\r?\n"
)
# Marks of fences, and comments and texts of Python. A text that is not closed ends with
# its line or, in three quotes, with the reply.
PART = re.compile(
    r"(?P<mark>```|~~~)"
    r"|#[^\n]*"
    r"|(?P<three>\"{3}|'{3})(?:\\.|.)*?(?P<end>(?P=three)|\Z)"
    r"|(?P<one>[\"'])(?:\\.|.)*?(?P<stop>(?P=one)|\n|\Z)",
    re.DOTALL,
)
# Characters that look like a blank or like nothing and are no Python outside of texts.
BLANKS = dict.fromkeys(
    (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " "
)
BLANKS |= dict.fromkeys((0x200B, 0x2060, 0xFEFF))


class Coding(HostGame):
    """A task in words; the reply is Python code, judged by tests."""

    metrics = ("timed_out_tests",)
    longest_solution = 1

    def __init__(
        self,
        split: str = "training",
        *,
        path: str | None = None,
        isolation: str | None = None,
        sandbox_url: str | None = None,
        test_seconds: float = 3.0,
        total_seconds: float = 8.0,
        memory_mb: int = 512,
        max_tests: int | None = None,
    ):
        """
        Args:
          split: "training" or "validation"; no task is in both.
          path: file of tasks (see `tasks`); None: the built-in ones.
          isolation: "namespaces" or "limits", refused where impossible; None: the
            stronger one that is possible. See `describe_isolation`.
          sandbox_url: address of a SandboxFusion server that runs the programs; None:
            this machine does.
          test_seconds: for one test.
          total_seconds: for all tests of a reply; those that are not reached fail.
            RAGEN's limit is 3 for all.
          memory_mb: of address space per process of a program.
          max_tests: those with the longest inputs, as DeepCoder's own training takes
            15; None: all.

        Raises:
          ValueError: an option out of its range, a file that cannot be read, or
            programs cannot be run here as asked for.
          ImportError: a package that the file needs is not installed.
        """
        check_split(split)
        check_one_of("isolation", isolation, (None, *ISOLATIONS))
        if sandbox_url is not None:
            refuse_given(
                "beside sandbox_url, whose server isolates as it does; leave "
                "sandbox_url out",
                isolation=isolation,
            )
        check_number("test_seconds", test_seconds, above=0, most=600)
        check_number("total_seconds", total_seconds, above=0)
        check_whole("memory_mb", memory_mb, 64, 65_536)
        if max_tests is not None:
            check_whole("max_tests", max_tests)
        self._tasks = _examples(split) if path is None else read_tasks(path, split)
        self.num_tasks = len(self._tasks)
        self.is_solvable = all(
            path is None or task.recording is not None for task in self._tasks
        )
        self.instruction = (
            "Solve the task in Python 3 with the standard library alone; its usual "
            "modules and names, such as math and deque, are imported. Answer with the "
            "code alone."
        )
        self._test_seconds, self._total_seconds = test_seconds, total_seconds
        self.max_step_seconds = total_seconds
        self.waits = sandbox_url is not None
        self._max_tests = max_tests
        self._recorded: dict[str, tuple[Test, ...]] = {}
        if sandbox_url is None:
            self._sandbox = LocalSandbox(isolation, memory_mb)
        else:
            self._sandbox = FusionSandbox(sandbox_url, memory_mb)

    def reset(self, seed: int, task: int | None = None) -> Observation:
        check_task(task, self.num_tasks)
        chosen = random.Random(seed).randrange(self.num_tasks)
        self._task = self._tasks[chosen if task is None else task]
        # Here, since a step has less time than recording may take.
        self._chosen_tests = self._tests()
        return Observation(self._task.statement)

    def step(self, reply: str) -> Step:
        code = extract_code(reply)
        tests = self._chosen_tests
        passed = timed_out = 0
        deadline = time.monotonic() + self._total_seconds
        if code.strip() and len(code) <= MAX_CODE_CHARACTERS:
            program = self._task.program(code)
            for test in tests:
                left = deadline - time.monotonic()
                if left <= 0:
                    timed_out += 1
                    continue
                seconds = min(self._test_seconds, left)
                outcome = self._sandbox.run(program, test.given, seconds)
                timed_out += outcome.timed_out
                passed += outcome.ok and self._is_right(test, outcome.printed)
        text = f"{passed} of {len(tests)} tests passed."
        info = {
            "success": passed == len(tests),
            "valid": bool(code.strip()),
            "timed_out_tests": float(timed_out),
        }
        return Step(Observation(text), passed / len(tests), True, False, info)

    def solution(self) -> tuple[str, ...]:
        return () if self._task.solution is None else (self._task.solution,)

    def describe_isolation(self) -> str:
        """How programs are kept from the rest of the machine, in plain words."""
        return self._sandbox.describe()

    def close(self) -> None:
        self._sandbox.close()

    def _tests(self) -> tuple[Test, ...]:
        """The tests of the task; HumanEval's come from its own solution's calls."""
        tests = self._task.tests
        if self._task.recording is not None:
            tests = self._recorded.get(self._task.statement) or self._record()
        if self._max_tests is None:
            return tests
        longest = sorted(tests, key=lambda test: -len(test.given))
        return tuple(longest[: self._max_tests])

    def _record(self) -> tuple[Test, ...]:
        outcome = self._sandbox.run(self._task.recording, "", RECORDING_SECONDS)
        try:
            tests = recorded_tests(outcome.printed)
        except ValueError as error:
            raise ValueError(
                f"the task's own solution gave no tests ({error}): "
                f"{self._task.statement[:60]!r}; remove the row."
            ) from error
        self._recorded[self._task.statement] = tests
        return tests

    def _is_right(self, test: Test, printed: str) -> bool:
        if self._task.function is None:
            return any(texts_agree(text, printed) for text in test.expected)
        try:
            result = read_result(printed)
        except ValueError:
            return False
        return any(values_agree(value, result) for value in test.expected)


def extract_code(reply: str) -> str:
    """The last fenced block of a reply, or all of it where there is none.

    A program's texts may hold marks of fences. Without a byte order mark, and without
    the indentation of a whole block; in what is no Python otherwise, blanks of any kind
    are spaces.
    """
    code = reply
    # Marks in a whole program are of its texts.
    if OPENING.search(reply) and not _is_program(reply):
        code = list(_blocks(reply))[-1]
    code = code.replace("\ufeff", "")
    for text in (code, code.translate(BLANKS)):
        # An item of a list indents its block. Lines in texts may begin further left.
        for program in (text, textwrap.dedent(text)):
            if _is_program(program):
                return program
    return textwrap.dedent(code)


def _is_program(reply: str) -> bool:
    """Whether a reply is Python, with no mark of a fence outside of texts."""
    marks = (part["mark"] for part in PART.finditer(reply))
    if any(marks) or len(reply) > MAX_CODE_CHARACTERS:
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(reply)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _blocks(reply: str) -> Iterator[str]:
    """Fenced blocks; words between them are not Python, whatever quotes they hold."""
    at, has_texts = 0, True
    while opening := OPENING.search(reply, at):
        mark, start = opening[1], opening.end()
        if has_texts:
            end, has_texts = _block_end(reply, start, mark)
        else:
            end = reply.find(mark, start)
        yield reply[start : end if end >= 0 else None]
        at = end + len(mark) if end >= 0 else len(reply)


def _block_end(reply: str, start: int, mark: str) -> tuple[int, bool]:
    """Where the closing mark of a block is, -1 without one; marks in texts are none.

    Also whether texts are to be looked for in what follows: not behind three quotes
    that are not closed, which would be read to the end of the reply again and again.
    """
    for part in PART.finditer(reply, start):
        if part["mark"]:
            if part["mark"] == mark:
                return part.start(), True
            continue
        is_closed = (part["end"] or part["stop"] or "\n") != "\n"
        end = -1 if is_closed else reply.find(mark, *part.span())
        if end >= 0:
            return end, part["three"] is None
    return -1, True


def _examples(split: str) -> list[Task]:
    return [
        task
        for number, task in enumerate(EXAMPLES, 1)
        if (number % VALIDATION_EVERY != 0) == (split == TRAINING)
    ]
