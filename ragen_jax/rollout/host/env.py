"""A description of a host game: a Python class, stepped in worker processes.

In: a `HostGame` by name. Out: a `HostGameEnv`, which words, turns and metrics read like
any game; and the step of a turn that takes what a worker answered.
"""

import dataclasses
import functools
import inspect
import itertools
import json
import math
import numbers
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

import envs
from envs import base
from envs.templates import Choice, Passage, Template
from ragen_jax.host_games import ADAPTERS, HOST_GAMES
from ragen_jax.host_games.base import MAX_REWARD as MAX_REWARD
from ragen_jax.host_games.base import SPLITS, TRAINING, HostGame
from ragen_jax.host_games.base import MissingRequirement as MissingRequirement
from ragen_jax.host_games.workers.pool import GameSpec
from ragen_jax.host_games.wrappers import wrap
from ragen_jax.registry.functions import did_you_mean, is_reference, load_reference
from ragen_jax.rollout.actions import Outcome
from ragen_jax.rollout.host.calls import CallLimits
from ragen_jax.rollout.turns import GameStep
from ragen_jax.types import ParsedAnswer


@dataclasses.dataclass(frozen=True)
class CallSizes:
    """Sizes of an agent's episode, keys of the section `host`.

    Attributes:
      context_tokens: of a segment; None: `episode_tokens`.
      episode_tokens: of all segments.
      max_segments: of an episode.
    """

    context_tokens: int | None
    episode_tokens: int
    max_segments: int


@struct.dataclass
class TokenOutput:
    """What a game answered, in arrays; its text in tokens.

    Attributes:
      text: the observation, ids and then their number.
      reward: of the reply before it.
      valid: the game could read that reply.
      success, terminated, truncated: of the game after it.
    """

    text: Int[Array, "*B tokens_and_1"]
    reward: Float[Array, "*B"]
    valid: Bool[Array, "*B"]
    success: Bool[Array, "*B"]
    terminated: Bool[Array, "*B"]
    truncated: Bool[Array, "*B"]


@struct.dataclass
class HostGameState:
    """A host game as the device sees it.

    Attributes:
      time: replies that the game has answered.
      output: the last of its answers.
    """

    time: Int[Array, "*B"]
    output: TokenOutput


