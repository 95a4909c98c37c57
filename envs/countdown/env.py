"""Countdown: an expression that uses every given number once and makes the target.

In: keys, states and indices of expressions, or their texts. Out: states, rewards, text
and exact best play. How expressions are numbered, valued and read is in
`envs.countdown.expressions`.

A level is three or four numbers and a target that some expression over them makes. An
answer is one whole expression; the player may have one attempt or several. Answers are
read by a grammar and valued by exact arithmetic; nothing is evaluated as code.

Source: the countdown task of RAGEN (arXiv 2504.20073), which keeps problems that signs
alone solve: `signs_only`.
"""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Float, Int, Key

from envs import base
from envs.base import VALIDATION_BOUND, StateFacts
from envs.countdown import expressions
from envs.countdown.expressions import LARGEST_NUMBER, OPERATORS
from envs.hashing import hash_arrays
from envs.parameters import check_flag, check_whole
from envs.templates import Choice, Number, Template

# Outcome of the last answer.
NONE, TOO_LOW, TOO_HIGH, NO_VALUE, SOLVED = range(5)
OUTCOMES = (
    "",
    "Your last answer is too low.\n",
    "Your last answer is too high.\n",
    "Your last answer divides by 0.\n",
    "Your last answer makes the target.\n",
)
SMALLEST_MAX_NUMBER = 9
LARGEST_TARGET = 9_999
# Draws of numbers and an expression per level; the first that fits is taken. 12 % fit
# by default, 6 % with four numbers and targets up to 99: no draw fits in one of 20
# million levels, or in one of 2,000.
LEVEL_TRIES = 128
# Results of first steps that a thought can state; others are "?".
STATED_RESULTS = range(-LARGEST_NUMBER, 1_000)

INSTRUCTION = (
    "Make the target. Write one expression that uses each of the given numbers exactly "
    "once, with +, -, *, / and parentheses. Division is exact: fractions may occur on "
    "the way."
)


@struct.dataclass
class EnvState(base.EnvState):
    """A level and the outcome of the last answer.

    Attributes:
      time: answers given, int32.
      numbers: to be used, each once, int32[num_numbers].
      target: number to make of them, int32.
      outcome: of the last answer, `NONE` before the first, int32.
    """

    numbers: Int[Array, " n"]
    target: Int[Array, ""]
    outcome: Int[Array, ""]


@struct.dataclass
class EnvParams(base.EnvParams):
    """Traced numbers of the game.

    Attributes:
      solved_reward: total reward of an episode that makes the target.
      numbers_reward: total reward if only the numbers were right. It is paid for the
        first answer and deducted from `solved_reward` later, so that failing first
        earns nothing.
      max_steps_in_episode: attempts.
    """

    solved_reward: float = 1.0
    numbers_reward: float = 0.1
    max_steps_in_episode: int = 1


