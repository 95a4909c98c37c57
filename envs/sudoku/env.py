"""Sudoku: fill a grid so that no row, column or box has a digit twice.

In: keys, states and placements, or their texts. Out: states, rewards, text and exact
best play. Grids and givens are made in `envs.sudoku.levels`, texts read in
`envs.sudoku.answers`.

Every level has one solution, and it can be found by singles alone, without guessing. A
player may overwrite its own digits, so no mistake is final; a cell pays for its first
digit only.

Source: the Sudoku task of RAGEN, with its rewards. Unlike there a level has a unique
solution, invalid moves count as steps, and a cell pays once: otherwise overwriting it
again and again would pay.
"""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Float, Int, Key

from envs import base
from envs.parameters import check_order, check_whole, number
from envs.sudoku import answers as sudoku_answers
from envs.sudoku.levels import MOST_BLANKS, in_sight, sample_level, side_of_box
from envs.templates import Choice, Grid, Template


@struct.dataclass
class EnvState(base.EnvState):
    """A level and the digits in its cells. Axis `n`: rows and columns.

    Attributes:
      time: actions taken, int32.
      board: digits, 0 where a cell is empty, int32[n, n].
      givens: cells given by the level, which cannot change, bool[n, n].
      solution: the only solution, int32[n, n].
    """

    board: Int[Array, "n n"]
    givens: Bool[Array, "n n"]
    solution: Int[Array, "n n"]


@struct.dataclass
class EnvParams(base.EnvParams):
    """Traced numbers of the game.

    Attributes:
      correct_reward: for the first digit in a cell if the solution has it there.
      legal_reward: for another first digit in a cell; at most `correct_reward`.
      solved_reward: for the solution, in addition.
      invalid_reward: for a digit on or against a given one.
      max_steps_in_episode: the game's own time limit, in actions.
    """

    correct_reward: float = number(1.0, least=0)
    legal_reward: float = number(0.5, least=0)
    solved_reward: float = number(10.0, least=0)
    invalid_reward: float = number(-0.1, most=0)
    max_steps_in_episode: int = 100


