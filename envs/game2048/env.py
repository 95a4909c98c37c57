"""2048: slide tiles that merge in pairs until one reaches the goal.

A level is an empty board with two tiles. Every slide moves all tiles as far as they go
and merges pairs, each tile once; if it changed the board a tile appears in a random
cell. The game is won with the goal tile and lost when no slide changes anything.

Source: the 2048 game of RAGEN's repository (arXiv 2504.20073), with its rewards. Unlike
there, boards can be small, the goal ends the game, and the penalty of a slide that
changes nothing is paid.
"""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Int, Key

from envs import base
from envs.game2048 import player as game2048_player
from envs.game2048 import slides
from envs.game2048 import solver as game2048_solver
from envs.parameters import number
from envs.templates import Choice, Grid, Template

# In the order of `slides`.
ACTIONS = ("Up", "Right", "Down", "Left")
SIZES = (2, 3, 4)


@struct.dataclass
class EnvState(base.EnvState):
    """A board.

    Attributes:
      time: slides made, int32.
      board: exponents, 0 for an empty cell and 3 for a tile of 8, int32[size, size].
    """

    board: Int[Array, "size size"]


@struct.dataclass
class EnvParams(base.EnvParams):
    """Traced numbers of the game.

    Attributes:
      two_probability: chance that a new tile is a 2; else it is a 4.
      idle_reward: reward of a slide that changes nothing; not above 0.
      goal_reward: extra reward for the goal tile. Without it best play delays the win,
        since merging pays until then, and often loses: with the goal 64 it wins 44 % of
        its games, 96 % with a reward of 5 and 99 % with 10.
      max_steps_in_episode: the game's own time limit, in slides.
    """

    two_probability: float = number(0.9, least=0, most=1)
    idle_reward: float = number(-0.1, most=0)
    goal_reward: float = 0.0
    max_steps_in_episode: int = 1000


