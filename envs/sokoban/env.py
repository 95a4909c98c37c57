"""Sokoban: push every box onto a target.

The player walks over the floor and pushes a single box by walking into it; nothing can
be pulled, so a careless push can lose the game for good. Deterministic. Boards of any
size with any number of boxes; levels come from `envs.sokoban.levels`, exact solutions
from `envs.sokoban.solver`.

Source: gym_sokoban's rules and rewards as RAGEN uses them (arXiv 2504.20073): 6x6 with
one box, at most 100 actions.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Float, Int, Key

from envs import base
from envs.base import Landmark
from envs.board_game import BoardGame
from envs.parameters import check_whole
from envs.sokoban import solver as sokoban_solver
from envs.sokoban.levels import generate_room
from envs.sokoban.sizes import check_size, has_many_levels

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
ACTIONS = ("Up", "Down", "Left", "Right")


@struct.dataclass
class EnvState(base.EnvState):
    """A level and where everything is. Cells are numbered row by row.

    Attributes:
      time: actions taken, int32.
      walls: which cells are walls, bool[rows * cols]; the border is.
      targets: which cells are targets, bool[rows * cols].
      boxes: cell of each box, int32[num_boxes].
      player: cell of the player, int32.
    """

    walls: Bool[Array, " cells"]
    targets: Bool[Array, " cells"]
    boxes: Int[Array, " boxes"]
    player: Int[Array, ""]


@struct.dataclass
class EnvParams(base.EnvParams):
    """Traced numbers of the game.

    Attributes:
      step_reward: paid for every action, also a blocked one. Must be negative, since
        the solver takes the shortest solution for the best.
      box_reward: paid for a box pushed onto a target, deducted when it leaves one.
      solve_reward: paid on top when every box is on a target.
      max_steps_in_episode: the game's own time limit, in actions.
    """

    step_reward: float = -0.1
    box_reward: float = 1.0
    solve_reward: float = 10.0
    max_steps_in_episode: int = 100


class Sokoban(BoardGame):
    """Boxes to push onto targets. Actions: 0 Up, 1 Down, 2 Left, 3 Right.

    The game ends when every box is on a target.
    """

    hurry_discount = 1.0
    action_vocabulary = ACTIONS
    default_params = EnvParams()
    rules = (
        "You are playing Sokoban. Push every box onto a target. Walk into a box to "
        "push it: the cell behind it must be free of walls and boxes. You can push "
        "one box at a time and you cannot pull."
    )
    meanings = (
        "wall",
        "floor",
        "target",
        "box on target",
        "box",
        "you",
        "you on a target",
    )
    landmarks = (
        Landmark(PLAYER, (PLAYER, PLAYER_ON_TARGET), ("player", "you")),
        Landmark(BOX, (BOX, BOX_ON_TARGET), ("box",)),
        Landmark(TARGET, (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET), ("target", "goal")),
    )

    def __init__(
        self,
        rows: int = 6,
        cols: int = 6,
        num_boxes: int = 1,
        observation: str = "grid",
        symbols: tuple[str, ...] = ("#", "_", "O", "√", "X", "P", "S"),
    ):
        """Builds the game.

        Args:
          rows, cols: size of the board in cells, the wall around it included.
          num_boxes: boxes, and as many targets.
          observation: the text shows a picture ("grid"), lists of coordinates
            ("coord"), both ("grid_coord"), or coordinates of the player and steps from
            there to everything else ("relative").
          symbols: characters for wall, floor, target, box on target, box, player and
            player on target, one each.

        Raises:
          ValueError: an argument is outside its range.
        """
        sizes = {"rows": rows, "cols": cols, "num_boxes": num_boxes}
        for name, value in sizes.items():
            check_whole(name, value, 1)
        check_size(rows, cols, num_boxes)
        self.rows = rows
        self.cols = cols
        self.num_boxes = num_boxes
        self.holds_out_levels = has_many_levels(rows, cols, num_boxes)
        super().__init__(
            rows=rows,
            cols=cols,
            observation=observation,
            symbols=symbols,
            border=WALL,
            marks={
                "targets": ("Targets", num_boxes),
                "boxes": ("Boxes", num_boxes),
                "boxes_on_target": ("Boxes on target", num_boxes),
                "player": ("Player", 1),
                "player_on_target": ("Player on target", 1),
            },
            player_marks=("player", "player_on_target"),
        )

    def reset_env(
        self, key: Key[Array, ""], params: EnvParams
    ) -> tuple[Int[Array, "rows cols"], EnvState]:
        """A new level, solvable and not solved."""
        room = generate_room(
            key, rows=self.rows, cols=self.cols, num_boxes=self.num_boxes
        )
        state = EnvState(
            time=jnp.int32(0),
            walls=room.walls.reshape(-1),
            targets=room.targets.reshape(-1),
            boxes=room.boxes,
            player=room.player,
        )
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        """Walks or pushes; returns (obs, state, reward, terminated, info)."""
        covered = _num_covered(state)
        solved = covered == self.num_boxes
        finished = solved | self.is_truncated(state, params)
        ahead, beyond = _cells_ahead(state.player, action, self.cols)
        pushed = state.boxes == ahead
        is_push = pushed.any()
        way = jnp.where(is_push, beyond, ahead)
        blocked = state.walls[way] | (is_push & (state.boxes == beyond).any())
        effective = ~(finished | blocked)
        next_state = state.replace(
            time=jnp.where(finished, state.time, state.time + 1),
            boxes=jnp.where(effective & pushed, beyond, state.boxes),
            player=jnp.where(effective, ahead, state.player),
        )
        next_covered = _num_covered(next_state)
        success = next_covered == self.num_boxes
        gain = (next_covered - covered).astype(jnp.float32)
        reward = params.step_reward + params.box_reward * gain
        reward += jnp.where(success, params.solve_reward, 0.0)
        reward = jnp.where(finished, 0.0, reward).astype(jnp.float32)
        info = {"success": success, "effective": effective}
        obs = self.observe(key, next_state, action, params)
        return obs, next_state, reward, success, info

    def observe(self, key, state, action, params) -> Int[Array, "rows cols"]:
        """The board as ids of `symbols`."""
        cells = jnp.arange(self.rows * self.cols)
        is_box = (cells[:, None] == state.boxes[None, :]).any(axis=1)
        is_player = cells == state.player
        on_floor = jnp.where(is_player, PLAYER, jnp.where(is_box, BOX, FLOOR))
        on_target = jnp.where(
            is_player, PLAYER_ON_TARGET, jnp.where(is_box, BOX_ON_TARGET, TARGET)
        )
        board = jnp.where(state.targets, on_target, on_floor)
        board = jnp.where(state.walls, WALL, board).astype(jnp.int32)
        return board.reshape(self.rows, self.cols)

    def is_success(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether every box is on a target."""
        return _num_covered(state) == self.num_boxes

    def text_fields(
        self, state: EnvState, params: EnvParams
    ) -> dict[str, Int[Array, "rows cols"]]:
        """The board for the picture, one board of marks per kind of coordinates."""
        board = self.observe(None, state, None, params)
        marks = {
            "targets": state.targets.reshape(board.shape),
            "boxes": board == BOX,
            "boxes_on_target": board == BOX_ON_TARGET,
            "player": board == PLAYER,
            "player_on_target": board == PLAYER_ON_TARGET,
        }
        return self.fields_of(board, marks)

    def solve(
        self,
        states: EnvState,
        params: EnvParams,
        *,
        budget: base.PlayBudget,
        discount: float,
    ) -> base.Solution:
        """Shortest solutions and their returns.

        The values ignore the time limit, `best_success` respects it; those of finished
        states are 0. Needs a negative step reward (else detours would pay) and, with
        several boxes, a discount of 1: how a discount weighs the boxes depends on the
        order in which they reach their targets.

        Raises:
          ValueError: a discount with several boxes, or more boxes and floor than the
            host can search.
        """
        if self.num_boxes > 1 and discount != 1.0:
            raise ValueError(
                f"discount={discount} with num_boxes={self.num_boxes}: exact values of "
                "several boxes need discount=1.0"
            )
        return _solution(
            self.action_distances(states),
            states,
            params,
            np.float32(discount),
            np.int32(budget.num_actions),
        )

    def action_distances(self, states: EnvState) -> Int[Array, "B 4"]:
        """Length of the shortest solution that begins with each action.

        `base.NEVER` if there is none; 0 when the level is solved. Call it outside
        `jit`, like `solve`; inside, with one box, `vmap`
        `sokoban_solver.action_distances`.
        """
        shape = (-1, self.rows, self.cols)
        if self.num_boxes == 1:
            return _batched_distances(states, shape)
        walls, targets = states.walls.reshape(shape), states.targets.reshape(shape)
        arrays = (walls, targets, states.boxes, states.player)
        return jnp.asarray(
            sokoban_solver.host_action_distances(*map(np.asarray, arrays))
        )

    def shortest_solution_length(self, states: EnvState) -> Int[Array, " B"]:
        """Actions of the shortest solution of each state (leading axis `B`)."""
        return self.action_distances(states).min(axis=1)

    def fewest_actions(self, states: EnvState, params: EnvParams) -> Int[Array, " B"]:
        """Actions of the shortest solution of each state."""
        return self.shortest_solution_length(states)

    @property
    def solves_on_device(self) -> bool:
        """Whether the search is an array program; with several boxes it is not."""
        return self.num_boxes == 1

    def state_space(self, params: EnvParams) -> spaces.Dict:
        """Ranges of the state's fields."""
        cells = self.rows * self.cols
        return spaces.Dict(
            {
                "time": spaces.Discrete(params.max_steps_in_episode + 1),
                "walls": spaces.Box(0, 1, (cells,), jnp.bool_),
                "targets": spaces.Box(0, 1, (cells,), jnp.bool_),
                "boxes": spaces.Box(0, cells - 1, (self.num_boxes,), jnp.int32),
                "player": spaces.Discrete(cells),
            }
        )


