"""The contract of array games: a gymnax Environment that is also read and answered.

In: keys, states and integer actions. Out: states, rewards, and the text interface: what
a state looks like in words, which words name the actions, and the exact best play. No
prompts, tokens or models in here.

The dynamics are gymnax's (`reset_env`, `step_env`, `observe`, spaces, `EnvParams`), so
any gymnax user can train on the games without their text. Rollouts drive `step_env`: in
them a game that ends stays over.
"""

import copy
import dataclasses
import functools
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from envs import pictures
from envs.auto_reset import replace_where
from envs.blocks import in_blocks
from envs.hashing import hash_arrays
from envs.parameters import range_problem
from envs.templates import Choice, Grid, Template

EnvState = environment.EnvState
EnvParams = environment.EnvParams


# More actions than any level takes; stands for "cannot be won".
NEVER = 1 << 20

# What `solve` finds: best play, the play of a strong reference player, or nothing.
EXACT, REFERENCE, UNKNOWN = SOLVERS = ("exact", "reference", "unknown")

# Parts of the levels of a game. A hash of what a level looks like decides where it
# belongs, so that training never meets a validation level under another key.
TRAINING, VALIDATION = SPLITS = ("training", "validation")
# Hashes below this bound, a quarter of all, belong to validation. Fewer would leave
# more levels for training, but keep validation searching for longer.
VALIDATION_BOUND = 1 << 30
# A game with fewer levels holds none out: too few would be left on either side.
FEWEST_LEVELS = 64
# Draws to find a level of a split. All of 128 miss a quarter once in 10**16 times; the
# last one is then taken.
SPLIT_TRIES = 128


@dataclasses.dataclass(frozen=True)
class PlayBudget:
    """How much play an episode allows.

    Attributes:
      max_turns: replies of the player.
      max_actions_per_turn: actions run from one reply, chosen before any is run.
      max_actions_per_episode: actions run in all.
    """

    max_turns: int
    max_actions_per_turn: int
    max_actions_per_episode: int

    @property
    def num_actions(self) -> int:
        """Actions that can be run in all."""
        in_turns = self.max_turns * self.max_actions_per_turn
        return min(in_turns, self.max_actions_per_episode)


@struct.dataclass
class Solution:
    """Exact best play for a batch of states.

    Attributes:
      action_values: discounted return of taking each action and playing optimally
        from there on, Float[B, num_actions]; -inf where the action loses the game for
        good (Sokoban) so that `argmax` is always an optimal action.
      value: the largest entry of `action_values`, Float[B].
      best_success: highest probability of success within the play budget, Float[B].
    """

    action_values: Float[Array, "B num_actions"]
    value: Float[Array, " B"]
    best_success: Float[Array, " B"]


@dataclasses.dataclass(frozen=True)
class Landmark:
    """Something on a board whose place a thought can state.

    Attributes:
      symbol: id of the symbol that names it.
      shown_as: ids of the symbols that show it.
      words: its names in sentences.
    """

    symbol: int
    shown_as: tuple[int, ...]
    words: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class StateFacts:
    """Facts about a state that a thought can state. Axis `W`: words of the thought.

    Attributes:
      words: the words, each with its values; option 0 is always "" (left out).
      statements: number of consecutive words that make up each statement; a thought
        contains all words of a statement or none.
      is_shallow: which words a shallow thought keeps.
      read: `(state, params) -> Int[W]`, the true value of every word, from 1.
      num_predicted: words at the end that are about the state after the turn.
    """

    words: tuple[Choice, ...]
    statements: tuple[int, ...]
    is_shallow: tuple[bool, ...]
    read: Callable[[EnvState, EnvParams], Int[Array, " W"]]
    num_predicted: int = 0


# The facts of demonstrators that never think.
NO_FACTS = StateFacts((), (), (), lambda state, params: jnp.zeros(0, jnp.int32))


