"""Table of environments, and `make`, by which the rest of the project builds them.

Importing this package also registers the games with gymnax, so that any gymnax user can
train on them: `gymnax.make("ragen/Bandit-v0")`. Ids already present are left alone.
"""

import difflib
import inspect

from envs.light_gymnax import registration  # isort: skip, before gymnax elsewhere

from envs.bandit.env import Bandit
from envs.base import TextEnvironment
from envs.countdown.env import Countdown
from envs.cube.env import Cube2x2
from envs.frozen_lake.env import FrozenLake
from envs.game2048.env import Game2048
from envs.sokoban.env import Sokoban
from envs.sudoku.env import Sudoku


def make(name: str | type[TextEnvironment], **kwargs) -> TextEnvironment:
    """An environment, built with its constructor's keyword arguments.

    Args:
      name: key of `ENVIRONMENTS`, or a class derived from `TextEnvironment`.
      kwargs: arguments of the constructor.

    Raises:
      ValueError: the table has no such name, the class is not an environment, or the
        constructor does not take an argument or refuses its value.
    """
    if isinstance(name, str) and name not in ENVIRONMENTS:
        raise ValueError(
            f"no environment {name!r}{_suggest(name, ENVIRONMENTS)}; "
            f"choose one of {', '.join(ENVIRONMENTS)}, or package.module:Name for your "
            "own class"
        )
    environment = ENVIRONMENTS[name] if isinstance(name, str) else name
    if not (inspect.isclass(environment) and issubclass(environment, TextEnvironment)):
        raise ValueError(
            f"{environment!r} is not an environment: it must be a class derived from "
            "envs.base.TextEnvironment (docs/architecture.md has a complete one)"
        )
    name = name if isinstance(name, str) else environment.__name__
    allowed = list(inspect.signature(environment).parameters)
    for argument in kwargs:
        if argument not in allowed:
            raise ValueError(
                f"environment {name!r} takes no argument {argument!r}"
                f"{_suggest(argument, allowed)}; it takes {', '.join(allowed)}"
            )
    return environment(**kwargs)


def register_with_gymnax() -> None:
    """Adds the games to gymnax's registry; ids it already has are left alone."""
    for env_id, environment in GYMNAX_IDS.items():
        if env_id not in registration.registered_envs:
            registration.register(env_id, environment)


def _suggest(word: str, choices) -> str:
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


ENVIRONMENTS: dict[str, type[TextEnvironment]] = {
    "bandit": Bandit,
    "countdown": Countdown,
    "cube2x2": Cube2x2,
    "frozen_lake": FrozenLake,
    "game2048": Game2048,
    "sokoban": Sokoban,
    "sudoku": Sudoku,
}

GYMNAX_IDS: dict[str, type[TextEnvironment]] = {
    f"ragen/{environment.__name__}-v0": environment
    for environment in ENVIRONMENTS.values()
}

register_with_gymnax()