class HostGameEnv(base.TextGame):
    """A host game: its words, its sizes, and how workers make it.

    It has no solver. The best success is known, 1, if the game's solutions always win.
    """

    action_hint = "Your answer is read by the game."
    # One byte marks that there is an answer; the game reads it.
    answer_bytes = 1
    # A demonstrated reply is one text: this word in a new tokenizer.
    action_template = Template((Choice("reply", ("", "reply")),))
    lists_actions = False
    solves_on_device = False
    default_params = base.EnvParams(max_steps_in_episode=2**30)

    def __init__(
        self,
        spec: GameSpec,
        game: HostGame,
        *,
        num_tasks: Mapping[str, int | None],
        max_observation_tokens: int,
        image_grid: tuple[int, int] | None,
        num_widths: int,
        max_failed_fraction: float,
        call_sizes: CallSizes | None,
    ):
        """Describes a game.

        Args:
          spec: what workers build.
          game: one of these games, for its texts and sizes.
          num_tasks: problems of each split; None: as many as there are seeds.
          max_observation_tokens: longest text of an observation.
          image_grid: rows and columns of tokens of an observation's image, which
            follows its text; None: images are refused.
          num_widths: lengths of the key-value cache, see `loop.TokenGame`.
          max_failed_fraction: of a rollout's rows that may fail; more are an error.
          call_sizes: of a game that makes calls; else None.
        """
        self.spec = spec
        self.makes_calls, self.is_parallel = game.makes_calls, game.is_parallel
        self._call_sizes = call_sizes
        self.num_widths = num_widths
        self.max_failed_fraction = max_failed_fraction
        self.name = game.name
        # Half a surrogate pair has no encoding.
        self.instruction = game.instruction.encode("utf-8", "replace").decode()
        self.num_tasks = num_tasks
        self.metrics, self.max_rows = game.metrics, game.max_rows
        self.longest_solution = game.longest_solution if game.is_solvable else None
        self.solves = base.UNKNOWN if self.longest_solution is None else base.EXACT
        self.max_observation_tokens = max_observation_tokens
        self.image_grid = image_grid
        self.template = Template((Passage("text", self.max_passage_tokens), "\n"))

    @property
    def max_passage_tokens(self) -> int:
        """Tokens of an observation, its image with the tokens around it included."""
        if self.image_grid is None:
            return self.max_observation_tokens
        return self.max_observation_tokens + math.prod(self.image_grid) + 2

    def call_limits(self, budget: base.PlayBudget, max_reply_tokens: int) -> CallLimits:
        """Limits of an agent's episode."""
        sizes = self._call_sizes
        return CallLimits(
            # A call is a turn, and an action of the game.
            max_calls=min(budget.max_turns, budget.max_actions_per_episode),
            max_reply_tokens=max_reply_tokens,
            context_tokens=sizes.context_tokens or sizes.episode_tokens,
            episode_tokens=sizes.episode_tokens,
            max_segments=sizes.max_segments,
        )

    def draw_level(self, key, params, is_held_out) -> HostGameState:
        """The state before a worker has begun the game: an empty output."""
        no = jnp.bool_(False)
        text = jnp.zeros(self.max_passage_tokens + 1, jnp.int32)
        output = TokenOutput(text, jnp.float32(0), no, no, no, no)
        return HostGameState(time=jnp.int32(0), output=output)

    def text_fields(self, state, params):
        return {"text": state.output.text}

    def is_terminated(self, state, params):
        return state.output.terminated

    def is_truncated(self, state, params):
        return state.output.truncated | (state.time >= params.max_steps_in_episode)

    def is_success(self, state, params):
        return state.output.success

    def ceiling(self, budget: base.PlayBudget) -> float | None:
        """Success of best play within a budget; None: not known."""
        longest = self.longest_solution
        is_known = longest is not None and longest <= budget.num_actions
        return 1.0 if is_known else None

    def check_sessions(self, **counts: int) -> None:
        """Refuse more episodes at the same time than the game can play.

        Args:
          counts: episodes, by what they are for.

        Raises:
          ValueError: names both numbers.
        """
        needed = sum(counts.values())
        if self.max_rows is not None and needed > self.max_rows:
            words = " + ".join(f"{name} = {count}" for name, count in counts.items())
            raise ValueError(
                f"{self.name} can play {self.max_rows} episodes at the same time, and "
                f"this needs {needed} ({words}); start its server with "
                f"--max_sessions={needed}, or lower what can be lowered of these"
            )

    def take(self, params: base.EnvParams, outputs: TokenOutput) -> GameStep:
        """The step of a turn whose replies the games answered with `outputs`.

        Rows whose reply holds no answer keep their state; their output is not used.
        """
        take = functools.partial(self._take, params)

        def step(states, parsed, num_allowed):
            return jax.vmap(take)(states, outputs, parsed, num_allowed)

        return step

    def _take(
        self,
        params: base.EnvParams,
        state: HostGameState,
        output: TokenOutput,
        parsed: ParsedAnswer,
        num_allowed: Int[Array, ""],
    ) -> tuple[HostGameState, Outcome]:
        is_answer = parsed.num_names > 0
        is_run = is_answer & (num_allowed > 0)
        # A game that was over at its start gives no answer and no reward.
        is_taken = is_run & ~self.is_finished(state, params)
        after = HostGameState(time=state.time + 1, output=output)
        after = jax.tree.map(
            lambda new, old: jnp.where(is_taken, new, old), after, state
        )
        actions = jnp.full(parsed.sizes.shape, -1, jnp.int32)
        outcome = Outcome(
            reward=jnp.where(is_taken, output.reward, 0.0),
            num_executed=is_run.astype(jnp.int32),
            num_effective=(is_taken & output.valid).astype(jnp.int32),
            actions=actions.at[0].set(jnp.where(is_run, 0, -1)),
            # Only the game knows whether what it is given is an action.
            num_valid=(is_answer & (output.valid | ~is_taken)).astype(jnp.int32),
            lacks_action=~is_answer,
            has_unknown=jnp.bool_(False),
            terminated=self.is_terminated(after, params),
            truncated=self.is_truncated(after, params),
        )
        return after, outcome


