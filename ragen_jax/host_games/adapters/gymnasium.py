"""Environments of Gymnasium as games.

In: the id of an environment and the names of its actions. Out: a `HostGame` that shows
its text and takes the names.

What is shown: what a function of the user's makes of an observation, where one is
given; else observations of a `Text` space as they are; else the text of the render mode
"ansi", where there is one; else, of discrete spaces, their numbers. In drawings with
colours, which a model cannot see, a coloured piece is written as [red S].
"""

import functools
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ragen_jax import install_command
from ragen_jax.host_games.adapters.common import (
    by_name,
    read_name,
    refuse_reply,
    refuse_task,
    short_name,
    spread_seed,
    write_instruction,
)
from ragen_jax.host_games.base import SPLITS, TRAINING, HostGame, Observation, Step
from ragen_jax.host_games.common.options import check_one_of
from ragen_jax.host_games.common.references import load_function
from ragen_jax.host_games.common.splits import check_split

# What a success is: a positive reward at the end, or any end.
REWARD, TERMINATED = SUCCESSES = ("reward", "terminated")

# Render modes.
IMAGE, TEXT = "rgb_array", "ansi"

_ESCAPE = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])")
# Codes of SGR, and what Gymnasium's `colorize` makes of them.
_COLORS = (
    "gray",
    "red",
    "green",
    "yellow",
    "blue",
    "magenta",
    "cyan",
    "white",
    "crimson",
)
# First codes of letters and of backgrounds, plain and bright.
_FIRST_CODES = (30, 40, 90, 100)