class TextGame:
    """A game as messages and turns see it: an array game or a host game.

    Attributes set by subclasses:
      name: in messages, metrics and errors.
      instruction: what the game is and what its symbols mean, made from the same symbol
        table as the template; ends without a newline.
      action_vocabulary: every name an action can have in any level, by default one per
        action, in their order; empty in a game that reads answers itself.
      named_actions: fields of the template whose value is an action of the level, and
        the names by value; empty where every level has the same actions.
      action_hint: sentence that says how an action is written, in place of a list of
        names.
      action_template: how an action is written, see `TextEnvironment`.
      answer_bytes: longest text of an action of a game that reads answers itself.
      template: text of a state; its fields are those of `text_fields`; ends with a
        newline.
      solves_on_device: `solve` is an array program, fast for thousands of states.
      solves: one of `SOLVERS`: best play is known, or the play of a strong reference
        player where it cannot be computed, or neither.
      lists_actions: its actions are numbers with values, which a solver, a replay or a
        random player can run; False: only the game itself can read a reply.
      landmarks: what a thought can place on the board that `observe` returns.
      holds_out_levels: the game has enough levels to keep some from training. If not,
        `draw_level` gives any level.
    """

    solves_on_device: bool = True
    solves: str = EXACT
    lists_actions: bool = True
    named_actions: Mapping[str, tuple[str, ...]] = types.MappingProxyType({})
    action_hint: str | None = None
    answer_bytes: int = 0
    landmarks: tuple[Landmark, ...] = ()
    holds_out_levels: bool = True

    instruction: str
    action_vocabulary: tuple[str, ...] = ()
    action_template: Template
    template: Template

    def draw_level(
        self, key: Key[Array, ""], params: EnvParams, is_held_out: Bool[Array, ""]
    ) -> EnvState:
        """A level of validation, or of training; `vmap` it over keys for many."""
        raise NotImplementedError

    def text_fields(
        self, state: EnvState, params: EnvParams
    ) -> dict[str, Int[Array, "..."]]:
        """Values of the template's fields for one state."""
        raise NotImplementedError

    def is_terminated(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the game has ended by its rules."""
        raise NotImplementedError

    def is_truncated(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether its time limit has ended the game."""
        raise NotImplementedError

    def is_finished(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the game has ended, by its rules or by its time limit."""
        return self.is_terminated(state, params) | self.is_truncated(state, params)

    def is_success(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the goal of the game has been reached."""
        raise NotImplementedError

    def params_problem(self, params: EnvParams) -> str | None:
        """Why these numbers make no sense for the game; None: they do."""
        return range_problem(params)

    def budget_problem(self, budget: PlayBudget) -> str | None:
        """Why best play within these limits cannot be computed; None: it can."""
        del budget
        return None

    def facts(self) -> StateFacts:
        """Facts that the thoughts of demonstrators state.

        Raises:
          ValueError: the game defines none.
        """
        raise ValueError(
            f"demonstrators cannot think about {self.name}: it defines no facts; give "
            "the class of an array game the method `facts`, or set the `thought` of "
            "demonstrators to 'none'"
        )


class TextEnvironment(environment.Environment, TextGame):
    """A gymnax environment with a text interface.

    What shapes arrays (sizes, numbers of boxes, symbols) is a constructor argument;
    `EnvParams` holds traced numbers only; `default_params = EnvParams()` in the body of
    the class names the defaults.

    Contract, tested for every entry of the table in `envs/__init__.py`: methods that
    take a key are pure, jit once and vmap; the same key gives the same state; stepping
    a finished state changes nothing and pays nothing; rewards are finite; `step_env`
    returns `info` with exactly the Bool scalars `success` (the goal has been reached)
    and `effective` (the action changed the player's situation); every level is solvable
    and unsolved at reset. `reset_env` consumes the *level* key only; what is random
    during play comes from the key given to `step_env`. `draw_level` draws levels for
    training or for validation, and no level is in both; `reset_split` calls it.

    A game with an `action_hint` defines `read_action`, `action_template` and
    `action_fields`; `action_names` is for the others.

    Attributes set by subclasses, beside those of `TextGame`:
      hurry_discount: discount for `solve` under which no detour is optimal; 1 will do
        where actions cost something.
    """

    hurry_discount: float = 0.99

    @functools.partial(jax.jit, static_argnames=("self",))
    def step(self, key, state, action, params=None):
        """gymnax's `step`, to the bit: a game that ends continues with a new level.

        Under `vmap` levels are made for the rows whose games ended, not for all.

        Returns:
          Observation and state, of the new level where the game ended; reward;
          terminated; truncated; the info of `step_env` with both ends and the
          `final_observation`, the one before the new level.
        """
        params = self.default_params if params is None else params
        # gymnax splits the key in two. The second half is made below, and only for the
        # games that ended.
        step_key = jax.random.split(key, 1)[0]
        seen, stepped, reward, terminated, info = self.step_env(
            step_key, state, action, params
        )
        truncated = self.is_truncated(stepped, params)
        obs, state = replace_where(
            terminated | truncated,
            lambda key, params: self.reset_env(jax.random.split(key)[1], params),
            (key, params),
            (seen, stepped),
        )
        ends = {"terminated": terminated, "truncated": truncated}
        info = {**info, **ends, "final_observation": seen}
        return obs, state, reward, terminated, truncated, info

    def with_levels(self, levels: EnvState) -> "TextEnvironment":
        """A copy that plays levels made beforehand: `reset` and `step` draw from them.

        Drawing one is as cheap as a step; making one costs as much as dozens. Splits
        and exact play are those of this environment.

        Args:
          levels: states as `reset_env` or `reset_split` return them, on one more axis.

        Raises:
          ValueError: `levels` is a single state, or holds none.
        """
        if jnp.ndim(levels.time) != 1 or not levels.time.size:
            raise ValueError(
                f"levels.time has shape {jnp.shape(levels.time)}; with_levels takes "
                "states on one axis, at least one: make them with "
                "jax.vmap(env.reset_env, in_axes=(0, None))(keys, params)[1]"
            )
        num_levels = levels.time.size

        def take_level(key, params):
            index = jax.random.bits(key, (), jnp.uint32) % num_levels
            level = jax.tree.map(lambda leaf: leaf[index], levels)
            return self.observe(key, level, None, params), level

        copied = copy.copy(self)
        copied.reset_env = take_level
        # The few levels may have none of a split, so splits keep the full generator.
        copied.draw_level = self.draw_level
        return copied

    def reset_split(
        self, key: Key[Array, ""], params: EnvParams, split: str
    ) -> EnvState:
        """A level of one split, one of `SPLITS`; `vmap` it over keys for many."""
        return self.draw_level(key, params, jnp.bool_(split == VALIDATION))

    def draw_level(
        self, key: Key[Array, ""], params: EnvParams, is_held_out: Bool[Array, ""]
    ) -> EnvState:
        """A level of validation, or of training; `vmap` it over keys for many.

        Levels are drawn until one belongs there. The first is drawn with `key` itself:
        where it belongs, it is the level of `reset_env`.
        """
        if not self.holds_out_levels:
            return self.reset_env(key, params)[1]

        def is_missing(carry) -> Bool[Array, ""]:
            tries, state = carry
            belongs = self.is_held_out(state, params) == is_held_out
            return (tries == 0) | (~belongs & (tries < SPLIT_TRIES))

        def draw(carry):
            tries, _ = carry
            next_key = jnp.where(tries == 0, key, jax.random.fold_in(key, tries))
            return tries + 1, self.reset_env(next_key, params)[1]

        # A level of zeros starts the loop, so that the generator is compiled once.
        shapes = jax.eval_shape(self.reset_env, key, params)[1]
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.while_loop(is_missing, draw, (jnp.int32(0), blank))[1]

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "reset_split" in vars(cls):
            raise TypeError(
                f"{cls.__name__} overrides reset_split, which rollouts do not call; "
                "override draw_level(key, params, is_held_out), which reset_split calls"
            )

    def is_held_out(self, level: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether a level, as `reset_env` returns it, belongs to validation.

        The hash of its observation decides, which must show all of the level.
        """
        observation = self.observe(None, level, None, params)
        return hash_arrays(observation)[0] < jnp.uint32(VALIDATION_BOUND)

    @property
    def num_actions(self) -> int:
        """Number of actions: by default one for each name of `action_vocabulary`."""
        if not self.action_vocabulary:
            raise NotImplementedError("a game without action names sets num_actions")
        return len(self.action_vocabulary)

    def action_space(self, params: EnvParams | None = None) -> spaces.Discrete:
        """The actions, from 0."""
        return spaces.Discrete(self.num_actions)

    def action_names(
        self, state: EnvState, params: EnvParams
    ) -> Int[Array, " num_actions"]:
        """Index into `action_vocabulary` of each action's name in this state.

        By default the names are the same in every state.
        """
        return jnp.arange(self.num_actions, dtype=jnp.int32)

    def read_action(
        self,
        text: UInt8[Array, " answer_bytes"],
        size: Int[Array, ""],
        state: EnvState,
        params: EnvParams,
    ) -> Int[Array, ""]:
        """The action that a text asks for in a state, int32; -1 if there is none.

        Args:
          text: bytes between two separators of an answer, without the white space
            around them, padded with zeros.
          size: its length in bytes, 1 to `answer_bytes`. Longer texts are not actions.
        """
        raise NotImplementedError

    @property
    def action_template(self) -> Template:
        """How an action is written: only `Choice`s, each with "" as its first option.

        With all of them at 0 nothing is written.
        """
        return Template((Choice("name", ("", *self.action_vocabulary)),))

    def action_fields(
        self, action: Int[Array, ""], state: EnvState, params: EnvParams
    ) -> dict[str, Int[Array, ""]]:
        """Values of the fields of `action_template` for an action in a state."""
        return {"name": 1 + self.action_names(state, params)[action]}

    def action_text(self, action: int, state: EnvState, params: EnvParams) -> str:
        """Text of an action in a state, on the host."""
        fields = _action_fields(self, np.int32(action), state, params)
        return self.action_template.render(jax.device_get(fields))

    def text_fields(
        self, state: EnvState, params: EnvParams
    ) -> dict[str, Int[Array, "..."]]:
        """Values of the template's fields for one state.

        By default the observation is the template's only field, `board`.
        """
        return {"board": self.observe(None, state, None, params)}

    @property
    def picture(self) -> Grid | None:
        """The board that `pixels` draws: by default that of its text; None: none."""
        grids = (part for part in self.template.parts if isinstance(part, Grid))
        return next(grids, None)

    def board(self, state: EnvState, params: EnvParams) -> Int[Array, "rows cols"]:
        """Symbol ids of the board in `picture`."""
        return self.text_fields(state, params)[self.picture.name]

    def pixels(
        self, state: EnvState, params: EnvParams, cell: int = pictures.CELL
    ) -> UInt8[Array, "height width 3"]:
        """The board of a state as a picture; `vmap` it over states for many.

        Args:
          cell: pixels of a cell's side; static.

        Raises:
          ValueError: the game shows no board, or `cell` is out of range.
        """
        grid = self.picture
        if grid is None:
            raise ValueError(f"{self.name} shows no board: there is nothing to draw")
        cells = pictures.draw_cells(grid.symbols, grid.meanings, cell)
        return pictures.lay_cells(self.board(state, params), cells)

    def is_terminated(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the rules end the game: by default, with success alone."""
        return self.is_success(state, params)

    @staticmethod
    def steps_left(state: EnvState, params: EnvParams) -> Int[Array, "..."]:
        """Actions until the time limit, for one state or for a batch of them."""
        return jnp.maximum(params.max_steps_in_episode - state.time, 0)

    def solve(
        self, states: Any, params: EnvParams, *, budget: PlayBudget, discount: float
    ) -> Solution:
        """Exact best play for a batch of states (leading axis `B` on every leaf).

        Call it with concrete arrays, outside `jit`: it runs on the device where an
        array solver exists and searches on the host where none does.
        """
        raise NotImplementedError

    def fewest_actions(self, states: Any, params: EnvParams) -> Int[Array, " B"]:
        """Fewest actions that can win from each state, all chance being favourable.

        0 where it is won, `NEVER` where it cannot be won. Called as `solve` is.
        """
        raise NotImplementedError

    def render(self, state: EnvState, params: EnvParams) -> str:
        """Text of one state, on the host."""
        return self.template.render(host_text_fields(self, state, params))


def host_text_fields(
    env: TextEnvironment, state: EnvState, params: EnvParams
) -> dict[str, np.ndarray]:
    """`env.text_fields`, on the host."""
    return jax.device_get(_text_fields(env, state, params))


# One program each, in place of one for every operation.
@functools.partial(jax.jit, static_argnums=0)
def _text_fields(env: TextEnvironment, state: EnvState, params: EnvParams):
    return env.text_fields(state, params)


@functools.partial(jax.jit, static_argnums=0)
def _action_fields(env: TextEnvironment, action, state: EnvState, params: EnvParams):
    return env.action_fields(action, state, params)


def ask_solver(
    env: TextEnvironment,
    ask: Callable[..., Any],
    states: EnvState,
    params: EnvParams,
    **options: Any,
) -> Any:
    """`ask(states, params, **options)`, as NumPy arrays.

    `ask` is `solve` or `fewest_actions` of `env`, which gets arrays of JAX.

    Exact array solvers get blocks of one size, whatever the number of states: they are
    compiled once. A search on the host sees all states, which may share its work.
    """
    if env.solves_on_device and env.solves == EXACT:
        return in_blocks(lambda block: ask(block, params, **options), states)
    return jax.device_get(ask(jax.device_put(states), params, **options))


def make_ceiling(
    env: TextEnvironment, params: EnvParams, budget: PlayBudget
) -> Callable[[EnvState], float | None]:
    """Build `ceiling(levels) -> success of the solver`, None without a solver.

    The latest result is cached: validation asks about the same levels every time, and
    solving them may take as long as playing them.
    """
    solved: dict[bytes, float] = {}

    def ceiling(states: EnvState) -> float | None:
        if env.solves == UNKNOWN:
            return None
        leaves = jax.tree.leaves(jax.device_get(states))
        levels = b"".join(np.asarray(leaf).tobytes() for leaf in leaves)
        share = solved.get(levels)
        if share is None:
            how = {"budget": budget, "discount": 1.0}
            solution = ask_solver(env, env.solve, states, params, **how)
            share = float(np.mean(solution.best_success))
            solved.clear()
            solved[levels] = share
        return None if math.isnan(share) else share

    return ceiling