def build_game(spec: GameSpec, split: str) -> HostGame:
    """A game as a worker builds it, in this process."""
    return wrap(load_reference(spec.game)(split=split, **spec.kwargs), spec.wrappers)


def is_host_game(name: str) -> bool:
    """Whether a name is that of a host game, and not of an array environment.

    Args:
      name: in `envs.ENVIRONMENTS`, or as `make_host_game` takes it.

    Raises:
      ValueError: there is no such game.
    """
    if name.partition(":")[0] in ADAPTERS:
        return True
    if is_reference(name):
        entry = load_reference(name)
        return not (isinstance(entry, type) and issubclass(entry, base.TextEnvironment))
    if name in envs.ENVIRONMENTS or name in HOST_GAMES:
        return name not in envs.ENVIRONMENTS
    known = (*envs.ENVIRONMENTS, *HOST_GAMES)
    raise ValueError(
        f"no game {name!r}.{did_you_mean(name, known)} Choose one of "
        f"{', '.join(known)}; {_OTHERS}"
    )


# Worker processes of a game that waits for another machine.
WAITING_WORKERS = 32
# Those of agents, each of which has a process of its own.
AGENT_WORKERS = 64

_OTHERS = (
    "package.module:Class for your own; or "
    f"{', '.join(f'{name}:NAME' for name in ADAPTERS)} for those of other packages"
)


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
            f"no host game {name!r}.{did_you_mean(name, HOST_GAMES)} Choose one "
            f"of {', '.join(HOST_GAMES)}; {_OTHERS}"
        )
    return reference, kwargs


def _construct(
    name: str, make: type[HostGame], split: str, kwargs: Mapping[str, object]
) -> HostGame:
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
        # A wrong type or a defect of the game: the cause names its line.
        raise ValueError(f"{name} fails with these arguments: {error}") from error


def _check_time(name: str, limit: float | None, step_seconds: float) -> None:
    if limit is not None and limit >= step_seconds:
        raise ValueError(
            f"host.step_seconds = {step_seconds:g} ends a step before the time limit "
            f"of {name}, {limit:g} s, does: a reply that takes too long would fail its "
            f"row in place of being judged; set host.step_seconds above {limit:g}, or "
            f"lower the limit in env.kwargs"
        )


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, numbers.Integral) and value > 0)


_COUNT = "a whole number of at least 1, or None"
# What a game says of itself -> whether a value can be used, and which can.
_ATTRIBUTES = {
    "instruction": (lambda value: isinstance(value, str), "a text"),
    "metrics": (lambda value: isinstance(value, tuple | list), "a tuple of names"),
    "num_tasks": (_is_count, _COUNT),
    "longest_solution": (_is_count, _COUNT),
    "max_rows": (_is_count, _COUNT),
    "max_step_seconds": (
        lambda value: value is None or (isinstance(value, numbers.Real) and value > 0),
        "a number above 0, or None",
    ),
}


def _check_attributes(name: str, games: Iterable[HostGame]) -> None:
    pairs = itertools.product(games, _ATTRIBUTES.items())
    for game, (attribute, (is_good, allowed)) in pairs:
        value = getattr(game, attribute, None)
        if not is_good(value):
            raise ValueError(
                f"{name} says {attribute} = {reprlib.repr(value)}; it has to be "
                f"{allowed} (the contract: ragen_jax/host_games/base.py)"
            )


def _check_metrics(name: str, game: HostGame) -> None:
    for metric in game.metrics:
        if not re.fullmatch("[a-z0-9_]+", metric):
            raise ValueError(
                f"{name} reports a number {metric!r}; write its name in small letters, "
                "digits and '_'"
            )


