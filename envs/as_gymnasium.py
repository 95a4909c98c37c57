"""The array games as Gymnasium environments; importing this module registers them.

    import gymnasium, envs.as_gymnasium
    env = gymnasium.make("ragen_jax/Sokoban-v0")
    text, info = env.reset(seed=3, options={"split": "validation"})

In: seeds and actions, numbers or texts. Out: texts, rewards, ends. Batches, levels made
in advance and exact play stay with the array games. Needs gymnasium
(`pip install -e ".[gymnasium]"`), which nothing else in this package imports.
"""

import dataclasses
import functools
import itertools
import numbers
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from envs import ENVIRONMENTS, make
from envs.base import SPLITS, TRAINING, EnvParams, TextEnvironment
from envs.templates import Cells, Choice, Grid, Number, Passage, Template

# Pixels of a cell's side, of `render`.
CELL = 32
# How actions are given.
INDEX, TEXT = ACTIONS = ("index", "text")
# Characters of answers, together with those of the action names.
_ASCII = "".join(map(chr, range(32, 127))) + "\t\n\r"
# White space around an action does not count; as on the device, only that of ASCII.
_BLANKS = " \t\n\r\f\v"


class GymnasiumText(gymnasium.Env):
    """A game whose observations are texts.

    `reset(seed=n)` is the level that `reset_split` draws with the first key of
    `jax.random.split(jax.random.key(n))`; what is random during play comes from the
    second key, folded with the number of steps taken. Without a seed, n is drawn from
    `np_random`. `options={"split": "validation"}` draws a level that training never
    shows.

    `info` has `success` (the goal has been reached), `effective` (the action changed
    the player's situation) and `valid` (the text was an action). A text that is not an
    action changes nothing and pays nothing.

    The end of a game of a single step is `terminated`, though the array game calls a
    failed attempt `truncated`: to Gymnasium's checker that is an error.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        game: str,
        actions: str | None = None,
        render_mode: str | None = None,
        params: Mapping[str, float] | None = None,
        **kwargs: Any,
    ):
        """Builds a game.

        Args:
          game: key of `envs.ENVIRONMENTS`.
          actions: "index": a number; "text": what a model would answer. None: "index"
            if action names are the same in every level, else "text".
          render_mode: "ansi": `render` returns the observation; "rgb_array": a
            picture of the board, uint8[H, W, 3]. None: no rendering.
          params: fields of the game's `EnvParams`, such as rewards and the time limit;
            None: the defaults.
          kwargs: of the game's constructor.

        Raises:
          ValueError: an argument is wrong.
        """
        if actions not in (None, *ACTIONS):
            raise ValueError(
                f"actions={actions!r}; use {' or '.join(ACTIONS)}, or None for the "
                "game's default"
            )
        listed = {name: _hashable(value) for name, value in kwargs.items()}
        self.game, self._play = _compile(game, tuple(sorted(listed.items())))
        if self.game.picture is None:
            self.metadata = {**self.metadata, "render_modes": ["ansi"]}
        modes = self.metadata["render_modes"]
        if render_mode not in (None, *modes):
            raise ValueError(
                f"render_mode={render_mode!r}; use {' or '.join(modes)}, or None"
            )
        self.render_mode = render_mode
        self._params = _choose_params(self.game, params)
        has_fixed_names = len(self.game.action_vocabulary) == self.game.num_actions
        self._takes_text = actions == TEXT or (actions is None and not has_fixed_names)
        self.observation_space = _text_space(self.game.template)
        self.action_space = spaces.Discrete(self.game.num_actions)
        if self._takes_text:
            self.action_space = _answer_space(self.game)

    def get_action_meanings(self) -> list[str]:
        """Names of the actions, by number; the numbers where names depend on levels."""
        names = self.game.action_vocabulary
        if len(names) == self.game.num_actions:
            return list(names)
        return [str(number) for number in range(self.game.num_actions)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
          seed: of the level and of all that is random during play, below 2**32.
          options: `split`, one of `envs.base.SPLITS`; None: training.

        Raises:
          ValueError: an option is unknown, or the seed is too large.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        split = options.pop("split", TRAINING)
        if split not in SPLITS or options:
            raise ValueError(
                f"options has split={split!r} and besides {options!r}; use "
                f"{{'split': ...}} with one of {', '.join(SPLITS)}"
            )
        if seed is not None and seed >= 2**32:
            raise ValueError(f"seed={seed}; use a whole number below 2**32")
        drawn = int(self.np_random.integers(2**32)) if seed is None else seed
        level_key, self._noise_key = jax.random.split(jax.random.key(drawn))
        self._state = self._play.reset(level_key, self._params, split)
        return self._see(), {"success": False, "effective": False, "valid": True}

    def step(self, action: int | str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action.

        Raises:
          ValueError: it is a number that does not stand for an action.
        """
        index = self._read(action) if self._takes_text else self._check(action)
        if index is None:
            info = {"success": False, "effective": False, "valid": False}
            return self._text, 0.0, False, False, info
        outcome = self._play.step(self._noise_key, self._state, index, self._params)
        self._state, reward, terminated, truncated, info = outcome
        flags = {name: bool(value) for name, value in jax.device_get(info).items()}
        ends = bool(terminated), bool(truncated)
        if self._params.max_steps_in_episode == 1:
            ends = any(ends), False
        return self._see(), float(reward), *ends, {**flags, "valid": True}

    def render(self) -> str | np.ndarray | None:
        """The observation, or the picture of the board."""
        if self.render_mode is None:
            gymnasium.logger.warn(
                "render was called without a render mode; use "
                "gymnasium.make(..., render_mode='ansi') or 'rgb_array'"
            )
            return None
        if self.render_mode == "ansi":
            return self._text
        return np.asarray(self._play.pixels(self._state, self._params))

    def _see(self) -> str:
        fields = self._play.text_fields(self._state, self._params)
        self._text = self.game.template.render(jax.device_get(fields))
        return self._text

    def _check(self, action: int) -> int:
        # JAX clips indices: a number out of range would run another action.
        if not self.action_space.contains(action):
            raise ValueError(
                f"action={action!r}; use a number from 0 to {self.game.num_actions - 1}"
            )
        return int(action)

    def _read(self, action: str) -> int | None:
        """The number of the action that a text asks for, None if there is none."""
        if not isinstance(action, str):
            raise ValueError(f"action={action!r}; use a text, as the game's rules say")
        text = action.strip(_BLANKS)
        if self.game.action_hint is not None:
            return self._read_bytes(text.encode("utf-8", "replace"))
        names = jax.device_get(self._play.action_names(self._state, self._params))
        vocabulary = self.game.action_vocabulary
        indices = {vocabulary[name].lower(): i for i, name in enumerate(names)}
        return indices.get(text.lower())

    def _read_bytes(self, text: bytes) -> int | None:
        size = self.game.answer_bytes
        if not 0 < len(text) <= size:
            return None
        padded = jnp.asarray(np.frombuffer(text.ljust(size, b"\0"), np.uint8))
        index = int(self._play.read(padded, len(text), self._state, self._params))
        return index if index >= 0 else None


