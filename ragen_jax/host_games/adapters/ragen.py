"""Environments written for RAGEN as games.

In: the class of an environment, the class and the values of its configuration. Out: a
`HostGame` that calls it as RAGEN's environment manager does: `reset(seed=, mode=)`,
`render()` for everything that is shown, `step(action)`, `close()`. What `reset` and
`step` observe is shown where `render()` gives nothing. The environment needs no change,
and RAGEN only where it imports it.

Source: RAGEN's ragen/env/base.py and ragen/llm_agent/es_manager.py, as called. An
answer with several actions is the business of the wrapper "split", the limit of actions
of "budget", the penalty of "penalize" (`wrappers.py`).
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ragen_jax.host_games.adapters.common import (
    by_name,
    read_name,
    refuse_reply,
    refuse_task,
    short_name,
    spread_seed,
    write_instruction,
)
from ragen_jax.host_games.base import TRAINING, HostGame, Observation, Step
from ragen_jax.host_games.common.references import load_class
from ragen_jax.host_games.common.splits import check_split

# What RAGEN calls the splits.
_MODES = {"training": "train", "validation": "val"}


class RagenGame(HostGame):
    """An environment of RAGEN's `BaseEnv` shape.

    Where its configuration has an `action_lookup` (action -> name), or the environment
    an `ACTION_LOOKUP`, a reply is a name from it, in any case; other replies are
    invalid, pay 0 and do not reach the environment. Where it has none, every reply but
    an empty one is given to `step`, without the blanks around it.

    `done` is `terminated`: what was a limit of time cannot be known. `info["success"]`
    and `info["action_is_valid"]` are taken over (`StaticEnv` says `is_valid`); without
    them a step is valid and not a success. Further numbers of `info` are dropped.

    RAGEN plays validation with other seeds, mode "val", and leaves the rest to the
    environment, of which several draw from one file with either mode; here seeds differ
    for sure (`spread_seed`). Randomness beyond the seed, such as RAGEN's `Bandit` has,
    is the environment's.
    """

    def __init__(
        self,
        split: str = TRAINING,
        *,
        env: str,
        config: str | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        instruction: str | None = None,
    ):
        """Makes the environment, with its configuration as the only argument.

        Args:
          split: one of `SPLITS`; training has even seeds, validation odd ones.
          env: its class, "package.module:Class".
          config: the class of its configuration; None: the environment's own default.
          config_kwargs: arguments of `config`, RAGEN's `env_config`. Keys of those that
            end in `_lookup` or `_map` are whole numbers, also where JSON made texts of
            them.
          instruction: the rules, RAGEN's `env_instruction`; names of actions are added.
            None: only the name of the class.

        Raises:
          ValueError: a class cannot be loaded, or options do not go together.
        """
        check_split(split)
        make = load_class("env", env)
        self._split, self._name = split, short_name(env)
        self._env = make(*_configure(config, config_kwargs))
        self.instruction = write_instruction(
            f"You are playing {make.__name__}." if instruction is None else instruction,
            list(self._names().values()) or None,
        )

    @property
    def name(self) -> str:
        return self._name

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Begin an episode; there are no tasks."""
        refuse_task(task)
        # That of `StaticEnv` knows no modes.
        modes = {"mode": _MODES[self._split]} if _takes_mode(self._env.reset) else {}
        observed = self._env.reset(seed=spread_seed(self._split, seed), **modes)
        # Some environments name their actions anew in each episode.
        self._actions = by_name(self._names())
        # As Gymnasium's, some give a pair of what is observed and `info`.
        pair = isinstance(observed, tuple) and len(observed) == 2
        self._shown = self._render(observed[0] if pair else observed)
        return self._shown

    def step(self, reply: str) -> Step:
        """Take an action, if the reply is one."""
        action: Any = reply.strip() or None
        if self._actions:
            action = read_name(reply, self._actions)
        if action is None:
            return refuse_reply(self._shown)
        observed, reward, done, info = self._env.step(action)
        self._shown = self._render(observed)
        return Step(
            observation=self._shown,
            reward=reward,
            terminated=done,
            truncated=False,
            info={
                "success": _flag(info, "success", missing=False),
                "valid": _flag(
                    info,
                    "action_is_valid",
                    missing=_flag(info, "is_valid", missing=True),
                ),
            },
        )

    def close(self) -> None:
        self._env.close()

    def _names(self) -> Mapping[Any, str]:
        """Action -> its name, at present; empty where actions are texts."""
        lookup = getattr(getattr(self._env, "config", None), "action_lookup", None)
        if lookup is None:
            lookup = getattr(self._env, "ACTION_LOOKUP", None)
        return {} if lookup is None else lookup

    def _render(self, observed: Any) -> Observation:
        """What is rendered, or what was observed where that is nothing."""
        text = self._env.render()
        if text is None:
            text = observed
        if not isinstance(text, str):
            raise ValueError(
                f"{type(self._env).__name__} shows {type(text).__name__}, and only "
                "text can be shown; set config_kwargs={'render_mode': 'text'} if its "
                "configuration has a render_mode, else give text from render(), reset "
                "and step"
            )
        return Observation(text)


def _takes_mode(reset: Callable[..., Any]) -> bool:
    parameters = inspect.signature(reset).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    return "mode" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _flag(info: Mapping[str, Any], name: str, *, missing: bool) -> Any:
    value = info.get(name)
    return missing if value is None else value


def _configure(reference: str | None, kwargs: Mapping[str, Any] | None) -> tuple:
    if reference is None:
        if kwargs is not None:
            raise ValueError(
                f"config_kwargs is {kwargs!r}, but nothing says of which class; set "
                "config to package.module:Class, or leave config_kwargs out"
            )
        return ()
    make = load_class("config", reference)
    values = {} if kwargs is None else {n: _lookup(n, v) for n, v in kwargs.items()}
    try:
        return (make(**values),)
    except TypeError as error:
        raise ValueError(
            f"config_kwargs is {kwargs!r}, which {reference} does not take: {error}"
        ) from error


def _lookup(name: str, value: Any) -> Any:
    """An argument; the keys of a lookup are numbers again.

    Workers get arguments as JSON, whose keys are texts.
    """
    if not (name.endswith(("_lookup", "_map")) and isinstance(value, Mapping)):
        return value
    try:
        return {int(key): named for key, named in value.items()}
    except ValueError as error:
        raise ValueError(
            f"config_kwargs has {name}={value!r}; use whole numbers as keys"
        ) from error