def _refuse_wrappers(name: str, wrappers: Sequence[Sequence[Any]]) -> None:
    if wrappers:
        raise ValueError(
            f"host.wrappers = {wrappers!r} change messages and replies, and {name} "
            "makes whole calls; leave them out"
        )


def _in_json(name: str, kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Arguments as workers get them: lists for tuples, texts for keys."""
    try:
        return json.loads(json.dumps(kwargs))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} has arguments that cannot be written as JSON ({error}); use "
            "numbers, texts, lists and dicts"
        ) from error


def _check_grid(grid: Sequence[int] | None) -> None:
    sizes = () if grid is None else tuple(grid)
    if grid is not None and (len(sizes) != 2 or not all(map(_is_size, sizes))):
        raise ValueError(
            f"host.image_grid = {grid!r}; it has to be two whole numbers of at least "
            "1, rows and columns of tokens, such as (8, 8)"
        )


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0


def _check_class(reference: str, make: object) -> None:
    if not (isinstance(make, type) and issubclass(make, HostGame)):
        is_function = callable(make) and not isinstance(make, type)
        agent = f"; a function that calls the model is agent:{reference}"
        raise ValueError(
            f"{reference} is not a game: it must be a class derived from "
            f"ragen_jax.host_games.base.HostGame{agent if is_function else ''}"
        )


def make_host_game(
    name: str,
    kwargs: Mapping[str, object],
    *,
    wrappers: Sequence[Sequence[Any]] | None,
    max_observation_tokens: int,
    image_grid: Sequence[int] | None,
    num_widths: int,
    num_workers: int | None,
    start_seconds: float,
    step_seconds: float,
    max_worker_bytes: int | None,
    max_failed_fraction: float,
    **call_sizes: int | None,
) -> HostGameEnv:
    """A host game.

    Args:
      name: in `HOST_GAMES`, "package.module:Class", or a prefix of `ADAPTERS` and the
        name of an environment there: "gymnasium:FrozenLake-v1".
      kwargs: of its constructor.
      wrappers, max_observation_tokens, image_grid, num_widths, num_workers,
        start_seconds, step_seconds, max_worker_bytes: the section `host` of the
        configuration.
      max_failed_fraction: that of `rollout`.
      call_sizes: fields of `CallSizes`, also of that section; for agents alone.

    Raises:
      ValueError: there is no such game, or it refuses an argument.
    """
    reference, kwargs = _find_game(name, kwargs)
    wrappers = wrappers or ()
    make = load_reference(reference)
    _check_class(reference, make)
    kwargs = _in_json(name, kwargs)
    _check_grid(image_grid)
    games = {
        split: wrap(_construct(name, make, split, kwargs), wrappers) for split in SPLITS
    }
    _check_attributes(name, games.values())
    _check_metrics(name, games[TRAINING])
    _check_time(name, games[TRAINING].max_step_seconds, step_seconds)
    makes_calls = games[TRAINING].makes_calls
    if makes_calls:
        num_workers = num_workers or AGENT_WORKERS
        _refuse_wrappers(name, wrappers)
    elif num_workers is None and games[TRAINING].waits:
        num_workers = WAITING_WORKERS
    spec = GameSpec(
        game=reference,
        kwargs=kwargs,
        wrappers=wrappers,
        num_workers=num_workers,
        start_seconds=start_seconds,
        step_seconds=step_seconds,
        max_bytes=max_worker_bytes,
    )
    env = HostGameEnv(
        spec,
        games[TRAINING],
        num_tasks={split: game.num_tasks for split, game in games.items()},
        max_observation_tokens=max_observation_tokens,
        image_grid=None if image_grid is None else tuple(image_grid),
        num_widths=num_widths,
        max_failed_fraction=max_failed_fraction,
        call_sizes=CallSizes(**call_sizes) if makes_calls else None,
    )
    for game in games.values():
        game.close()
    return env
