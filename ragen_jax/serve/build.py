"""The game that a command line asks for.

In: a training configuration. Out: its game, ready to be played by sessions.
"""

from collections.abc import Collection

from ml_collections import ConfigDict

import envs
from envs.base import TextEnvironment
from ragen_jax.config import refuse_unread, validate
from ragen_jax.evaluation.api.evaluate import build_chat
from ragen_jax.host_games import ADAPTERS, HOST_GAMES
from ragen_jax.registry.functions import did_you_mean, is_reference, load_reference
from ragen_jax.rollout.host.env import World
from ragen_jax.serve.games import ArrayGame, Game, WorldGame
from ragen_jax.tasks.specs import env_specs, make_env

# Keys of a configuration that change what is served: of a game in Python, of arrays.
WORLD_KEYS = (
    "env.host",
    "env.kwargs",
    "host.wrappers",
    "host.step_seconds",
    "host.max_worker_bytes",
)
ARRAY_KEYS = (
    "env",
    "prompt.style",
    "prompt.thinking",
    "prompt.length_hint_words",
    "rollout.max_turns",
    "rollout.max_actions_per_turn",
    "rollout.max_actions_per_episode",
)


def choose_game(config: ConfigDict, name: str) -> None:
    """Set the game of a configuration to one of arrays or in Python, by its name.

    Raises:
      ValueError: there is no such game.
    """
    if name.partition(":")[0] in ADAPTERS:
        is_array = False
    elif is_reference(name):
        entry = load_reference(name)
        is_array = isinstance(entry, type) and issubclass(entry, TextEnvironment)
    elif name in envs.ENVIRONMENTS or name in HOST_GAMES:
        is_array = name in envs.ENVIRONMENTS
    else:
        known = (*envs.ENVIRONMENTS, *HOST_GAMES)
        raise ValueError(
            f"no game {name!r}.{did_you_mean(name, known)} Choose one of "
            f"{', '.join(known)}; package.module:Class for one of yours; or "
            f"{', '.join(f'{door}:NAME' for door in ADAPTERS)} for others'"
        )
    with config.ignore_type():
        config.env.mix = None
        config.env.host = None if is_array else name
    if is_array:
        config.env.name = name


def build_game(config: ConfigDict, overrides: Collection[str] = ()) -> Game:
    """The game of a configuration; a moment for one in Python, seconds for arrays.

    Args:
      config: of a task; changed in place.
      overrides: dotted paths that the user set.

    Raises:
      ValueError: there is no such game, it refuses an option, there are several, or an
        override changes nothing here.
      ImportError: the game needs a package that is not installed.
    """
    if config.env.mix is not None:
        raise ValueError(
            "env.mix plays several games; serve one of them per port, with --env=NAME"
        )
    is_world = config.env.host is not None
    known = WORLD_KEYS if is_world else ARRAY_KEYS
    refuse_unread(overrides, known, "on what is served")
    if config.prompt.style == "terse" and "prompt.style" not in overrides:
        # Clients are models that have never seen the game.
        config.prompt.style = "full"
    if is_world:
        # Its limits are its own; a turn is an answer.
        config.rollout.max_actions_per_turn = 1
        config.rollout.max_actions_per_episode = config.rollout.max_turns
    validate(config, overrides)
    (spec,) = env_specs(config)
    if is_world:
        world, _ = make_env(spec)
        assert isinstance(world, World)
        return WorldGame(world)
    task, game = build_chat(config, spec)
    return ArrayGame(task.name, game)