class Game2048(base.TextEnvironment):
    """2048 on a small board. Actions: 0 Up, 1 Right, 2 Down, 3 Left.

    A slide that merges tiles pays 0.1 * log2(1 + sum of the new tiles), one that
    changes nothing `idle_reward`, others 0. The goal tile pays `goal_reward` more and
    ends the game, and so does a board on which no slide changes anything.
    """

    action_vocabulary = ACTIONS
    default_params = EnvParams()

    def __init__(self, size: int = 3, goal: int = 32):
        """Builds the game.

        Args:
          size: rows and columns of the board, 2 to 4.
          goal: the tile to reach, a power of two from 8 to the largest that fits.

        Raises:
          ValueError: an argument is outside its range.
        """
        _check_arguments(size, goal)
        self.size = size
        self.goal = goal.bit_length() - 1
        is_small = game2048_solver.is_small(size, self.goal)
        self.solves = base.EXACT if is_small else base.REFERENCE
        # Two tiles, of two kinds each.
        num_levels = 2 * size**2 * (size**2 - 1)
        self.holds_out_levels = num_levels >= base.FEWEST_LEVELS
        numbers = tuple(str(2**i) for i in range(1, self.goal + 1))
        self.instruction = _instruction(size, numbers)
        meanings = ("empty cell", *(f"tile of {number}" for number in numbers))
        board = Grid(
            "board", (".", *numbers), size, size, meanings=meanings, separator=" "
        )
        # As in RAGEN: idle slides are the most common mistake.
        valid = (Choice(name, ("", f" {name}")) for name in ACTIONS)
        self.template = Template((board, "Valid:", *valid, "\n"))

    def reset_env(
        self, key: Key[Array, ""], params: EnvParams
    ) -> tuple[Int[Array, "size size"], EnvState]:
        """Two tiles in random cells."""
        board = jnp.zeros((self.size, self.size), jnp.int32)
        for tile_key in jax.random.split(key):
            board = slides.add_tile(tile_key, board, params.two_probability)
        state = EnvState(time=jnp.int32(0), board=board)
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        """Slides the tiles; returns (obs, state, reward, terminated, info)."""
        finished = self.is_finished(state, params)
        board, merged = slides.slide(state.board, jnp.asarray(action, jnp.int32))
        effective = jnp.any(board != state.board) & ~finished
        board = slides.add_tile(key, board, params.two_probability)
        pays = jnp.where(
            effective, game2048_solver.merge_reward(merged), params.idle_reward
        )
        state = state.replace(
            board=jnp.where(effective, board, state.board),
            time=jnp.where(finished, state.time, state.time + 1),
        )
        success = self.is_success(state, params)
        pays += jnp.where(success, params.goal_reward, 0.0)
        reward = jnp.where(finished, 0.0, pays).astype(jnp.float32)
        info = {"success": success, "effective": effective}
        obs = self.observe(key, state, action, params)
        return obs, state, reward, self.is_terminated(state, params), info

    def observe(self, key, state, action, params) -> Int[Array, "size size"]:
        """The exponents."""
        return state.board

    def is_terminated(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the goal is reached or no slide changes anything."""
        return self.is_success(state, params) | ~slides.can_slide(state.board)

    def is_success(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the board has the goal tile."""
        return jnp.any(state.board == self.goal)

    def text_fields(self, state: EnvState, params: EnvParams) -> dict[str, Array]:
        """The board, and for each direction whether its slide changes it."""
        effects = _effects(state.board)
        changes = {
            name: (effects[i] > 1).astype(jnp.int32) for i, name in enumerate(ACTIONS)
        }
        return {"board": state.board} | changes

    def facts(self) -> base.StateFacts:
        """The effect of each slide: it changes nothing, moves tiles or merges some."""

        def read(state, params):
            return _effects(state.board)

        words = tuple(
            Choice(name, ("", *(f" {name}{sign}" for sign in "-.+")))
            for name in ACTIONS
        )
        is_up = (True, False, False, False)
        return base.StateFacts(words, (1,) * len(words), is_up, read)

    def solve(
        self,
        states: EnvState,
        params: EnvParams,
        *,
        budget: base.PlayBudget,
        discount: float,
    ) -> base.Solution:
        """Best play that sees every board, or that of a reference player.

        Exact (`solves`) on boards small enough for a table: of size 2, and of size 3 up
        to the goal 64. The table of a discount is made once per process, in a second
        for the goal 32 and five for 64; `best_success` takes a sweep over all boards
        for each allowed action, 0.02 and 0.1 seconds. The values ignore the time limit,
        `best_success` respects it; both assume turns of one action.

        On larger boards the values are ratings of `game2048_player`, and `best_success`
        is how often that player wins, estimated from a few games with fixed keys.
        `params` and `discount` must be known when a program that calls this is traced.
        """
        solver = (
            game2048_solver.solve_small
            if self.solves == base.EXACT
            else game2048_player.rate
        )
        return solver(
            states.board,
            jax.vmap(self.is_finished, in_axes=(0, None))(states, params),
            jnp.minimum(self.steps_left(states, params), budget.num_actions),
            goal=self.goal,
            two_probability=params.two_probability,
            idle_reward=params.idle_reward,
            goal_reward=params.goal_reward,
            discount=discount,
        )

    def fewest_actions(self, states: EnvState, params: EnvParams) -> Int[Array, " B"]:
        """Slides of the luckiest win; on boards without a table, a lower bound."""
        if self.solves == base.EXACT:
            fewest = game2048_solver.fewest_slides(states.board, self.goal)
        else:
            fewest = _fewest_by_sum(states.board, self.goal)
        won = jax.vmap(self.is_success, in_axes=(0, None))(states, params)
        over = jax.vmap(self.is_terminated, in_axes=(0, None))(states, params)
        is_late = fewest > self.steps_left(states, params)
        return jnp.where(won, 0, jnp.where(over | is_late, base.NEVER, fewest))

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """Boards of exponents."""
        return spaces.Box(0, self.goal, (self.size, self.size), jnp.int32)

    def state_space(self, params: EnvParams) -> spaces.Dict:
        """Ranges of the state's fields."""
        return spaces.Dict(
            {
                "time": spaces.Discrete(params.max_steps_in_episode + 1),
                "board": self.observation_space(params),
            }
        )


def _effects(board: Int[Array, "size size"]) -> Int[Array, "4"]:
    """Effect of each slide: 1 changes nothing, 2 moves tiles, 3 merges some."""

    def effect(action):
        slid, merged = slides.slide(board, action)
        return jnp.where(merged > 0, 3, jnp.where(jnp.any(slid != board), 2, 1))

    return jax.vmap(effect)(jnp.arange(len(ACTIONS), dtype=jnp.int32))


def _instruction(size: int, numbers: tuple[str, ...]) -> str:
    *others, goal = numbers
    return (
        f"You play 2048 on a board of {size} rows and {size} columns. Up, Right, Down "
        "or Left slides all tiles in that direction as far as they go. Two tiles of "
        "the same number that meet merge into one of twice the number; a tile merges "
        "once per move, and those closest to the edge merge first. After a move that "
        "changes the board a new tile appears in a random empty cell, mostly a 2 and "
        "sometimes a 4; a move that changes nothing costs a little. You win with a "
        f"tile of {goal} and lose when no move changes the board. The line below the "
        "board lists the moves that change it.\n"
        f"Symbols: . is an empty cell, {', '.join(others)} and {goal} are tiles."
    )


def _fewest_by_sum(boards: Int[Array, "B n n"], goal: int) -> Int[Array, " B"]:
    """Lower bound: each slide adds at most 4, and the last tile added cannot help."""
    tiles = jnp.where(boards > 0, jnp.int32(1) << boards, 0)
    missing = jnp.maximum((1 << goal) - jnp.sum(tiles, axis=(1, 2)), 0)
    return 1 + (missing + 3) // 4


def _check_arguments(size, goal) -> None:
    if isinstance(size, bool) or size not in SIZES:
        raise ValueError(
            f"size={size!r} must be one of {', '.join(map(str, SIZES))}: the rows and "
            "columns of the board"
        )
    # A full board of 4, 4, 8, 16, ... makes its largest tile.
    largest = 2 ** (size * size + 1)
    is_whole = isinstance(goal, int) and not isinstance(goal, bool)
    if not is_whole or goal.bit_count() != 1 or not 8 <= goal <= largest:
        raise ValueError(
            f"goal={goal!r} must be a power of two from 8 to {largest}, the largest "
            f"tile possible on a board of size {size}"
        )
