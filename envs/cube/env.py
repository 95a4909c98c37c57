"""The 2x2x2 cube: turn its faces until each shows one colour.

A level is a cube a few quarter turns from solved, in any orientation. A turn is a
quarter turn of one face. The orientation of the whole cube does not matter, so turning
a face one way and the opposite face the other way have the same effect.

Source: the Rubik's cube game of RAGEN's repository (arXiv 2504.20073), with its order
of stickers and turns. Unlike there, levels are drawn at a distance and not by random
turns, which leave many of them solved, and turns of the back are those of a real cube.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from envs import base
from envs.board_game import BoardGame
from envs.cube import tables as cube_tables
from envs.parameters import check_order, check_whole
from envs.templates import Choice

# Levels at a distance with at most this many states are taken from a list. At others
# they are found by trial: even 90,280 at distance 13, the fewest, are 2.5 % of all
# states.
MAX_LISTED = 40_000
# States drawn per trial: one of those 2.5 % is among them half of the time.
TRIES_AT_ONCE = 32


@struct.dataclass
class EnvState(base.EnvState):
    """A cube.

    Attributes:
      time: turns made, int32.
      stickers: colour of each sticker, 0 to 5, int32[24]; by face (U, L, F, R, B, D)
        and each face row by row as one looks at it.
    """

    stickers: Int[Array, "24"]


@struct.dataclass
class EnvParams(base.EnvParams):
    """Traced numbers of the game.

    Attributes:
      solved_reward: what solving the cube pays.
      max_steps_in_episode: the game's own time limit, in turns.
    """

    solved_reward: float = 1.0
    max_steps_in_episode: int = 20


class Cube2x2(BoardGame):
    """The 2x2x2 cube. Actions: the quarter turns U, U', D, D', L, L', R, R', ..., B'.

    Pays `solved_reward` when every face shows one colour, which ends the game, and
    nothing else.
    """

    action_vocabulary = cube_tables.TURNS
    default_params = EnvParams()
    rules = (
        "You hold a cube of 2x2x2 small cubes. Turn its faces until every face shows "
        "one color; how the whole cube is held does not matter. The state has six "
        "lines, one for each face: up, left, front, right, back, down. A line names "
        "the four stickers of the face, row by row as you look straight at it; up is "
        "seen with the front below it, down with the front above it. U turns the up "
        "face a quarter clockwise, seen from outside, and U' turns it back; so do D "
        "for down, L for left, R for right, F for front and B for back."
    )
    meanings = ("white", "orange", "green", "red", "blue", "yellow")

    def __init__(
        self,
        min_distance: int = 1,
        max_distance: int = 4,
        symbols: tuple[str, ...] = ("W", "O", "G", "R", "B", "Y"),
    ):
        """Builds the game.

        Args:
          min_distance: fewest quarter turns that solve a level, at least 1.
          max_distance: most of them, at most 14; all distances are equally frequent.
          symbols: what the text shows for white, orange, green, red, blue and yellow;
            one character each.

        Raises:
          ValueError: an argument is outside its range.
        """
        largest = cube_tables.MAX_DISTANCE
        why = " quarter turns, the largest distance there is"
        check_whole("min_distance", min_distance, 1, largest, why=why)
        check_whole("max_distance", max_distance, 1, largest, why=why)
        check_order("min_distance", min_distance, "max_distance", max_distance)
        self.min_distance = min_distance
        by_distance = itertools.islice(
            cube_tables.numbers_by_distance(), min_distance, max_distance + 1
        )
        lists = [x if x.size <= MAX_LISTED else x[:0] for x in by_distance]
        # Programs look an entry up before they know whether they need it, so that the
        # list must not be empty.
        self._listed = np.concatenate([*lists, np.zeros(1, np.int32)])
        self._list_sizes = np.array([x.size for x in lists], np.uint32)
        super().__init__(rows=6, cols=4, observation="grid", symbols=symbols, marks={})

    def reset_env(
        self, key: Key[Array, ""], params: EnvParams
    ) -> tuple[Int[Array, "6 4"], EnvState]:
        """A distance, a state at it and an orientation, each with equal chance."""
        # Remainders of 32 random bits are uniform to one part in 100,000.
        bits = jax.random.bits(key, (3,), jnp.uint32)
        number = self._draw_number(key, bits[0] % len(self._list_sizes), bits[1])
        held = jnp.asarray(cube_tables.ROTATIONS)[bits[2] % 24]
        stickers = cube_tables.stickers_of(number)[held]
        state = EnvState(time=jnp.int32(0), stickers=stickers)
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        """Turns a face; returns (obs, state, reward, terminated, info)."""
        finished = self.is_finished(state, params)
        turns = jnp.asarray(cube_tables.TURN_TABLE)
        source = turns[jnp.asarray(action, jnp.int32)]
        stickers = jnp.where(finished, state.stickers, state.stickers[source])
        time = jnp.where(finished, state.time, state.time + 1)
        state = state.replace(stickers=stickers, time=time)
        success = self.is_success(state, params)
        reward = jnp.where(success & ~finished, params.solved_reward, 0.0)
        # A turn moves four corners, no two of which look alike: it is never idle.
        info = {"success": success, "effective": ~finished}
        obs = self.observe(key, state, action, params)
        return obs, state, reward.astype(jnp.float32), success, info

    def observe(self, key, state, action, params) -> Int[Array, "6 4"]:
        """Colours of the stickers, one row for each face."""
        return state.stickers.reshape(6, 4)

    def is_success(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether every face shows one colour."""
        faces = state.stickers.reshape(6, 4)
        return jnp.all(faces == faces[:, :1])

    def facts(self) -> base.StateFacts:
        """The color that each face has to get, and where stickers belong.

        This holds if the right back down corner does not move, as when only the up,
        left and front faces are turned. " W u R l" says that up has to be white and
        left red; for stickers of the right and the down face it says where they belong.
        """

        def read(state, params):
            faces = cube_tables.faces_of_colors(state.stickers)
            colors = state.stickers[stickers]
            pairs = jnp.stack([colors, faces[colors]], axis=1)
            return 1 + jnp.concatenate([jnp.argsort(faces), pairs.reshape(-1)])

        right, down = (4 * cube_tables.FACES.index(face) for face in "RD")
        stickers = np.array([right, right + 1, right + 2, down, down + 1, down + 2])
        colors = [f" {symbol}" for symbol in self.symbols]
        faces = [f" {face.lower()}" for face in cube_tables.FACES]
        words = [
            Choice(f"color{face}", ("", *(color + face for color in colors)))
            for face in faces
        ]
        for i in stickers:
            words += [Choice(f"color_{i}", ("", *colors))]
            words += [Choice(f"face_{i}", ("", *faces))]
        statements = (1,) * len(faces) + (2,) * len(stickers)
        is_legend = (True,) * len(faces) + (False,) * (2 * len(stickers))
        return base.StateFacts(tuple(words), statements, is_legend, read)

    def solve(
        self,
        states: EnvState,
        params: EnvParams,
        *,
        budget: base.PlayBudget,
        discount: float,
    ) -> base.Solution:
        """Exact values from the distance after each turn.

        The values ignore the time limit, `best_success` respects it.
        """
        return _solve(
            states.stickers,
            self.steps_left(states, params),
            cube_tables.distances(),
            jnp.asarray(params.solved_reward, jnp.float32),
            jnp.asarray(discount, jnp.float32),
            jnp.int32(budget.num_actions),
        )

    def fewest_actions(self, states: EnvState, params: EnvParams) -> Int[Array, " B"]:
        """The distance; `NEVER` where fewer turns are left."""
        distances = _distances_of(states.stickers, cube_tables.distances())
        is_enough = distances <= self.steps_left(states, params)
        return jnp.where((distances == 0) | is_enough, distances, base.NEVER)

    def state_space(self, params: EnvParams) -> spaces.Dict:
        """Ranges of the state's fields."""
        return spaces.Dict(
            {
                "time": spaces.Discrete(params.max_steps_in_episode + 1),
                "stickers": spaces.Box(0, 5, (cube_tables.NUM_STICKERS,), jnp.int32),
            }
        )

    def _draw_number(self, key, choice, bits) -> Int[Array, ""]:
        """A state at distance `min_distance + choice`, all of them equally likely."""
        sizes = jnp.asarray(self._list_sizes)
        starts = jnp.asarray(np.cumsum(self._list_sizes) - self._list_sizes)
        place = starts[choice] + bits % jnp.maximum(sizes[choice], 1)
        listed = jnp.asarray(self._listed)[place.astype(jnp.int32)]
        if self._list_sizes.all():
            return listed
        table = jnp.asarray(cube_tables.distances())
        wanted = (self.min_distance + choice).astype(jnp.uint8)

        def is_missing(carry) -> Bool[Array, ""]:
            return ~carry[0]

        def draw(carry):
            # The loop ends: every trial succeeds with a chance of at least a half.
            _, tries, _ = carry
            shape = (TRIES_AT_ONCE,)
            trial = jax.random.fold_in(key, tries)
            numbers = jax.random.randint(trial, shape, 0, cube_tables.NUM_STATES)
            is_hit = table[numbers] == wanted
            return jnp.any(is_hit), tries + 1, numbers[jnp.argmax(is_hit)]

        start = (sizes[choice] > 0, jnp.int32(0), listed)
        return jax.lax.while_loop(is_missing, draw, start)[2]


@jax.jit
def _solve(
    stickers: Int[Array, "B 24"],
    turns_left: Int[Array, " B"],
    table: UInt8[Array, " states"],
    solved_reward: Float[Array, ""],
    discount: Float[Array, ""],
    allowed: Int[Array, ""],
) -> base.Solution:
    """Values of the turns, and whether the distance is within the allowed turns."""
    distances = _distances_of(stickers, table)
    after = jnp.swapaxes(stickers[:, cube_tables.TURN_TABLE], 0, 1)
    after = jax.vmap(_distances_of, in_axes=(0, None), out_axes=1)(after, table)
    values = solved_reward * discount ** after.astype(jnp.float32)
    is_over = (distances == 0) | (turns_left <= 0)
    values = jnp.where(is_over[:, None], 0.0, values)
    fits = distances <= jnp.minimum(turns_left, allowed)
    return base.Solution(
        action_values=values,
        value=jnp.max(values, axis=1),
        best_success=(fits | (distances == 0)).astype(jnp.float32),
    )


@jax.jit
def _distances_of(
    stickers: Int[Array, "B 24"], table: UInt8[Array, " states"]
) -> Int[Array, " B"]:
    return jax.vmap(cube_tables.distance, in_axes=(0, None))(stickers, table)