class _Play:
    """The functions of a game, compiled once for all environments that play it."""

    def __init__(self, game: TextEnvironment):
        self.reset = jax.jit(game.reset_split, static_argnums=2)
        self.text_fields = jax.jit(game.text_fields)
        self.action_names = jax.jit(game.action_names)
        self.read = jax.jit(game.read_action)
        self.pixels = jax.jit(lambda state, params: game.pixels(state, params, CELL))

        @jax.jit
        def step(noise_key, state, action, params):
            key = jax.random.fold_in(noise_key, state.time)
            _, state, reward, terminated, info = game.step_env(
                key, state, action, params
            )
            truncated = game.is_truncated(state, params)
            return state, reward, terminated, truncated, info

        self.step = step


@functools.cache
def _compile(name: str, kwargs: tuple) -> tuple[TextEnvironment, _Play]:
    game = make(name, **dict(kwargs))
    return game, _Play(game)


def _choose_params(
    game: TextEnvironment, given: Mapping[str, float] | None
) -> EnvParams:
    params = game.default_params
    allowed = [field.name for field in dataclasses.fields(params)]
    for name in given or ():
        if name not in allowed:
            raise ValueError(
                f"params has {name!r}; {game.name} has {', '.join(allowed)}"
            )
        if isinstance(given[name], bool) or not isinstance(given[name], numbers.Real):
            raise ValueError(f"params: {name} = {given[name]!r}; it must be a number")
    params = params.replace(**(given or {}))
    if problem := game.params_problem(params):
        raise ValueError(f"params: {problem}")
    return params


def _hashable(value: Any) -> Any:
    """Lists, which JSON and configurations have for tuples, as tuples."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _text_space(template: Template) -> spaces.Text:
    """Texts as long as the template's longest, of its characters."""
    pieces = [_longest(part) for part in template.parts]
    characters = frozenset().union(*(characters for _, characters in pieces))
    return spaces.Text(
        max_length=sum(length for length, _ in pieces),
        # Sorted: samples must not depend on the order of a set.
        charset="".join(sorted(characters)),
    )


def _longest(part: Any) -> tuple[int, set[str]]:
    """Length of the longest text of a part, and the characters its texts can have."""
    match part:
        case str():
            return len(part), set(part)
        case Choice():
            return max(map(len, part.options)), set().union(*part.options)
        case Grid():
            cell = max(map(len, part.symbols)) + len(part.separator)
            characters = set().union(*part.symbols, part.separator, "\n")
            return part.rows * (part.cols * cell + 1), characters
        case Number():
            ends = (part.minimum, part.maximum)
            longest = max(len(str(end)) for end in ends) + part.decimals + 1
            return longest, set("-.0123456789")
        case Cells():
            cells = itertools.product(range(part.rows), range(part.cols))
            places = ["".join(part.place(row, col)) for row, col in cells]
            first, between, end = part.around
            place = max(map(len, places)) + len(between)
            longest = len(first) + part.max_cells * place + len(end)
            return longest, set().union(first, between, end, *places)
        case Passage():
            raise ValueError(
                f"the text of {part.name!r} is known to the host only; use the host "
                "game itself"
            )
    raise TypeError(f"{part!r} is not a part of a template")


def _answer_space(game: TextEnvironment) -> spaces.Text:
    """Texts that can be actions, with some room for blanks."""
    longest = max([game.answer_bytes, *map(len, game.action_vocabulary)])
    characters = set(_ASCII).union(*game.action_vocabulary)
    return spaces.Text(max_length=longest + 16, charset="".join(sorted(characters)))


def register_with_gymnasium() -> None:
    """Adds the games to Gymnasium's registry; ids it already has are left alone."""
    for env_id, name in GYMNASIUM_IDS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(
                id=env_id,
                entry_point="envs.as_gymnasium:GymnasiumText",
                kwargs={"game": name},
            )


# "ragen_jax/Sokoban-v0" -> key of `ENVIRONMENTS`.
GYMNASIUM_IDS = {
    f"ragen_jax/{environment.__name__}-v0": name
    for name, environment in ENVIRONMENTS.items()
}

register_with_gymnasium()