class Sudoku(base.TextEnvironment):
    """A grid to fill. Action `(row * n + col) * n + digit - 1` places a digit.

    A digit is refused in a cell of the level, and where the level has it in the same
    row, column or box. Everything else is placed.
    """

    action_hint = (
        "An action is row,column,digit, counted from 1: 2,3,4 places a 4 in row 2, "
        "column 3."
    )
    answer_bytes = 64
    default_params = EnvParams()

    def __init__(self, size: int = 4, min_blanks: int = 4, max_blanks: int = 8):
        """Builds the game.

        Args:
          size: digits, and cells along a side: 4 or 9.
          min_blanks, max_blanks: range of the number of empty cells, all numbers being
            equally likely; at most 12 of the 16 cells, or 50 of the 81.

        Raises:
          ValueError: an argument is outside its range.
        """
        _check_arguments(size, min_blanks, max_blanks)
        self.size = size
        self.min_blanks = min_blanks
        self.max_blanks = max_blanks
        digits = tuple(map(str, range(1, size + 1)))
        self.symbols = (".", *digits)
        side = side_of_box(size)
        self.instruction = (
            f"Fill the grid with the digits 1 to {size} so that every row, every "
            f"column and every {side}x{side} box has each digit once. There is exactly "
            "one way to do it. Digits that are given at the start stay, and no digit "
            "can be placed against them; digits of yours can be overwritten.\n"
            f"Symbols: . empty, {' '.join(digits)} digits."
        )
        meanings = ("empty", *digits)
        picture = Grid("board", self.symbols, size, size, meanings=meanings)
        self.template = Template((picture,))

    @property
    def num_actions(self) -> int:
        """A digit in a cell."""
        return self.size**3

    def reset_env(
        self, key: Key[Array, ""], params: EnvParams
    ) -> tuple[Int[Array, "n n"], EnvState]:
        """A new level; its solution is unique and found by singles."""
        blanks_key, level_key = jax.random.split(key)
        num_blanks = jax.random.randint(
            blanks_key, (), self.min_blanks, self.max_blanks + 1, jnp.int32
        )
        solution, givens = sample_level(level_key, self.size, num_blanks)
        board = jnp.where(givens, solution, 0)
        state = EnvState(
            time=jnp.int32(0), board=board, givens=givens, solution=solution
        )
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        """Places a digit; returns (obs, state, reward, terminated, info)."""
        finished = self.is_finished(state, params)
        is_cell, digit = self._placement(jnp.asarray(action, jnp.int32))
        is_refused = _is_refused(state, is_cell, digit)
        board = jnp.where(is_cell & ~(is_refused | finished), digit, state.board)
        is_first = jnp.any(is_cell & (state.board == 0))
        is_correct = jnp.any(is_cell & (state.solution == digit))
        paid = jnp.where(is_correct, params.correct_reward, params.legal_reward)
        paid = jnp.where(is_first, paid, 0.0)
        effective = jnp.any(board != state.board)
        state = state.replace(
            board=board, time=jnp.where(finished, state.time, state.time + 1)
        )
        success = self.is_success(state, params)
        paid = paid + jnp.where(success, params.solved_reward, 0.0)
        reward = jnp.where(is_refused, params.invalid_reward, paid)
        reward = jnp.where(finished, 0.0, reward).astype(jnp.float32)
        info = {"success": success, "effective": effective}
        obs = self.observe(key, state, action, params)
        return obs, state, reward, self.is_terminated(state, params), info

    def observe(self, key, state, action, params) -> Int[Array, "n n"]:
        """The digits, 0 where a cell is empty."""
        return state.board

    def is_success(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the grid is solved."""
        return jnp.all(state.board == state.solution)

    def read_action(self, text, size, state, params) -> Int[Array, ""]:
        """The placement that a text asks for, whether or not it will be refused.

        The grammar is that of `sudoku_answers.read_placement`.
        """
        row, col, digit = sudoku_answers.read_placement(text, size)
        n = self.size
        is_fine = (jnp.minimum(jnp.minimum(row, col), digit) >= 1) & (
            jnp.maximum(jnp.maximum(row, col), digit) <= n
        )
        action = ((row - 1) * n + col - 1) * n + digit - 1
        return jnp.where(is_fine, action, -1).astype(jnp.int32)

    @property
    def action_template(self) -> Template:
        """Row, column and digit, such as 2,3,4."""
        numbers = tuple(map(str, range(1, self.size + 1)))
        return Template(_placement_words(numbers))

    def action_fields(
        self, action: Int[Array, ""], state: EnvState, params: EnvParams
    ) -> dict[str, Int[Array, ""]]:
        """Row, column and digit, from 1."""
        n = self.size
        places = {"row": action // (n * n), "col": action // n % n, "digit": action % n}
        return {name: 1 + jnp.asarray(x, jnp.int32) for name, x in places.items()}

    def facts(self) -> base.StateFacts:
        """The solved board, row by row, each after its letter: "a3421b2134" and so on.

        The letters mark the rows, in which an answer has to look digits up.
        """

        def read(state, params):
            return state.solution.reshape(-1)

        digits = tuple(map(str, range(1, self.size + 1)))
        words = []
        for i in range(self.size**2):
            row, col = divmod(i, self.size)
            letter = "" if col else "abcdefghi"[row]
            words.append(Choice(f"cell_{i}", ("", *(letter + d for d in digits))))
        is_first_row = tuple(i < self.size for i in range(self.size**2))
        return base.StateFacts(tuple(words), (1,) * len(words), is_first_row, read)

    def params_problem(self, params: EnvParams) -> str | None:
        """Also refuses a wrong digit that pays more than the right one: see `solve`."""
        problem = super().params_problem(params)
        if problem is None and params.legal_reward > params.correct_reward:
            problem = (
                f"legal_reward = {params.legal_reward!r}; it must be at most "
                f"correct_reward = {params.correct_reward!r}"
            )
        return problem

    def solve(
        self,
        states: EnvState,
        params: EnvParams,
        *,
        budget: base.PlayBudget,
        discount: float,
    ) -> base.Solution:
        """Best play: fill what is empty, then correct what is wrong.

        Exact within the ranges of `EnvParams`. The values ignore the time limit,
        `best_success` respects it. With a discount of 1 detours cost nothing: a smaller
        one makes the player hurry.
        """

        def solve_one(state):
            values = self._action_values(state, params, jnp.float32(discount))
            finished = self.is_finished(state, params)
            left = jnp.minimum(budget.num_actions, self.steps_left(state, params))
            can_win = self._num_missing(state) <= left
            values = jnp.where(finished, 0.0, values)
            return values, can_win.astype(jnp.float32)

        action_values, best_success = jax.vmap(solve_one)(states)
        value = jnp.max(action_values, axis=1)
        return base.Solution(action_values, value, best_success)

    def fewest_actions(self, states: EnvState, params: EnvParams) -> Int[Array, " B"]:
        """Cells that are empty or wrong; `NEVER` where time is too short for them."""

        def fewest(state):
            missing = self._num_missing(state)
            is_late = missing > self.steps_left(state, params)
            return jnp.where(is_late, base.NEVER, missing)

        return jax.vmap(fewest)(states).astype(jnp.int32)

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """Boards of digits."""
        return spaces.Box(0, self.size, (self.size,) * 2, jnp.int32)

    def state_space(self, params: EnvParams) -> spaces.Dict:
        """Ranges of the state's fields."""
        shape = (self.size,) * 2
        return spaces.Dict(
            {
                "time": spaces.Discrete(params.max_steps_in_episode + 1),
                "board": spaces.Box(0, self.size, shape, jnp.int32),
                "givens": spaces.Box(0, 1, shape, jnp.bool_),
                "solution": spaces.Box(1, self.size, shape, jnp.int32),
            }
        )

    def _placement(
        self, action: Int[Array, ""]
    ) -> tuple[Bool[Array, "n n"], Int[Array, ""]]:
        """The cell, marked, and the digit of an action."""
        cells = jnp.arange(self.size**2, dtype=jnp.int32)
        is_cell = (cells == action // self.size).reshape(self.size, self.size)
        return is_cell, action % self.size + 1

    def _is_digit(self, board: Int[Array, "n n"]) -> Bool[Array, "n n digits"]:
        digits = jnp.arange(1, self.size + 1, dtype=jnp.int32)
        return board[..., None] == digits[None, None, :]

    def _num_missing(self, state: EnvState) -> Int[Array, ""]:
        return jnp.sum(state.board != state.solution, dtype=jnp.int32)

    def _action_values(
        self, state: EnvState, params: EnvParams, discount: Float[Array, ""]
    ) -> Float[Array, " num_actions"]:
        """Return of each action with best play after it, in a state that is not over.

        The number of empty and of wrong cells decides: `values` has best play's return
        for both.
        """
        is_empty = state.board == 0
        is_wrong = (state.board != state.solution) & ~is_empty
        num_empty, num_wrong = (
            jnp.sum(cells, dtype=jnp.int32) for cells in (is_empty, is_wrong)
        )
        values = self._values(params, discount)
        against = self._is_digit(jnp.where(state.givens, state.board, 0))
        is_refused = state.givens[..., None] | jax.vmap(in_sight, -1, -1)(against)
        is_correct = self._is_digit(state.solution)
        paid = jnp.where(is_correct, params.correct_reward, params.legal_reward)
        empty, wrong = (
            cells.astype(jnp.int32)[..., None] for cells in (is_empty, is_wrong)
        )
        empty_after = num_empty - empty
        wrong_after = num_wrong - wrong + (~is_correct).astype(jnp.int32)
        later = discount * values[empty_after, wrong_after]
        later = jnp.where(empty_after + wrong_after == 0, params.solved_reward, later)
        placed = jnp.where(is_empty[..., None], paid, 0.0) + later
        refused = params.invalid_reward + discount * values[num_empty, num_wrong]
        action_values = jnp.where(is_refused, refused, placed)
        return action_values.astype(jnp.float32).reshape(-1)

    def _values(
        self, params: EnvParams, discount: Float[Array, ""]
    ) -> Float[Array, "empty wrong"]:
        """Return of best play by the numbers of empty and of wrong cells.

        Empty cells are filled first, since they pay; the last action solves. 0 with
        neither.
        """
        count = jnp.arange(self.size**2 + 1, dtype=jnp.int32)
        powers = discount ** count.astype(jnp.float32)
        filled = jnp.cumsum(powers) - powers
        missing = count[:, None] + count[None, :]
        last = jnp.where(
            missing > 0, discount ** (missing - 1).astype(jnp.float32), 0.0
        )
        return params.correct_reward * filled[:, None] + params.solved_reward * last


def _is_refused(
    state: EnvState, is_cell: Bool[Array, "n n"], digit: Int[Array, ""]
) -> Bool[Array, ""]:
    """Whether the cell is given, or has the digit given in its row, column or box."""
    stands = in_sight(is_cell) & (state.board == digit)
    return jnp.any(state.givens & (is_cell | stands))


def _placement_words(numbers: tuple[str, ...]) -> tuple[Choice, ...]:
    later = ("", *(f",{number}" for number in numbers))
    row, col = Choice("row", ("", *numbers)), Choice("col", later)
    return row, col, Choice("digit", later)


def _check_arguments(size, min_blanks, max_blanks) -> None:
    if not isinstance(size, int) or size not in MOST_BLANKS:
        raise ValueError(f"size={size!r} must be 4 or 9 digits")
    why = (
        ": with more empty cells than that the generator cannot promise one solution "
        f"on {size}x{size}"
    )
    check_whole("min_blanks", min_blanks, 1, MOST_BLANKS[size], why=why)
    check_whole("max_blanks", max_blanks, 1, MOST_BLANKS[size], why=why)
    check_order("min_blanks", min_blanks, "max_blanks", max_blanks)
