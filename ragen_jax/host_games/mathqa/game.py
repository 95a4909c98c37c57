"""Mathematical questions with one answer, after RAGEN's MetaMathQA.

In: a split and options; replies, each an answer. Out: observations, and rewards by a
judge. Questions come from a file in MetaMathQA's format or, by default, are word
problems that are generated, so that nothing need be downloaded.

Where this differs from RAGEN (ragen/env/metamathqa): validation has other
questions; a later attempt is announced, which there happens nowhere; the last wrong
attempt ends the game.
"""

import random

from ragen_jax.host_games.base import HostGame, Observation, Step
from ragen_jax.host_games.common.options import (
    check_number,
    check_one_of,
    check_task,
    check_whole,
)
from ragen_jax.host_games.common.splits import check_split, split_of
from ragen_jax.host_games.mathqa.generated import MAX_STEPS, draw_problem
from ragen_jax.host_games.mathqa.judge import MathJudge, strings_agree
from ragen_jax.host_games.mathqa.questions import Question, read_questions

JUDGES = ("string", "math")
TRY_AGAIN = "Incorrect. Please think again."
GIVEN_UP = "Incorrect."
CORRECT = "Correct."
# At least one draw in a hundred fits and is of the split: the probability that none of
# these draws does is below 1e-43.
MAX_DRAWS = 10_000


class MathQA(HostGame):
    """A question; each reply is an answer to it.

    A right answer pays `retry_factor` to the power of the wrong attempts before it and
    ends the game; so does, for nothing, the last wrong one. An empty reply is an
    attempt that cannot be read.
    """

    def __init__(
        self,
        split: str = "training",
        *,
        path: str | None = None,
        judge: str = "string",
        judge_seconds: float = 5.0,
        attempts: int = 1,
        retry_factor: float = 0.5,
        num_steps: int = 2,
        max_number: int = 50,
    ):
        """
        Args:
          split: "training" or "validation"; no question is in both.
          path: file in MetaMathQA's format (see `questions`); None: generated.
          judge: "string" compares texts but for case and blanks, as RAGEN does; "math"
            compares by math-verify, for which 1/2 is 0.5. The two count differently.
          judge_seconds: for one comparison by "math"; a longer one counts as wrong.
          attempts: answers until the game ends; RAGEN allows 5 in its code, 1 in its
            configuration.
          retry_factor: of the reward per wrong attempt; RAGEN's is 1/2.
          num_steps: operations of a generated problem, 1 to 3.
          max_number: largest number in one, 10 to 10,000; prices' products excepted.

        Raises:
          ValueError: an option out of its range, or a file that cannot be read.
          ImportError: a package that an option needs is not installed.
        """
        check_split(split)
        check_one_of("judge", judge, JUDGES)
        check_number("judge_seconds", judge_seconds, above=0)
        check_whole("attempts", attempts)
        check_number("retry_factor", retry_factor, least=0, most=1)
        check_whole("num_steps", num_steps, most=MAX_STEPS)
        check_whole("max_number", max_number, 10, 10_000)
        self._split = split
        self._attempts, self._retry_factor = attempts, retry_factor
        self._num_steps, self._max_number = num_steps, max_number
        self._questions = None if path is None else read_questions(path, split)
        self.num_tasks = None if path is None else len(self._questions)
        self._math = MathJudge(judge_seconds) if judge == "math" else None
        if self._math is not None:
            self.metrics = ("undecided",)
            self.max_step_seconds = judge_seconds
        self.is_solvable, self.longest_solution = True, 1
        self.instruction = _instruction(path is None, attempts)

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Show a question; a generated one is drawn from the task, if there is one."""
        check_task(task, self.num_tasks or 2**31)
        if self._math is not None:
            # Here, since a step has less time.
            self._math.start()
        if self._questions is None:
            self._question = self._generate(seed if task is None else task)
        else:
            chosen = random.Random(seed).randrange(self.num_tasks)
            self._question = self._questions[chosen if task is None else task]
        self._wrong = 0
        return Observation(self._question.query)

    def step(self, reply: str) -> Step:
        valid = bool(reply.strip())
        verdict = self._judge(reply) if valid else False
        success = verdict is True
        reward = self._retry_factor**self._wrong if success else 0.0
        self._wrong += not success
        ended = success or self._wrong >= self._attempts
        text = CORRECT if success else GIVEN_UP if ended else TRY_AGAIN
        info: dict[str, float | bool] = {"success": success, "valid": valid}
        if self._math is not None:
            info["undecided"] = float(verdict is None)
        return Step(Observation(text), reward, ended, False, info)

    def solution(self) -> tuple[str, ...]:
        return (self._question.truth,)

    def close(self) -> None:
        if self._math is not None:
            self._math.close()

    def _judge(self, reply: str) -> bool | None:
        if self._math is None:
            return strings_agree(self._question.truth, reply)
        return self._math.agree(self._question.truth, reply)

    def _generate(self, number: int) -> Question:
        source = random.Random(number)
        for _ in range(MAX_DRAWS):
            problem = draw_problem(
                source, max_number=self._max_number, num_steps=self._num_steps
            )
            if problem is not None and split_of(problem.key) == self._split:
                return Question(problem.question, str(problem.answer))
        raise RuntimeError(f"no problem for {self._split} in {MAX_DRAWS} draws")


def _instruction(is_generated: bool, attempts: int) -> str:
    if is_generated:
        text = "Solve the word problem. Answer with the number alone, for example 12."
    else:
        text = "Solve the problem. Answer with the final result alone, without words."
    if attempts > 1:
        text += f" You have {attempts} attempts; an early right one earns most."
    return text