class Countdown(base.TextEnvironment):
    """Numbers and a target. Actions: expressions, by index (see `expressions`)."""

    action_hint = (
        "An action is one expression, such as (7+5)*3, in plain numbers without an "
        "equals sign."
    )
    answer_bytes = 64
    default_params = EnvParams()

    def __init__(
        self,
        num_numbers: int = 3,
        max_number: int = 99,
        max_target: int = 99,
        signs_only: bool = False,
    ):
        """Builds the game.

        Args:
          num_numbers: how many numbers a level has, 3 or 4.
          max_number: the largest of them, 9 to 99.
          max_target: the largest target, `max_number` to 9,999.
          signs_only: levels are made with + and - alone, the easy distribution of the
            original; answers may use all four operators.

        Raises:
          ValueError: an argument is outside its range.
        """
        _check_arguments(num_numbers, max_number, max_target, signs_only)
        self.num_numbers = num_numbers
        self.max_number = max_number
        self.max_target = max_target
        self.signs_only = signs_only
        self.instruction = INSTRUCTION
        names = [f"number_{i}" for i in range(num_numbers)]
        parts = [(" ", Number(name, 1, max_number)) for name in names]
        self.template = Template(
            (
                "Target: ",
                Number("target", 1, max_target),
                "\nNumbers:",
                *(part for pair in parts for part in pair),
                "\n",
                Choice("last_answer", OUTCOMES),
            )
        )

    @property
    def num_actions(self) -> int:
        """Number of expressions: 192 over three numbers, 7,680 over four."""
        return expressions.num_expressions(self.num_numbers)

    def reset_env(
        self, key: Key[Array, ""], params: EnvParams
    ) -> tuple[Int[Array, " n_and_2"], EnvState]:
        """A new level: numbers and what some expression over them makes."""
        numbers, target = self._level(key)
        state = EnvState(
            time=jnp.int32(0), numbers=numbers, target=target, outcome=jnp.int32(NONE)
        )
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        """Takes an answer; returns (obs, state, reward, terminated, info)."""
        finished = self.is_finished(state, params)
        value = expressions.evaluate(jnp.asarray(action, jnp.int32), state.numbers)
        outcome = jnp.where(finished, state.outcome, _outcome(value, state.target))
        reward = self._reward(state, outcome == SOLVED, params)
        reward = jnp.where(finished, 0.0, reward).astype(jnp.float32)
        effective = outcome != state.outcome
        state = state.replace(
            outcome=outcome, time=jnp.where(finished, state.time, state.time + 1)
        )
        info = {"success": self.is_success(state, params), "effective": effective}
        obs = self.observe(key, state, action, params)
        return obs, state, reward, self.is_terminated(state, params), info

    def observe(self, key, state, action, params) -> Int[Array, " n_and_2"]:
        """Target, numbers, and the outcome of the last answer."""
        parts = (state.target[None], state.numbers, state.outcome[None])
        return jnp.concatenate(parts)

    def is_held_out(self, level: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Decided by the target and the set of numbers, not by their order."""
        facts = (level.target, jnp.sort(level.numbers))
        return hash_arrays(facts)[0] < jnp.uint32(VALIDATION_BOUND)

    def is_success(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the target has been made."""
        return state.outcome == SOLVED

    def read_action(self, text, size, state, params) -> Int[Array, ""]:
        """Index of the expression in a text, -1 if it is not one over these numbers.

        The grammar is that of `expressions.read_expression`.
        """
        return expressions.read_expression(text, size, state.numbers)

    @property
    def action_template(self) -> Template:
        """Numbers, and the operators and parentheses around each."""
        around, _ = expressions.writing(self.num_numbers)
        numbers = ("", *map(str, range(1, self.max_number + 1)))
        parts = []
        for i, texts in enumerate(around):
            # Options that write nothing are option 0 as well: see `action_fields`.
            parts.append(Choice(f"around_{i}", ("", *(t for t in texts if t))))
            parts.append(Choice(f"number_{i}", numbers))
        return Template(tuple(parts[:-1]))

    def action_fields(
        self, action: Int[Array, ""], state: EnvState, params: EnvParams
    ) -> dict[str, Int[Array, ""]]:
        """The expression with the fewest parentheses that keep its value."""
        around, _ = expressions.writing(self.num_numbers)
        texts, numbers = expressions.written_fields(action, state.numbers)
        fields = {f"number_{i}": number for i, number in enumerate(numbers)}
        for i, options in enumerate(around):
            # `options` are sorted: if there is an empty text it is option 0 already.
            fields[f"around_{i}"] = texts[i] + (0 if options[0] == "" else 1)
        return fields

    def text_fields(
        self, state: EnvState, params: EnvParams
    ) -> dict[str, Int[Array, ""]]:
        """Target, numbers, and the outcome of the last answer."""
        fields = {f"number_{i}": x for i, x in enumerate(state.numbers)}
        return {**fields, "target": state.target, "last_answer": state.outcome}

    def facts(self) -> StateFacts:
        """The first step of an expression that makes the target, such as 44+19=63.

        Of several expressions, that of the lowest index.
        """
        numbers = ("", *map(str, range(1, self.max_number + 1)))
        results = (*(f"={result}" for result in STATED_RESULTS), "=?")
        words = (
            Choice("first_number", numbers),
            Choice("operator", ("", *OPERATORS)),
            Choice("second_number", numbers),
            Choice("result", ("", *results)),
        )

        def read(state, params):
            values = expressions.evaluate_all(state.numbers)
            wins = _outcome(values, state.target) == SOLVED
            return _first_step_words(jnp.argmax(wins).astype(jnp.int32), state.numbers)

        return StateFacts(words, (1, 1, 1, 1), (False, False, False, True), read)

    def solve(
        self,
        states: EnvState,
        params: EnvParams,
        *,
        budget: base.PlayBudget,
        discount: float,
    ) -> base.Solution:
        """Values of all expressions, exact for any number of attempts.

        Values respect the attempts left in the episode; `best_success` also respects
        the budget. With a discount of 1 and an attempt to spare, failing first costs
        nothing: a smaller discount makes the player hurry.
        """
        is_affordable = budget.num_actions > 0
        gamma = jnp.float32(discount)

        def solve_one(state):
            finished = self.is_finished(state, params)
            wins = self._wins(state)
            # The state after any wrong answer, which of them does not matter.
            later = state.replace(outcome=jnp.int32(TOO_LOW), time=state.time + 1)
            may_retry = jnp.any(wins) & ~self.is_truncated(later, params)
            on_retry = jnp.maximum(self._reward(later, True, params), 0.0)
            retry = jnp.where(may_retry, gamma * on_retry, 0.0)
            values = self._reward(state, wins, params) + jnp.where(wins, 0.0, retry)
            can_win = jnp.any(wins) & ~finished & is_affordable
            can_win |= self.is_success(state, params)
            return jnp.where(finished, 0.0, values), can_win.astype(jnp.float32)

        action_values, best_success = jax.vmap(solve_one)(states)
        value = jnp.max(action_values, axis=1)
        return base.Solution(action_values, value, best_success)

    def fewest_actions(self, states: EnvState, params: EnvParams) -> Int[Array, " B"]:
        """1 before the target has been made."""

        def fewest(state):
            is_lost = self.is_truncated(state, params) | ~jnp.any(self._wins(state))
            to_win = jnp.where(is_lost, base.NEVER, 1)
            return jnp.where(self.is_success(state, params), 0, to_win)

        return jax.vmap(fewest)(states).astype(jnp.int32)

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """Target, numbers and outcome."""
        return spaces.Box(0, self.max_target, (self.num_numbers + 2,), jnp.int32)

    def state_space(self, params: EnvParams) -> spaces.Dict:
        """Ranges of the state's fields."""
        numbers = spaces.Box(1, self.max_number, (self.num_numbers,), jnp.int32)
        return spaces.Dict(
            {
                "time": spaces.Discrete(params.max_steps_in_episode + 1),
                "numbers": numbers,
                "target": spaces.Box(1, self.max_target, (), jnp.int32),
                "outcome": spaces.Discrete(len(OUTCOMES)),
            }
        )

    def _level(self, key: Key[Array, ""]) -> tuple[Int[Array, " n"], Int[Array, ""]]:
        """Numbers and target: the first of many draws whose target fits.

        If none fits: the last draw's numbers, reduced until their sum is a target.
        """
        n = self.num_numbers
        draws = jax.random.uniform(key, (LEVEL_TRIES, n + 1))
        numbers = 1 + (draws[:, :n] * self.max_number).astype(jnp.int32)
        indices = (draws[:, n] * self.num_actions).astype(jnp.int32)
        if self.signs_only:
            # An operator has two bits; the higher one is set for * and /.
            indices &= ~sum(2 * 4**i for i in range(n - 1))
        over, under = jax.vmap(expressions.evaluate)(indices, numbers)
        targets = over // jnp.maximum(under, 1)
        is_whole = (under > 0) & (targets * under == over)
        fits = is_whole & (targets >= 1) & (targets <= self.max_target)
        chosen = jnp.argmax(fits)
        small = (numbers[-1] - 1) % (self.max_target // n) + 1
        numbers = jnp.where(jnp.any(fits), numbers[chosen], small)
        target = jnp.where(jnp.any(fits), targets[chosen], jnp.sum(small))
        return numbers, target.astype(jnp.int32)

    def _reward(
        self, state: EnvState, wins: Bool[Array, "..."], params: EnvParams
    ) -> Float[Array, "..."]:
        """Reward of an answer in a state that is not over."""
        paid = jnp.where(state.outcome == NONE, 0.0, params.numbers_reward)
        earned = jnp.where(wins, params.solved_reward, params.numbers_reward)
        return (earned - paid).astype(jnp.float32)

    def _wins(self, state: EnvState) -> Bool[Array, " num_actions"]:
        values = expressions.evaluate_all(state.numbers)
        return _outcome(values, state.target) == SOLVED


def _outcome(value: expressions.Fraction, target: Int[Array, ""]) -> Int[Array, "..."]:
    """Outcome of an answer with this value.

    The value is rounded down and compared, since target times denominator might not fit
    int32.
    """
    numerator, denominator = value
    whole = numerator // jnp.maximum(denominator, 1)
    is_whole = whole * denominator == numerator
    outcome = jnp.where(whole < target, TOO_LOW, TOO_HIGH)
    outcome = jnp.where((whole == target) & is_whole, SOLVED, outcome)
    return jnp.where(denominator == 0, NO_VALUE, outcome).astype(jnp.int32)


def _first_step_words(index: Int[Array, ""], numbers: Int[Array, " n"]):
    left, operator, right = expressions.first_step(index, numbers)
    is_even = left % right == 0
    results = jnp.stack([left + right, left - right, left * right, left // right])
    result = results[operator] - STATED_RESULTS.start
    is_stated = (result < len(STATED_RESULTS)) & (is_even | (operator != 3))
    result = jnp.where(is_stated, result, len(STATED_RESULTS))
    words = [left, operator + 1, right, result + 1]
    return jnp.stack([jnp.asarray(word, jnp.int32) for word in words])


def _check_arguments(num_numbers, max_number, max_target, signs_only) -> None:
    if num_numbers not in expressions.TREES or not isinstance(num_numbers, int):
        raise ValueError(
            f"num_numbers={num_numbers!r} must be 3 or 4: with more numbers there are "
            "too many expressions"
        )
    check_whole("max_number", max_number, SMALLEST_MAX_NUMBER, LARGEST_NUMBER)
    check_whole("max_target", max_target, max_number, LARGEST_TARGET)
    check_flag("signs_only", signs_only)
