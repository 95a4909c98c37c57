"""What checks a Lean script, and the checker of propositional ones.

In: the whole text of a theorem and its tactics. Out: messages as Lean's, in the form in
which a Kimina server gives them. Does not know episodes and rewards.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Protocol

from ragen_jax.host_games.lean.formulas import (
    SYMBOLS,
    Formula,
    FormulaError,
    parse,
    render,
)
from ragen_jax.host_games.lean.tactics import (
    Goal,
    TacticError,
    TacticSyntaxError,
    parse_tactic,
    render_goal,
    run_tactic,
)

# How Lean's message about goals that are left begins.
UNSOLVED = "unsolved goals"


@dataclasses.dataclass(frozen=True)
class Message:
    """One message of Lean.

    Attributes:
      severity: `error`, `warning`, `info` or `trace`.
      line: where it points to, from 1. A Kimina server counts from the end of the
        imports.
      column: where in the line, from 0.
      text: what it says.
    """

    severity: str
    line: int
    column: int
    text: str


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """What a checker says of a script.

    Attributes:
      messages: all of them, in order.
      is_done: the theorem is proved: no errors, and nothing assumed by `sorry`.
      error: why the script has not been checked to its end; None: it has.
      is_timeout: the script took too long; then `error` says so.
    """

    messages: tuple[Message, ...]
    is_done: bool
    error: str | None = None
    is_timeout: bool = False


class Checker(Protocol):
    """Something that checks scripts."""

    def check(self, code: str) -> CheckResult:
        """The verdict on a script, without a memory of earlier ones."""

    def close(self) -> None:
        """Release what it holds."""


_BINDER = re.compile(r"\s*\(\s*([^:()]*?)\s*:\s*")
_HEAD = re.compile(r"\s*theorem\s+[A-Za-z_]\w*")


def write_theorem(goal: Goal, atoms: Sequence[str]) -> str:
    """The line with which a script about a goal begins: `theorem ... := by`.

    Args:
      goal: hypotheses and what is to be proved.
      atoms: propositions to declare.
    """
    given = "".join(f" ({name} : {render(f, SYMBOLS)})" for name, f in goal.hypotheses)
    declared = f"({' '.join(atoms)} : Prop){given}"
    return f"theorem goal {declared} : {render(goal.target, SYMBOLS)} := by"


class PropositionalChecker:
    """Checks scripts of propositional logic in the process, in microseconds.

    A script is the line of `write_theorem` and one tactic a line. Messages have Lean's
    form; the words of errors are our own.
    """

    def check(self, code: str) -> CheckResult:
        """See `Checker`. A line that fails ends the check, as in Lean."""
        head, *lines = code.rstrip("\n").split("\n")
        try:
            atoms, goal = read_theorem(head)
        except FormulaError as error:
            return _failed(1, 0, str(error))
        goals = (goal,)
        for number, line in enumerate(lines, start=2):
            column = len(line) - len(line.lstrip(" "))
            try:
                goals = run_tactic(goals, parse_tactic(line))
            except (TacticError, TacticSyntaxError) as error:
                return _failed(number, column, str(error))
        if not goals:
            return CheckResult((), is_done=True)
        texts = "\n\n".join(render_goal(goal, atoms) for goal in goals)
        return _failed(1, len(head) - len("by"), f"{UNSOLVED}\n{texts}")

    def close(self) -> None:
        """Nothing to release."""


def _failed(line: int, column: int, text: str) -> CheckResult:
    return CheckResult((Message("error", line, column, text),), is_done=False)


def read_theorem(line: str) -> tuple[tuple[str, ...], Goal]:
    """What a line of `write_theorem` says: its atoms, and the goal.

    Raises:
      FormulaError: the line has another form.
    """
    head = _HEAD.match(line)
    if head is None or not line.endswith(":= by"):
        raise FormulaError("a theorem is written 'theorem NAME BINDERS : F := by'")
    atoms: tuple[str, ...] = ()
    given: list[tuple[str, Formula]] = []
    here = head.end()
    while binder := _BINDER.match(line, here):
        end = _closing(line, line.index("(", binder.start()))
        names, text = binder[1].split(), line[binder.end() : end]
        if text.strip() == "Prop":
            atoms = (*atoms, *names)
        else:
            given += [(name, parse(text, atoms)) for name in names]
        here = end + 1
    rest = line[here : -len(":= by")].lstrip()
    if not rest.startswith(":"):
        raise FormulaError("':' and what is to be proved are missing")
    return atoms, Goal("", tuple(given), parse(rest[1:], atoms))


def _closing(line: str, start: int) -> int:
    depth = 0
    for i in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[i], 0)
        if depth == 0:
            return i
    raise FormulaError("')' is missing")
