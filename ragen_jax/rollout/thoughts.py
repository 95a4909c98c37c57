"""Readings: what a thought can say about a state, game by game.

In: an environment. Out: for demonstrators, the words of a thought as template fields,
and a pure function that reads their true values off a state; for whoever checks what a
model says, the landmarks of a board. To add a game, add an entry to `READINGS`, and one
to `LANDMARKS` if it has a board.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Int

from envs import frozen_lake, sokoban
from envs.base import EnvParams, EnvState, Landmark, TextEnvironment
from envs.templates import Choice


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a thought can name in one game. Axis `W`: words of the thought.

    Attributes:
      words: the words, each with its values; option 0 is always "" (left out).
      statements: how many words, in order, make a statement; of one either all words
        are said or none.
      is_shallow: which words a shallow thought keeps.
      read: `(state, params) -> Int[W]`, the true value of every word, from 1.
    """

    words: tuple[Choice, ...]
    statements: tuple[int, ...]
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
            f"ragen_jax/rollout/thoughts.py, which has {', '.join(READINGS)}, or let "
            "thoughts be 'none'"
        )
    return READINGS[name](env)


def landmarks_of(env: TextEnvironment) -> tuple[Landmark, ...]:
    """What a thought can place in this game.

    Raises:
      ValueError: the game has no entry in `LANDMARKS`.
    """
    name = type(env).__name__
    if name not in LANDMARKS:
        raise ValueError(
            f"{name} has no landmarks whose place a thought could state; games that "
            f"have are {', '.join(LANDMARKS)} (ragen_jax/rollout/thoughts.py)"
        )
    return LANDMARKS[name]


def read_bandit(env: TextEnvironment) -> Reading:
    """The arm that sounds risky, whether or not it is the better one.

    The vocabulary lists pairs, the name that sounds safe first.
    """
    words = (Choice("risky_arm", ("", *env.action_vocabulary)),)

    def read(state, params):
        names = env.action_names(state, params)
        return 1 + jnp.sum(jnp.where(names % 2 == 1, names, 0))[None]

    return Reading(words, (1,), (False,), read)


def read_landmarks(env: TextEnvironment) -> Reading:
    """Symbol, row and column of each landmark, in order; shallow keeps the last one.

    Of several places it is the first in reading order.
    """
    landmarks = landmarks_of(env)
    board = next((p for p in env.template.parts if not isinstance(p, str)), None)
    if board is None or board.name != "board":
        raise ValueError(
            f"demonstrators of {type(env).__name__} read its picture; use "
            "observation='grid', or let thoughts be 'none'"
        )
    rows = ("", *(str(i) for i in range(board.rows)))
    cols = ("", *(str(i) for i in range(board.cols)))
    words: list[Choice] = []
    for i, landmark in enumerate(landmarks):
        words.append(Choice(f"landmark_{i}", ("", board.symbols[landmark.symbol])))
        words += [Choice(f"row_{i}", rows), Choice(f"col_{i}", cols)]

    def read(state, params):
        cells = env.text_fields(state, params)["board"].reshape(-1)
        values = []
        for landmark in landmarks:
            shown_as = jnp.array(landmark.shown_as, cells.dtype)
            is_there = jnp.any(cells[:, None] == shown_as[None, :], axis=1)
            cell = jnp.argmax(is_there)
            values += [1, 1 + cell // board.cols, 1 + cell % board.cols]
        return jnp.stack([jnp.asarray(v, jnp.int32) for v in values])

    is_shallow = [False] * (len(words) - 3) + [True] * 3
    statements = (3,) * len(landmarks)
    return Reading(tuple(words), statements, tuple(is_shallow), read)


# Of demonstrators that never think.
NO_READING = Reading((), (), (), lambda state, params: jnp.zeros(0, jnp.int32))

READINGS: dict[str, Callable[[TextEnvironment], Reading]] = {
    "Bandit": read_bandit,
    "FrozenLake": read_landmarks,
    "Sokoban": read_landmarks,
}

LANDMARKS: dict[str, tuple[Landmark, ...]] = {
    "FrozenLake": (
        Landmark(
            frozen_lake.PLAYER,
            (
                frozen_lake.PLAYER,
                frozen_lake.PLAYER_IN_HOLE,
                frozen_lake.PLAYER_ON_GOAL,
            ),
            words=("player", "you"),
        ),
        Landmark(
            frozen_lake.GOAL,
            (frozen_lake.GOAL, frozen_lake.PLAYER_ON_GOAL),
            words=("goal",),
        ),
    ),
    "Sokoban": (
        Landmark(
            sokoban.PLAYER,
            (sokoban.PLAYER, sokoban.PLAYER_ON_TARGET),
            words=("player", "you"),
        ),
        Landmark(sokoban.BOX, (sokoban.BOX, sokoban.BOX_ON_TARGET), words=("box",)),
        Landmark(
            sokoban.TARGET,
            (sokoban.TARGET, sokoban.BOX_ON_TARGET, sokoban.PLAYER_ON_TARGET),
            words=("target", "goal"),
        ),
    ),
}
