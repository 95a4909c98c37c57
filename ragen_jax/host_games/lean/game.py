"""Lean: prove a theorem, one tactic a reply.

In: replies. Out: the goals that are left, what was wrong with a tactic, rewards.
Does not judge proofs itself: a checker does.

Two kinds of problems. By default small theorems of propositional logic, generated and
checked in the process; with `data` and `url`, the theorems of a file in miniF2F's
format, checked by Lean on a Kimina server.

The rules are RAGEN's (`ragen/env/lean`), with these differences.

* An accepted tactic pays nothing (there: +1, so that 100 idle steps paid 90 and a proof
  10; any sum of `accepted_reward` and `step_reward` above 0 pays for not finishing).
* A tactic that leaves the goals as they read is rejected: `skip` and the like would be
  free of the price of a wrong tactic, and taught before any proof is.
* Of Lean's errors only the one about the theorem's own goals means "go on". There any
  message with the words "unsolved goals" did, also that of a `have` inside, which no
  later tactic can mend.
* A server that gives no answer is a fault that ends the row, not the player's -1.
* Words that make Lean believe what is not proved are refused, and `sorry` is an error.
* The observation is the goals. There it was the script and a log of the last 5 steps.
"""

import random
import re
import textwrap
from collections.abc import Sequence

from ragen_jax.host_games.base import HostGame, Observation, Step
from ragen_jax.host_games.common.options import (
    check_number,
    check_one_of,
    check_whole,
    refuse_given,
)
from ragen_jax.host_games.common.splits import check_split
from ragen_jax.host_games.lean.checker import (
    UNSOLVED,
    Checker,
    CheckResult,
    PropositionalChecker,
    write_theorem,
)
from ragen_jax.host_games.lean.formulas import (
    ASCII_SYMBOLS,
    ASCII_TURNSTILE,
    SYMBOLS,
    TURNSTILE,
)
from ragen_jax.host_games.lean.kimina import KiminaChecker, KiminaError
from ragen_jax.host_games.lean.problems import Problem, Problems, shortest_script
from ragen_jax.host_games.lean.tactics import TacticSyntaxError, parse_tactic
from ragen_jax.host_games.lean.theorems import load_theorems

# Longer replies are not read: no tactic here needs them.
MAX_PROPOSITIONAL_CHARS, MAX_LEAN_CHARS = 160, 4_000

# With these a script passes Lean without a proof, or without its kernel's check.
_REFUSED = re.compile(
    r"(?<![\w.'])(sorry|sorryAx|admit|stop|native_decide|set_option|axiom|run_tac"
    r"|by_elab|unsafe)(?![\w'])|\+native"
)

_RULES = (
    "Prove the goal in Lean: each answer is one tactic for the first goal.\n"
    "Given are the lines above {turnstile}; behind it stands what to prove. "
    "{AND} and, {OR} or, {NOT} not, {IMPLIES} implies, {IFF} iff.\n"
    "Tactics: intro h, exact h, apply h, cases h, constructor, left, right, "
    "assumption, contradiction, exfalso, have h := h1 h2, have h : p"
)
_LEAN_RULES = (
    "Prove the theorem in Lean 4 with Mathlib. Each answer is the next tactic: it is "
    "added to the proof, and you see the goals that are left. A tactic that fails "
    "changes nothing."
)