class GymnasiumGame(HostGame):
    """An environment of Gymnasium.

    A reply is the name of an action, in any case and with blanks around; of a `Text`
    space, the action itself. Any other reply is not given to the environment:
    nothing changes, it pays 0 and is invalid.

    Episodes are repeatable as far as the environment is: it gets a seed at each reset.
    Where the seed does not choose the problem (FrozenLake's default map), or several
    seeds choose the same one, the splits share problems, unless the environment keeps
    them apart itself (`reset_options`).
    """

    def __init__(
        self,
        split: str = TRAINING,
        *,
        id: str,
        make_kwargs: Mapping[str, Any] | None = None,
        action_names: Sequence[str] | None = None,
        success: str = REWARD,
        reset_options: Mapping[str, Mapping[str, Any]] | None = None,
        describe: str | None = None,
        images: bool = False,
        instruction: str | None = None,
    ):
        """Makes the environment.

        Args:
          split: one of `SPLITS`; training has even seeds, validation odd ones.
          id: of `gymnasium.make`; "module:id" imports the module first.
          make_kwargs: further arguments of `gymnasium.make`, but no render mode.
          action_names: of discrete actions, in order; None: what the environment's
            `get_action_meanings` says, or else numbers.
          success: "reward": the last reward is positive and the game has terminated;
            "terminated": it has terminated.
          reset_options: `options` of the environment's `reset` by split, for those
            that keep problems apart themselves; None: none.
          describe: a function, "package.module:function", that gets an observation of
            any space and returns its text; None: the environment's own text.
          images: the render mode "rgb_array" is shown, too, for models that see; the
            text is then that of `describe` or of a `Text` space, or there is none.
          instruction: the rules, which environments do not say; None: only the id.

        Raises:
          ImportError: gymnasium is not installed.
          ValueError: an option is wrong, or text cannot stand for a space.
        """
        check_split(split)
        check_one_of("success", success, SUCCESSES)
        check_one_of("images", images, (True, False))
        self._split, self._success, self._name = split, success, short_name(id)
        self._reset_options = _choose_options(split, reset_options)
        self._images = images
        mode = IMAGE if images else TEXT if describe is None else None
        self._env = _make(id, {} if make_kwargs is None else make_kwargs, mode)
        self._write = _choose_view(id, self._env, describe)
        names = _choose_names(id, self._env, action_names)
        self._actions = None if names is None else by_name(names)
        self.instruction = write_instruction(
            f"You are playing {id}." if instruction is None else instruction,
            None if names is None else list(names.values()),
        )

    @property
    def name(self) -> str:
        return self._name

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Begin an episode; there are no tasks."""
        refuse_task(task)
        seen, _ = self._env.reset(
            seed=spread_seed(self._split, seed), options=self._reset_options
        )
        self._shown = self._show(seen)
        return self._shown

    def step(self, reply: str) -> Step:
        """Take an action, if the reply is one."""
        action = self._read(reply)
        if action is None:
            return refuse_reply(self._shown)
        seen, reward, terminated, truncated, _ = self._env.step(action)
        self._shown = self._show(seen)
        is_success = terminated and (self._success == TERMINATED or reward > 0)
        return Step(
            observation=self._shown,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info={"success": bool(is_success), "valid": True},
        )

    def close(self) -> None:
        self._env.close()

    def _show(self, seen: Any) -> Observation:
        images = (np.asarray(self._env.render()),) if self._images else ()
        return Observation(self._write(seen), images)

    def _read(self, reply: str) -> Any | None:
        if self._actions is not None:
            return read_name(reply, self._actions)
        return reply if self._env.action_space.contains(reply) else None


def uncolor(text: str) -> str:
    """A text for terminals without its escape codes: coloured pieces get a name.

    `S` on a red background, or in red letters, becomes `[red S]`.
    """
    pieces, color, end = [], None, 0
    # One empty match at the end, so that the last piece is written as well.
    for match in re.finditer(f"{_ESCAPE.pattern}|\\Z", text):
        piece = text[end : match.start()]
        pieces.append(f"[{color} {piece}]" if color and piece else piece)
        end = match.end()
        if match[2] == "m":
            color = _read_color(match[1], color)
    return "".join(pieces)


def _read_color(codes: str, color: str | None) -> str | None:
    for code in codes.split(";"):
        number = int(code) if code.isdigit() else 0
        if number == 0:
            color = None
        for first in _FIRST_CODES:
            if first <= number < first + len(_COLORS):
                color = _COLORS[number - first]
    return color


def _make(id: str, kwargs: Mapping[str, Any], mode: str | None) -> Any:
    """The environment.

    Args:
      mode: its render mode; `TEXT` only where it needs and has it. None: none.
    """
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise ImportError(
            "environments of Gymnasium need the package gymnasium: "
            + install_command("gymnasium")
        ) from error
    if not isinstance(kwargs, Mapping) or "render_mode" in kwargs:
        raise ValueError(
            f"make_kwargs is {kwargs!r}; use a mapping without render_mode, which is "
            "chosen here"
        )
    try:
        env = gymnasium.make(id, **kwargs)
        is_text = isinstance(env.observation_space, gymnasium.spaces.Text)
        modes = env.metadata.get("render_modes", ())
        if mode == IMAGE and mode not in modes:
            raise ValueError(
                f"images=True, but {id} has no render mode {IMAGE!r}; it has "
                f"{', '.join(map(repr, modes)) or 'none'}"
            )
        if mode is None or (mode == TEXT and (is_text or mode not in modes)):
            return env
        env.close()
        return gymnasium.make(id, render_mode=mode, **kwargs)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise ValueError(
            f"id is {id!r}: {error} Use an id of gymnasium.pprint_registry(), or "
            "module:id to import the module that registers it"
        ) from error


def _choose_options(
    split: str, given: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any] | None:
    if given is None:
        return None
    if not (
        isinstance(given, Mapping)
        and set(given) <= set(SPLITS)
        and all(isinstance(options, Mapping) for options in given.values())
    ):
        raise ValueError(
            f"reset_options is {given!r}; use a mapping from {' or '.join(SPLITS)} to "
            "options, such as {'validation': {'split': 'validation'}}"
        )
    return dict(given[split]) if split in given else None


def _choose_view(id: str, env: Any, describe: str | None) -> Callable[[Any], str]:
    from gymnasium import spaces

    if describe is not None:
        return functools.partial(
            _describe, describe, load_function("describe", describe)
        )
    if isinstance(env.observation_space, spaces.Text):
        return str
    if env.render_mode == TEXT:
        return lambda seen: uncolor(env.render()).strip("\n")
    if env.render_mode == IMAGE:
        return lambda seen: ""
    if _is_discrete(env.observation_space):
        return _write_numbers
    raise ValueError(
        f"{id} shows {env.observation_space} and has no render mode 'ansi'; "
        "environments must have one, or show Text, Discrete, MultiDiscrete, "
        "MultiBinary or a Tuple of these: wrap this one, or set describe to a function "
        "that writes its observations"
    )


def _describe(name: str, function: Callable[[Any], str], seen: Any) -> str:
    try:
        text = function(seen)
    except Exception as error:  # it is the user's, and may raise anything
        raise ValueError(
            f"describe is {name!r}, which raises {type(error).__name__}: {error} at "
            f"the observation {reprlib.repr(seen)}; change it to return a text"
        ) from error
    if not isinstance(text, str):
        raise ValueError(
            f"describe is {name!r}, which returns {reprlib.repr(text)} for the "
            f"observation {reprlib.repr(seen)}; change it to return a text"
        )
    return text


def _is_discrete(space: Any) -> bool:
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return all(map(_is_discrete, space.spaces))
    kinds = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    return isinstance(space, kinds)


def _write_numbers(seen: Any) -> str:
    """The numbers of an observation of discrete spaces, blanks between them."""
    if isinstance(seen, tuple):
        return " ".join(map(_write_numbers, seen))
    return " ".join(str(int(number)) for number in np.ravel(seen))


def _choose_names(
    id: str, env: Any, given: Sequence[str] | None
) -> dict[int, str] | None:
    """Discrete action -> its name; None for actions that are texts."""
    from gymnasium import spaces

    space = env.action_space
    if isinstance(space, spaces.Text):
        if given is not None:
            raise ValueError(
                f"action_names is {given!r}, but actions of {id} are texts; leave it "
                "out"
            )
        return None
    if not isinstance(space, spaces.Discrete):
        raise ValueError(
            f"{id} takes {space}; environments must take Discrete or Text actions: "
            "wrap this one"
        )
    actions = range(int(space.start), int(space.start + space.n))
    if given is None and hasattr(env.unwrapped, "get_action_meanings"):
        given = env.unwrapped.get_action_meanings()
    names = [str(action) for action in actions] if given is None else given
    if isinstance(names, str) or len(names) != len(actions):
        raise ValueError(
            f"action_names is {given!r}; {id} has {len(actions)} actions: use a list "
            "of as many names"
        )
    return dict(zip(actions, names, strict=True))