def _num_covered(state: EnvState) -> Int[Array, ""]:
    return state.targets[state.boxes].sum(dtype=jnp.int32)


def _cells_ahead(player, action, cols: int):
    """The cell the player would enter, and the one after it."""
    action = jnp.asarray(action, jnp.int32)
    # Arithmetic in place of a table: gathers are slow.
    step = jnp.where(action < 2, (2 * action - 1) * cols, 2 * action - 5)
    return player + step, player + 2 * step


def _action_values(
    distances: Int[Array, "B 4"],
    uncovered: Int[Array, " B"],
    params: EnvParams,
    discount: Float[Array, ""],
) -> Float[Array, "B 4"]:
    """Return of the shortest solutions: cost of the actions, boxes and solution.

    A solution pays each uncovered box once in total, even after detours. With a
    discount (one box only) the box pays together with the solution, at the last action.
    """
    solvable = distances < base.NEVER
    actions = jnp.where(solvable, distances, 0).astype(jnp.float32)
    last = discount ** jnp.maximum(actions - 1.0, 0.0)
    is_discounted = discount < 1.0
    divisor = jnp.where(is_discounted, 1.0 - discount, 1.0)
    costs = jnp.where(is_discounted, (1.0 - discount**actions) / divisor, actions)
    uncovered = uncovered.astype(jnp.float32)
    prize = params.box_reward * uncovered + params.solve_reward
    values = params.step_reward * costs + prize[:, None] * last
    return jnp.where(solvable, values, -jnp.inf)