class LeanGame(HostGame):
    """Proofs in Lean, a tactic a step.

    A step's reward is the sum of those that apply; the defaults are RAGEN's, except
    where said.

    Args:
      split: `training` or `validation`; no theorem is in both, however its atoms are
        named.
      max_depth: of generated formulas, connectives inside one another, 1 to 4. None: 2.
      num_atoms: of p, q, r, s, how many occur, 1 to 4. None: 3.
      min_tactics: of generated theorems, fewest tactics of the shortest proof. None: 1.
      max_tactics: most of them, up to 10. None: 6.
      ascii: generated theorems are shown as `p -> q`, not `p → q`; replies may use
        both. None: True.
      data: JSONL file in miniF2F's format (`theorems`), instead of generated theorems.
      url: of the Kimina server that checks them; for `data` only.
      timeout_seconds: that Lean may take for a script; for `data` only. None: 30. The
        server has 60 s more to answer.
      api: of the server, `check` or the older `verify`; for `data` only. None: `check`.
      key_variable: environment variable with the server's key; for `data` only.
      max_steps: tactics, after which the episode is truncated (RAGEN: 100).
      message_chars: of an error, characters shown (RAGEN: all).
      step_reward: of every step.
      accepted_reward: of a tactic that the checker accepts (RAGEN: 1).
      rejected_reward: of one that it does not, or that cannot be read.
      done_reward: of the tactic that leaves no goals.
      timeout_reward: of one that Lean takes too long for, besides `rejected_reward`.
      max_steps_reward: of the last step allowed, if goals are left.

    Raises:
      ValueError: an option is out of range, of the other kind of problem, or the file
        cannot be read.
    """

    metrics = ("accepted", "timed_out")

    def __init__(
        self,
        *,
        split: str = "training",
        max_depth: int | None = None,
        num_atoms: int | None = None,
        min_tactics: int | None = None,
        max_tactics: int | None = None,
        ascii: bool | None = None,
        data: str | None = None,
        url: str | None = None,
        timeout_seconds: int | None = None,
        api: str | None = None,
        key_variable: str | None = None,
        max_steps: int = 12,
        message_chars: int = 200,
        step_reward: float = -0.1,
        accepted_reward: float = 0.0,
        rejected_reward: float = -1.0,
        done_reward: float = 10.0,
        timeout_reward: float = -1.0,
        max_steps_reward: float = -2.0,
    ) -> None:
        check_split(split)
        check_whole("max_steps", max_steps)
        check_whole("message_chars", message_chars)
        generated = {
            "max_depth": max_depth,
            "num_atoms": num_atoms,
            "min_tactics": min_tactics,
            "max_tactics": max_tactics,
            "ascii": ascii,
        }
        server = {
            "url": url,
            "timeout_seconds": timeout_seconds,
            "api": api,
            "key_variable": key_variable,
        }
        if data is None:
            refuse_given("without data, the file of theorems; set data", **server)
        else:
            refuse_given(
                "beside data, but is for generated theorems; leave data out",
                **generated,
            )
        check_one_of("ascii", ascii, (None, True, False))
        rewards = {
            "step_reward": step_reward,
            "accepted_reward": accepted_reward,
            "rejected_reward": rejected_reward,
            "done_reward": done_reward,
            "timeout_reward": timeout_reward,
            "max_steps_reward": max_steps_reward,
        }
        for name, value in rewards.items():
            check_number(name, value)
        self.rewards = rewards
        self.max_steps = max_steps
        self.message_chars = message_chars
        self.waits = data is not None
        if data is None:
            self._use_generated(split, generated)
        else:
            self._use_file(split, data, server)

    def _use_generated(self, split: str, options: dict) -> None:
        chosen = {name: value for name, value in options.items() if value is not None}
        self._is_ascii = chosen.pop("ascii", True)
        self._symbols = ASCII_SYMBOLS if self._is_ascii else SYMBOLS
        sizes = {"max_depth": 2, "num_atoms": 3, "min_tactics": 1, "max_tactics": 6}
        self._problems = Problems(split, **{**sizes, **chosen})
        if self._problems.sizes[-1] > self.max_steps:
            raise ValueError(
                f"max_tactics is {self._problems.sizes[-1]} and max_steps "
                f"{self.max_steps}: a longest proof does not fit; raise max_steps or "
                "lower max_tactics."
            )
        self._checker: Checker = PropositionalChecker()
        self._most_chars = MAX_PROPOSITIONAL_CHARS
        self._theorems = None
        self.is_solvable, self.longest_solution = True, self._problems.sizes[-1]
        self.num_tasks = None
        turnstile = ASCII_TURNSTILE if self._is_ascii else TURNSTILE
        names = {op.upper(): sign for op, sign in self._symbols.items()}
        self.instruction = _RULES.format(turnstile=turnstile, **names)

    def _use_file(self, split: str, data: str, options: dict) -> None:
        if options["url"] is None:
            raise ValueError(
                "data is given and url is not; start a Kimina Lean server and give its "
                "address, such as url='http://127.0.0.1:8000'."
            )
        chosen = {name: value for name, value in options.items() if value is not None}
        self._checker = KiminaChecker(**chosen)
        self.max_step_seconds = float(self._checker.try_seconds)
        self._most_chars = MAX_LEAN_CHARS
        self._theorems = load_theorems(data, split)
        self._problems, self._is_ascii = None, False
        self._openings: dict[int, tuple] = {}
        self.num_tasks = len(self._theorems)
        self.instruction = _LEAN_RULES

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """See `HostGame`. Generated theorems are as many as seeds: `task` is one.

        Raises:
          ValueError: Lean refuses a theorem of the file.
          KiminaError: the server gives no answer.
        """
        self._tactics: list[str] = []
        self._steps = 0
        self._problem: Problem | None = None
        if self._theorems is None:
            self._problem = self._problems.problem(seed if task is None else task)
            self._head = write_theorem(self._problem.goal, self._problems.atoms)
            self._opening = self._open(self._head)
            words = ""
        else:
            if task is None:
                task = int(random.Random(seed).random() * len(self._theorems))
            theorem = self._theorems[task]
            if task not in self._openings:
                self._openings[task] = self._open(theorem.code)
            self._head, self._opening = theorem.code, self._openings[task]
            words = f"{theorem.words}\n\n" if theorem.words else ""
        self._goals = self._opening[0]
        return Observation(words + self._show())

    def _open(self, head: str) -> tuple[str, tuple[int, int]]:
        """The goals before the first tactic, and where Lean's message about them is.

        Lean says "unsolved goals" of the theorem at one place and of a part of a tactic
        at another; the place is asked for because servers count lines differently.
        """
        # An empty `by` is a syntax error to Lean.
        result = self._checker.check(f"{head}\n  skip\n")
        if result.error is not None:
            raise KiminaError(
                f"Lean gave no verdict on the theorem {head[-200:]!r}: {result.error}."
            )
        errors = [m for m in result.messages if m.severity == "error"]
        if len(errors) != 1 or not errors[0].text.startswith(UNSOLVED):
            problem = "; ".join(m.text for m in errors) or "there are no goals"
            raise ValueError(
                f"the theorem {head[-200:]!r} cannot be begun: {problem[:300]}; "
                "correct it or take it out of the file."
            )
        return _goals_of(errors[0].text), (errors[0].line, errors[0].column)

    def step(self, reply: str) -> Step:
        """See `HostGame`.

        Raises:
          KiminaError: the server gives no answer.
        """
        tactic, problem = self._read(reply)
        is_valid = problem is None
        is_done = is_timeout = False
        if tactic is not None:
            result = self._checker.check(self._script(tactic))
            is_done, is_timeout = result.is_done, result.is_timeout
            problem = self._judge(result)
        if problem is None:
            self._tactics.append(tactic)
        self._steps += 1
        is_last = not is_done and self._steps >= self.max_steps
        happened = {
            "step_reward": True,
            "accepted_reward": problem is None,
            "rejected_reward": problem is not None,
            "done_reward": is_done,
            "timeout_reward": is_timeout,
            "max_steps_reward": is_last,
        }
        reward = sum(self.rewards[name] for name, is_so in happened.items() if is_so)
        info = {
            "success": is_done,
            "valid": is_valid,
            "accepted": problem is None,
            "timed_out": is_timeout,
        }
        text = "proved" if is_done else self._show(problem)
        return Step(Observation(text), reward, is_done, is_last, info)

    def _read(self, reply: str) -> tuple[str | None, str | None]:
        """The tactic of a reply, or else what is wrong with it."""
        if len(reply) > self._most_chars:
            return None, f"more than {self._most_chars} characters"
        text = textwrap.dedent(reply).strip()
        if not text:
            return None, "the tactic is empty"
        # Lean's tactics may have several lines, but no other control characters.
        checked = text if self._problem is not None else text.replace("\n", " ")
        if not checked.isprintable():
            return None, "characters that cannot be printed"
        if self._problem is None:
            refused = _REFUSED.search(text)
            return (None, f"'{refused[0]}' is not allowed") if refused else (text, None)
        try:
            parse_tactic(text)
        except TacticSyntaxError as error:
            return None, str(error)
        return text, None

    def _script(self, tactic: str) -> str:
        lines = [self._head]
        for text in (*self._tactics, tactic):
            lines += [f"  {line}" for line in text.split("\n")]
        return "\n".join(lines) + "\n"

    def _judge(self, result: CheckResult) -> str | None:
        """The reason a tactic was rejected, or None if it was accepted.

        Then `self._goals` are the new goals.
        """
        if result.error is not None:
            return result.error
        if result.is_done:
            return None
        left = None
        for message in result.messages:
            is_own = (message.line, message.column) == self._opening[1]
            if message.severity != "error":
                continue
            if not (is_own and message.text.startswith(UNSOLVED)):
                return message.text
            left = _goals_of(message.text)
        if left is None:
            return "the proof has 'sorry' in it"
        if _without_cases(left) == _without_cases(self._goals):
            return "nothing changes"
        self._goals = left
        return None

    def _show(self, problem: str | None = None) -> str:
        text = self._goals
        if self._problem is not None:
            text = _terse(text)
        if problem is not None:
            if len(problem) > self.message_chars:
                problem = problem[: self.message_chars] + " ..."
            text = f"error: {problem}\n{text}"
        if self._is_ascii:
            for op, symbol in SYMBOLS.items():
                text = text.replace(symbol, ASCII_SYMBOLS[op])
            text = text.replace(TURNSTILE, ASCII_TURNSTILE)
        return text

    def solution(self) -> Sequence[str]:
        """Of generated theorems, tactics that finish the proof as it stands.

        From the beginning the fewest that plain tactics need. Empty where the goals
        cannot be proved any more, or not in the steps that are left.
        """
        if self._problem is None:
            return ()
        lines = shortest_script(
            self._problem.goal,
            self._tactics,
            most=self.max_steps - self._steps,
            symbols=self._symbols,
        )
        # A `have` about a long formula of the player's might not be read.
        return lines if max(map(len, lines), default=0) <= self._most_chars else ()


def _goals_of(message: str) -> str:
    return message.removeprefix(UNSOLVED).strip("\n")


def _without_cases(goals: str) -> str:
    """Goals without their names, which tell how they came about."""
    return "\n".join(x for x in goals.split("\n") if not x.startswith("case "))


def _terse(goals: str) -> str:
    """The first goal without its case and its atoms, and how many follow."""
    first, *others = goals.split("\n\n")
    lines = first.split("\n")
    start = 1 + next(i for i, line in enumerate(lines) if line.endswith(" : Prop"))
    if others:
        lines.append(f"({len(others)} more)")
    return "\n".join(lines[start:])
