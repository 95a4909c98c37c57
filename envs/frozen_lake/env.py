"""FrozenLake: cross slippery ice to a goal without falling into a hole.

A level is a square board with random holes, a random start and a random goal that can
be reached. The player moves to a neighbouring tile; on slippery ice the move goes to
one of the two sides of the intended direction instead. Moves off the board stay.

Source: gymnasium's FrozenLake with RAGEN's random start and goal (arXiv 2504.20073).
The chance of going where one wants (`EnvParams.success_rate`) is 1/3 in the paper, 0.8
in its repository (the default here) and 1.0 in its training configuration.

Levels have the distribution of the reference's rejection sampling if one of
`LEVEL_TRIES` boards is accepted; else the last board is repaired (see `_level`).
"""

import functools

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Int, Key

from envs import base, bitboards
from envs.base import Landmark
from envs.board_game import BoardGame
from envs.frozen_lake import solver as frozen_lake_solver
from envs.parameters import check_whole, number

PLAYER, FROZEN, HOLE, GOAL, PLAYER_IN_HOLE, PLAYER_ON_GOAL = range(6)
# Actions in gym order; the sides of action `a` are `a - 1` and `a + 1`, modulo 4.
ACTIONS = ("Left", "Down", "Right", "Up")
# Boards drawn per level. At the default size and density 0.9 % of the boards have no
# path, so practically no level needs repair; on boards of mostly holes many do.
LEVEL_TRIES = 8


@struct.dataclass
class EnvState(base.EnvState):
    """A level and where the player is. Tiles are numbered row by row.

    Attributes:
      time: actions taken, int32.
      position: tile of the player, int32.
      start: tile the player started on, int32.
      goal: tile to reach, int32.
      holes: which tiles are holes, bool[size * size].
    """

    position: Int[Array, ""]
    start: Int[Array, ""]
    goal: Int[Array, ""]
    holes: Bool[Array, " tiles"]


@struct.dataclass
class EnvParams(base.EnvParams):
    """Traced numbers of the game.

    Attributes:
      success_rate: chance that a move goes where it is meant to; each of the two
        perpendicular directions has half of the rest.
      max_steps_in_episode: the game's own time limit, in actions.
    """

    success_rate: float = number(0.8, least=0, most=1)
    max_steps_in_episode: int = 100


