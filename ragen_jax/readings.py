"""Readings: what a demonstrator's thought can say about a state, game by game.

In: an environment. Out: the words of a thought as template fields, and a pure function
that reads their true values off a state. To add a game, add an entry to `READINGS`.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jaxtyping import Array, Int

from envs import frozen_lake, sokoban
from envs.base import EnvParams, EnvState, TextEnvironment
from envs.templates import Choice


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a thought can name in one game. Axis `W`: words of the thought.

    Attributes:
      words: the words, each with its values; option 0 is always "" (left out).
      is_shallow: which words a shallow thought keeps.
      read: `(state, params) -> Int[W]`, the true value of every word, from 1.
    """

    words: tuple[Choice, ...]
    is_shallow: tuple[bool, ...]
    read: Callable[[EnvState, EnvParams], Int[Array, " W"]]


def reading_of(env: TextEnvironment) -> Reading:
    """What a thought can name in this game.

    Raises:
      ValueError: the game has no entry in `READINGS`.
    """
    name = type(env).__name__
    if name not in READINGS:
        raise ValueError(
            f"no demonstrator knows what to read in {name}; add it to READINGS in "
            f"ragen_jax/readings.py, which has {', '.join(READINGS)}"
        )
    return READINGS[name](env)


def read_sokoban(env: TextEnvironment) -> Reading:
    """Player, box and target; of several the first in reading order."""
    shown = {
        sokoban.PLAYER: (sokoban.PLAYER, sokoban.PLAYER_ON_TARGET),
        sokoban.BOX: (sokoban.BOX, sokoban.BOX_ON_TARGET),
        sokoban.TARGET: (
            sokoban.TARGET,
            sokoban.BOX_ON_TARGET,
            sokoban.PLAYER_ON_TARGET,
        ),
    }
    return _read_landmarks(env, shown)


def read_frozen_lake(env: TextEnvironment) -> Reading:
    """Player and goal."""
    player, goal = frozen_lake.PLAYER, frozen_lake.GOAL
    in_hole, on_goal = frozen_lake.PLAYER_IN_HOLE, frozen_lake.PLAYER_ON_GOAL
    shown = {player: (player, in_hole, on_goal), goal: (goal, on_goal)}
    return _read_landmarks(env, shown)


def read_bandit(env: TextEnvironment) -> Reading:
    """The arm that sounds risky, whether or not it is the better one.

    The vocabulary lists pairs, the name that sounds safe first.
    """
    words = (Choice("risky_arm", ("", *env.action_vocabulary)),)

    def read(state, params):
        names = env.action_names(state, params)
        return 1 + jnp.sum(jnp.where(names % 2 == 1, names, 0))[None]

    return Reading(words, (False,), read)


def _read_landmarks(
    env: TextEnvironment, landmarks: Mapping[int, tuple[int, ...]]
) -> Reading:
    """Symbol, row and column of each landmark, in order; shallow keeps the last one.

    Args:
      landmarks: symbol id that names it -> symbol ids that show it on the board.
    """
    board = next((p for p in env.template.parts if not isinstance(p, str)), None)
    if board is None or board.name != "board":
        raise ValueError(
            f"demonstrators of {type(env).__name__} read its picture; use "
            "observation='grid'"
        )
    rows = ("", *(str(i) for i in range(board.rows)))
    cols = ("", *(str(i) for i in range(board.cols)))
    words: list[Choice] = []
    for i, symbol in enumerate(landmarks):
        words.append(Choice(f"landmark_{i}", ("", board.symbols[symbol])))
        words += [Choice(f"row_{i}", rows), Choice(f"col_{i}", cols)]

    def read(state, params):
        cells = env.text_fields(state, params)["board"].reshape(-1)
        values = []
        for shown_as in landmarks.values():
            is_there = jnp.any(
                cells[:, None] == jnp.array(shown_as, cells.dtype)[None, :], axis=1
            )
            cell = jnp.argmax(is_there)
            values += [1, 1 + cell // board.cols, 1 + cell % board.cols]
        return jnp.stack([jnp.asarray(v, jnp.int32) for v in values])

    is_shallow = [False] * (len(words) - 3) + [True] * 3
    return Reading(tuple(words), tuple(is_shallow), read)


READINGS: dict[str, Callable[[TextEnvironment], Reading]] = {
    "Bandit": read_bandit,
    "FrozenLake": read_frozen_lake,
    "Sokoban": read_sokoban,
}
