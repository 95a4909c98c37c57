"""A game in Python as an environment of arrays, whose steps are made by the host.

In: a `HostGame` by name. Out: a `World`, which messages, turns, metrics and evaluation
read like any environment. `worlds.py` plays it.
"""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs import base
from envs.templates import Choice, Passage, Template
from ragen_jax.host_games import ADAPTERS, HOST_GAMES
from ragen_jax.host_games.base import SPLITS, TRAINING, HostGame
from ragen_jax.host_games.workers.pool import GameSpec
from ragen_jax.host_games.wrappers import wrap
from ragen_jax.registry.functions import did_you_mean, is_reference, load_reference


@struct.dataclass
class Shown:
    """What a game answered.

    Attributes:
      text: the observation, ids and then their number.
      reward: of the reply before it.
      valid: the game could read that reply.
      success, terminated, truncated: of the game after it.
    """

    text: Int[Array, " tokens_and_1"]
    reward: Float[Array, ""]
    valid: Bool[Array, ""]
    success: Bool[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


@struct.dataclass
class WorldState(base.EnvState):
    """A game in Python as the device sees it.

    Attributes:
      time: replies that the game has answered.
      now: what it shows.
      following: what it will show after the reply that is on its way.
    """

    now: Shown
    following: Shown


class World(base.TextEnvironment):
    """A game in Python as an environment of arrays; its steps are made by the host.

    A step takes what the host has put into the state. There is no solver: where the
    game's own solutions always win, the best success is known to be 1.
    """

    action_hint = "Your answer is read by the game."
    # What a text means is the game's business.
    answer_bytes = 1
    takes_any_text = True
    solves_on_device = False

    def __init__(
        self,
        spec: GameSpec,
        game: HostGame,
        *,
        num_tasks: Mapping[str, int | None],
        max_observation_tokens: int,
        num_widths: int,
        max_failed_fraction: float,
    ):
        """Describes a game.

        Args:
          spec: what workers build.
          game: one of these games, for its texts and sizes.
          num_tasks: problems of each split; None: as many as there are seeds.
          max_observation_tokens: longest observation.
          num_widths: lengths of the key-value cache, see `host.ArrayGame`.
          max_failed_fraction: of a rollout's rows that may fail; more are an error.
        """
        self.spec = spec
        self.num_widths = num_widths
        self.max_failed_fraction = max_failed_fraction
        self.instruction = game.instruction
        self.num_tasks = num_tasks
        self.metrics = game.metrics
        self.longest_solution = game.longest_solution if game.is_solvable else None
        self.solves = base.UNKNOWN if self.longest_solution is None else base.EXACT
        self.max_observation_tokens = max_observation_tokens
        self.template = Template((Passage("text", max_observation_tokens), "\n"))
        self._name = game.name

    @property
    def name(self) -> str:
        return self._name

    @property
    def default_params(self) -> base.EnvParams:
        return base.EnvParams(max_steps_in_episode=2**30)

    @property
    def num_actions(self) -> int:
        """To reply."""
        return 1

    @property
    def action_template(self) -> Template:
        return Template((Choice("reply", ("", "reply")),))

    def action_fields(self, action, state, params):
        return {"reply": action + 1}

    def read_action(self, text, size, state, params) -> Int[Array, ""]:
        """Every text is the only action."""
        return jnp.int32(0)

    def reset_env(self, key, params):
        """An empty state: the host fills it."""
        no = jnp.bool_(False)
        text = jnp.zeros(self.max_observation_tokens + 1, jnp.int32)
        shown = Shown(text, jnp.float32(0), no, no, no, no)
        state = WorldState(time=jnp.int32(0), now=shown, following=shown)
        return text, state

    def reset_split(self, key, params, split) -> WorldState:
        return self.reset_env(key, params)[1]

    def step_env(self, key, state, action, params):
        """Takes what the host has put there."""
        over = self.is_finished(state, params)
        now = jax.tree.map(
            lambda new, old: jnp.where(over, old, new), state.following, state.now
        )
        time = jnp.where(over, state.time, state.time + 1)
        state = state.replace(now=now, time=time)
        info = {"success": now.success, "effective": ~over & now.valid}
        reward = jnp.where(over, 0.0, now.reward).astype(jnp.float32)
        return now.text, state, reward, now.terminated, info

    def text_fields(self, state, params):
        return {"text": state.now.text}

    def is_terminated(self, state, params):
        return state.now.terminated

    def is_truncated(self, state, params):
        return state.now.truncated | (state.time >= params.max_steps_in_episode)

    def is_success(self, state, params):
        return state.now.success

    def fewest_actions(self, states, params):
        """Not known: the game is played elsewhere.

        Raises:
          ValueError: always.
        """
        raise ValueError("the game runs in Python, without a solver of its states")

    def solve(self, states, params, *, budget, discount) -> base.Solution:
        """The best success where it is known (else NaN), without values of actions."""
        num_rows, longest = states.time.shape[0], self.longest_solution
        is_known = longest is not None and longest <= budget.num_actions
        return base.Solution(
            action_values=jnp.zeros((num_rows, 1)),
            value=jnp.zeros(num_rows),
            best_success=jnp.full(num_rows, 1.0 if is_known else jnp.nan),
        )


def build_game(spec: GameSpec, split: str) -> HostGame:
    """A game as a worker builds it, in this process."""
    return wrap(load_reference(spec.game)(split=split, **spec.kwargs), spec.wrappers)


def _find_game(
    name: str, kwargs: Mapping[str, object]
) -> tuple[str, Mapping[str, object]]:
    """The class of a game as "package.module:Class", and all its arguments."""
    prefix, _, rest = name.partition(":")
    if prefix in ADAPTERS:
        reference, argument = ADAPTERS[prefix]
        kwargs = {**kwargs, argument: rest}
    else:
        reference = HOST_GAMES.get(name, name)
    if not is_reference(reference):
        raise ValueError(
            f"no game in Python {name!r}.{did_you_mean(name, HOST_GAMES)} Choose one "
            f"of {', '.join(HOST_GAMES)}; package.module:Class for one of yours; or "
            f"{', '.join(f'{name}:NAME' for name in ADAPTERS)} for others'"
        )
    return reference, kwargs


def _construct(
    name: str, make: type[HostGame], split: str, kwargs: Mapping[str, object]
) -> HostGame:
    """A game of one split.

    Raises:
      ValueError: its constructor refuses the arguments.
    """
    try:
        inspect.signature(make).bind(split=split, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"{name} does not take these arguments: {error}; its constructor gets "
            f"`split` and those of env.kwargs ({', '.join(kwargs) or 'none'})"
        ) from error
    try:
        return make(split=split, **kwargs)
    except TypeError as error:
        # An argument of another type, or a defect of the game: the cause has its place.
        raise ValueError(f"{name} fails with these arguments: {error}") from error


def _check_metrics(name: str, game: HostGame) -> None:
    """Refuse numbers whose names cannot be part of a metric's."""
    for metric in game.metrics:
        if not re.fullmatch("[a-z0-9_]+", metric):
            raise ValueError(
                f"{name} reports a number {metric!r}; write its name in small letters, "
                "digits and '_'"
            )


def make_world(
    name: str,
    kwargs: Mapping[str, object],
    *,
    wrappers: Sequence[Sequence[Any]] | None,
    max_observation_tokens: int,
    num_widths: int,
    num_workers: int | None,
    step_seconds: float,
    max_worker_bytes: int | None,
    max_failed_fraction: float,
) -> World:
    """A game in Python.

    Args:
      name: in `HOST_GAMES`, "package.module:Class", or a prefix of `ADAPTERS` and the
        name of an environment there: "gymnasium:FrozenLake-v1".
      kwargs: of its constructor.
      wrappers, max_observation_tokens, num_widths, num_workers, step_seconds,
        max_worker_bytes: the section `host` of the configuration.
      max_failed_fraction: that of `rollout`.

    Raises:
      ValueError: there is no such game, or it refuses an argument.
    """
    reference, kwargs = _find_game(name, kwargs)
    wrappers = wrappers or ()
    make = load_reference(reference)
    if not (isinstance(make, type) and issubclass(make, HostGame)):
        raise ValueError(
            f"{reference} is no game: it must be a class derived from "
            "ragen_jax.host_games.base.HostGame"
        )
    try:
        # As workers get them: lists for tuples, texts for keys.
        kwargs = json.loads(json.dumps(kwargs))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} has arguments that cannot be written as JSON ({error}); use "
            "numbers, texts, lists and dicts"
        ) from error
    games = {
        split: wrap(_construct(name, make, split, kwargs), wrappers) for split in SPLITS
    }
    _check_metrics(name, games[TRAINING])
    spec = GameSpec(
        game=reference,
        kwargs=kwargs,
        wrappers=wrappers,
        num_workers=num_workers,
        step_seconds=step_seconds,
        max_bytes=max_worker_bytes,
    )
    world = World(
        spec,
        games[TRAINING],
        num_tasks={split: game.num_tasks for split, game in games.items()},
        max_observation_tokens=max_observation_tokens,
        num_widths=num_widths,
        max_failed_fraction=max_failed_fraction,
    )
    for game in games.values():
        game.close()
    return world
