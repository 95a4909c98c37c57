"""What games of other libraries have in common: seeds, names of actions, references.

In: what the user says of an environment. Out: what `adapters.gymnasium` and
`adapters.ragen` need to play it as a `HostGame`. Knows neither library.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragen_jax.host_games.base import VALIDATION, Observation, Step
from ragen_jax.host_games.common.texts import compose

# Half of the seeds below 2**31, the largest that all libraries take.
_NUM_SEEDS = 2**30
# Longer replies are not actions, and are not compared with names.
MAX_ACTION_CHARS = 1_000


def spread_seed(split: str, seed: int) -> int:
    """The seed of an environment: even in training, odd in validation.

    Environments know no splits. Where a seed decides which problem is played, no
    problem is in both; where it does not, only their user can tell them apart.
    """
    return 2 * (seed % _NUM_SEEDS) + (split == VALIDATION)


def refuse_task(task: int | None) -> None:
    """Raise ValueError for a task: these environments have only seeds."""
    if task is not None:
        raise ValueError(f"task is {task}, but the game has no tasks; use None")


def short_name(name: str) -> str:
    """The last part of the name of an environment, without letters no metric has."""
    last = re.split(r"[:/.]", name)[-1]
    return re.sub(r"[^A-Za-z0-9_-]", "-", last)


def by_name(names: Mapping[Any, str]) -> dict[str, Any]:
    """Actions by their names in small letters.

    Args:
      names: action -> its name.

    Raises:
      ValueError: two names are the same, or one cannot be written as a reply.
    """
    actions: dict[str, Any] = {}
    for action, name in names.items():
        if not isinstance(name, str) or not name or name != name.strip():
            raise ValueError(
                f"the action {action!r} has the name {name!r}; use a text without "
                "blanks around it"
            )
        if key(name) in actions:
            raise ValueError(
                f"two actions have the name {name!r}; use different ones, capital "
                "letters do not count"
            )
        actions[key(name)] = action
    return actions


def key(name: str) -> str:
    """What is compared of a name: small letters, composed (NFC)."""
    return compose(name).lower()


def read_name(reply: str, actions: Mapping[str, Any]) -> Any | None:
    """The action that a reply names, None if it names none."""
    text = reply.strip()
    if len(text) > MAX_ACTION_CHARS:
        return None
    return actions.get(key(text))


def write_instruction(rules: str, names: Sequence[str] | None) -> str:
    """The rules, and the names of the actions where there are any."""
    if names is None:
        return rules
    return f"{rules}\nReply with one action: {', '.join(names)}."


def refuse_reply(shown: Observation) -> Step:
    """The step of a reply that is not an action: the environment does not see it."""
    return Step(shown, 0.0, False, False, {"success": False, "valid": False})


def load_class(option: str, reference: str) -> type:
    """The class that "package.module:Class" names.

    Raises:
      ValueError: the text has another form, or there is no such class.
    """
    return _load(option, reference, "Class", lambda found: isinstance(found, type))


def load_function(option: str, reference: str) -> Callable[..., Any]:
    """The function that "package.module:function" names.

    Raises:
      ValueError: the text has another form, or there is no such function.
    """
    return _load(option, reference, "function", callable)


def _load(option: str, reference: str, kind: str, is_one: Callable[[Any], bool]) -> Any:
    module_name, _, name = str(reference).partition(":")
    if not module_name or not name.isidentifier():
        raise ValueError(f"{option} is {reference!r}; use package.module:{kind}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{option} is {reference!r}, but there is no module {error.name}; install "
            "it, or start in the folder that has it"
        ) from error
    found = getattr(module, name, None)
    if not is_one(found):
        raise ValueError(
            f"{option} is {reference!r}, but {module_name} has no {kind.lower()} {name}"
        )
    return found