@functools.partial(jax.jit, static_argnums=1)
def _batched_distances(
    states: EnvState, shape: tuple[int, int, int]
) -> Int[Array, "B 4"]:
    """Action distances of states with one box on boards of this shape."""
    target = jnp.argmax(states.targets, axis=1).astype(jnp.int32)
    search = jax.vmap(sokoban_solver.action_distances)
    walls = states.walls.reshape(shape)
    return search(walls, target, states.boxes[:, 0], states.player)


# One program: each of the steps would be compiled by itself otherwise.
@jax.jit
def _solution(
    distances: Int[Array, "B 4"],
    states: EnvState,
    params: EnvParams,
    discount: Float[Array, ""],
    num_actions: Int[Array, ""],
) -> base.Solution:
    """What `Sokoban.solve` returns, from the action distances of the states."""
    num_boxes, steps_left = states.boxes.shape[1], Sokoban.steps_left(states, params)
    covered = jax.vmap(_num_covered)(states)
    finished = (covered == num_boxes) | (steps_left == 0)
    values = _action_values(distances, num_boxes - covered, params, discount)
    values = jnp.where(finished[:, None], 0.0, values)
    can_win = distances.min(axis=1) <= jnp.minimum(steps_left, num_actions)
    return base.Solution(
        action_values=values,
        value=values.max(axis=1),
        best_success=can_win.astype(jnp.float32),
    )