class FrozenLake(BoardGame):
    """Slippery ice, holes and a goal. Actions: 0 Left, 1 Down, 2 Right, 3 Up.

    Pays 1 on reaching the goal and nothing else. The goal and the holes end the game.
    """

    action_vocabulary = ACTIONS
    default_params = EnvParams()
    rules = (
        "You are on a frozen lake. Walk to the goal and do not step into a hole. The "
        "ice may be slippery: a move can end up to the left or to the right of the "
        "direction you chose, never behind you. A move off the board leaves you where "
        "you are."
    )
    meanings = ("you", "ice", "hole", "goal", "you in a hole", "you on the goal")
    landmarks = (
        Landmark(PLAYER, (PLAYER, PLAYER_IN_HOLE, PLAYER_ON_GOAL), ("player", "you")),
        Landmark(GOAL, (GOAL, PLAYER_ON_GOAL), ("goal",)),
    )

    def __init__(
        self,
        size: int = 4,
        frozen_probability: float = 0.9,
        observation: str = "grid",
        symbols: tuple[str, ...] = ("P", "_", "O", "G", "X", "√"),
    ):
        """Builds the game.

        Args:
          size: tiles along each side of the board, at least 2.
          frozen_probability: chance that a tile is ice and not a hole, in [0, 1].
          observation: the text shows a picture ("grid"), lists of coordinates
            ("coord"), both ("grid_coord"), or coordinates of the player and steps from
            there to everything else ("relative").
          symbols: what the picture shows for the player, ice, a hole, the goal, the
            player in a hole and the player on the goal; one character each.

        Raises:
          ValueError: an argument is outside its range.
        """
        _check_arguments(size, frozen_probability)
        self.size = size
        self.frozen_probability = frozen_probability
        # Even without holes there are as many levels as pairs of start and goal.
        self.holds_out_levels = size**2 * (size**2 - 1) >= base.FEWEST_LEVELS
        super().__init__(
            rows=size,
            cols=size,
            observation=observation,
            symbols=symbols,
            marks={
                "start": ("Start", 1),
                "goal": ("Goal", 1),
                "player": ("Player", 1),
                "player_on_goal": ("Player on the goal", 1),
                "player_in_hole": ("Player in a hole", 1),
                "holes": ("Holes", size * size - 2),
            },
            player_marks=("player", "player_on_goal", "player_in_hole"),
        )

    def reset_env(
        self, key: Key[Array, ""], params: EnvParams
    ) -> tuple[Int[Array, "size size"], EnvState]:
        """A new level; the goal can be reached from the start without a hole."""
        holes, start, goal = _level(key, self.size, self.frozen_probability)
        state = EnvState(
            time=jnp.int32(0), position=start, start=start, goal=goal, holes=holes
        )
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        """Moves the player; returns (obs, state, reward, terminated, info)."""
        finished = self.is_finished(state, params)
        direction = _slip(key, jnp.asarray(action, jnp.int32), params.success_rate)
        moved = _neighbour(state.position, direction, self.size)
        position = jnp.where(finished, state.position, moved)
        effective = position != state.position
        state = state.replace(
            position=position, time=jnp.where(finished, state.time, state.time + 1)
        )
        success = self.is_success(state, params)
        reward = (success & ~finished).astype(jnp.float32)
        info = {"success": success, "effective": effective}
        obs = self.observe(key, state, action, params)
        return obs, state, reward, self.is_terminated(state, params), info

    def observe(self, key, state, action, params) -> Int[Array, "size size"]:
        """The board as ids of `symbols`; the start shows as ice once left."""
        tile = jnp.arange(self.size**2)
        is_player, is_goal = tile == state.position, tile == state.goal
        empty = jnp.where(state.holes, HOLE, jnp.where(is_goal, GOAL, FROZEN))
        occupied = jnp.where(
            state.holes, PLAYER_IN_HOLE, jnp.where(is_goal, PLAYER_ON_GOAL, PLAYER)
        )
        board = jnp.where(is_player, occupied, empty)
        return board.astype(jnp.int32).reshape(self.size, self.size)

    def is_terminated(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the player is on the goal or in a hole."""
        # A masked reduction, not a gather: gathers are slow under vmap on the CPU.
        is_player = jnp.arange(self.size**2) == state.position
        return self.is_success(state, params) | jnp.any(state.holes & is_player)

    def is_success(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the player is on the goal."""
        return state.position == state.goal

    def text_fields(
        self, state: EnvState, params: EnvParams
    ) -> dict[str, Int[Array, "size size"]]:
        """The board for the picture, one board of marks per kind of coordinates."""
        board = self.observe(None, state, None, params)
        tile = jnp.arange(self.size**2).reshape(self.size, self.size)
        marks = {
            "start": tile == state.start,
            "goal": tile == state.goal,
            "player": board == PLAYER,
            "player_on_goal": board == PLAYER_ON_GOAL,
            "player_in_hole": board == PLAYER_IN_HOLE,
            "holes": state.holes.reshape(board.shape),
        }
        return self.fields_of(board, marks)

    def budget_problem(self, budget: base.PlayBudget) -> str | None:
        """See `TextGame.budget_problem`: plans of a turn are enumerated."""
        return frozen_lake_solver.plans_problem(budget, self.size)

    def solve(
        self,
        states: EnvState,
        params: EnvParams,
        *,
        budget: base.PlayBudget,
        discount: float,
    ) -> base.Solution:
        """Value iteration, and a dynamic program under the play budget.

        The values ignore the time limit, `best_success` respects it. With a discount of
        1 detours cost nothing, and an optimal action may make no progress: give a
        smaller one to make the player hurry.
        """
        return frozen_lake_solver.solve_frozen_lake(
            states.holes.reshape(-1, self.size, self.size),
            states.goal,
            states.position,
            self.steps_left(states, params),
            success_rate=jnp.float32(params.success_rate),
            discount=jnp.float32(discount),
            budget=budget,
        )

    def fewest_actions(self, states: EnvState, params: EnvParams) -> Int[Array, " B"]:
        """Length of the shortest way around the holes."""
        return frozen_lake_solver.shortest_ways(
            states.holes.reshape(-1, self.size, self.size), states.goal, states.position
        )

    def state_space(self, params: EnvParams) -> spaces.Dict:
        """Ranges of the state's fields."""
        tiles = self.size**2
        return spaces.Dict(
            {
                "time": spaces.Discrete(params.max_steps_in_episode + 1),
                "position": spaces.Discrete(tiles),
                "start": spaces.Discrete(tiles),
                "goal": spaces.Discrete(tiles),
                "holes": spaces.Box(0, 1, (tiles,), jnp.bool_),
            }
        )


def _slip(key, action: Int[Array, ""], success_rate) -> Int[Array, ""]:
    """The direction in which a move goes, from one uniform draw."""
    draw = jax.random.uniform(key)
    to_one_side = draw < (1.0 + success_rate) / 2.0
    side = jnp.where(to_one_side, action + 3, action + 1) % 4
    return jnp.where(draw < success_rate, action, side)


def _neighbour(
    position: Int[Array, ""], direction: Int[Array, ""], size: int
) -> Int[Array, ""]:
    """The tile next to `position`; `position` itself at the edge of the board."""
    row, col = position // size, position % size
    row += jnp.where(direction == 1, 1, jnp.where(direction == 3, -1, 0))
    col += jnp.where(direction == 2, 1, jnp.where(direction == 0, -1, 0))
    return jnp.clip(row, 0, size - 1) * size + jnp.clip(col, 0, size - 1)


def _level(
    key: Key[Array, ""], size: int, frozen_probability: float
) -> tuple[Bool[Array, " tiles"], Int[Array, ""], Int[Array, ""]]:
    """Holes, start and goal, with a path from start to goal.

    Draws `LEVEL_TRIES` levels at once and takes the first that has a path: exactly the
    distribution of trying until one has. Where all fail, the last is kept and the
    holes on the way from start to goal, first along the column and then along the row,
    are frozen over. On sparse boards that never happens; on boards that are mostly
    holes it is common, and makes paths between far tiles more frequent.
    """
    tiles = size * size
    tile = jnp.arange(tiles)[None, :]
    # One draw for everything, since each call of the generator costs about the same.
    draws = jax.random.uniform(key, (LEVEL_TRIES, tiles + 2))
    start = (draws[:, tiles] * tiles).astype(jnp.int32)
    goal = (start + 1 + (draws[:, tiles + 1] * (tiles - 1)).astype(jnp.int32)) % tiles
    is_end = (tile == start[:, None]) | (tile == goal[:, None])
    holes = (draws[:, :tiles] >= frozen_probability) & ~is_end
    has_path = jax.vmap(functools.partial(_has_path, size=size))(holes, start, goal)
    chosen = jnp.where(jnp.any(has_path), jnp.argmax(has_path), LEVEL_TRIES - 1)
    holes, start, goal = holes[chosen], start[chosen], goal[chosen]
    repaired = holes & ~_elbow(start, goal, size)
    return jnp.where(jnp.any(has_path), holes, repaired), start, goal


def _has_path(
    holes: Bool[Array, " tiles"], start: Int[Array, ""], goal: Int[Array, ""], *, size
) -> Bool[Array, ""]:
    """Whether steps over ice, without slipping, lead from start to goal."""
    # A ring around the board keeps moves from wrapping into the next row.
    free = bitboards.from_mask(jnp.pad(~holes.reshape(size, size), 1))
    cols = size + 2
    start, goal = (cols * (t // size + 1) + t % size + 1 for t in (start, goal))
    reached = bitboards.flood(
        bitboards.single(start, len(free.words)),
        free,
        offsets=bitboards.neighbour_offsets(cols),
        steps=size * size,
    )
    return reached.contains(goal)


def _elbow(start: Int[Array, ""], goal: Int[Array, ""], size: int) -> Bool[Array, "t"]:
    """Tiles on the way along the start's column, then along the goal's row."""
    tile = jnp.arange(size * size)
    row, col = tile // size, tile % size

    def between(x, a, b):
        return (x >= jnp.minimum(a, b)) & (x <= jnp.maximum(a, b))

    down = (col == start % size) & between(row, start // size, goal // size)
    along = (row == goal // size) & between(col, start % size, goal % size)
    return down | along


def _check_arguments(size, frozen_probability) -> None:
    check_whole("size", size, 2, why=": start and goal need two different tiles")
    if not 0.0 <= frozen_probability <= 1.0:
        raise ValueError(
            f"frozen_probability={frozen_probability!r} must lie between 0 and 1"
        )
