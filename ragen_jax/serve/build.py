"""The game, or the policy, that a command line asks for.

In: a training configuration. Out: its game, ready to be played by sessions. Or, in: a
run or a model's folder. Out: its policy, ready to answer calls.
"""

import pathlib
from collections.abc import Collection

from ml_collections import ConfigDict

from ragen_jax.config import check_kind, refuse_unread, validate
from ragen_jax.evaluation.load import open_trained
from ragen_jax.models.families import check_reads_text_alone
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.policy import build_policy
from ragen_jax.rollout.host.env import is_host_game
from ragen_jax.serve.games import Game, ServedArrayGame, ServedHostGame
from ragen_jax.serve.policy import ServedPolicy
from ragen_jax.tasks.chat import build_chat
from ragen_jax.tasks.specs import env_specs, make_env
from ragen_jax.text.tokenizer import check_vocabulary, load_tokenizer

# Keys of a configuration that change what is served: of a host game, of an array game.
HOST_KEYS = (
    "env.host",
    "env.kwargs",
    "host.wrappers",
    "host.start_seconds",
    "host.step_seconds",
    "host.max_worker_bytes",
)
ARRAY_KEYS = (
    "env",
    "prompt.style",
    "prompt.thinking",
    "prompt.length_hint_words",
    "prompt.observation",
    "rollout.max_turns",
    "rollout.max_actions_per_turn",
    "rollout.max_actions_per_episode",
)


def open_policy(path: pathlib.Path, defaults: ConfigDict) -> ServedPolicy:
    """The policy of a run, of one of its checkpoints, or of a model's folder.

    Args:
      defaults: see `open_trained`.

    Raises:
      ValueError: it is none of these.
    """
    if (path / "model.safetensors").exists() or list(path.glob("*.index.json")):
        model, params = load_checkpoint(path)
        check_reads_text_alone(model)
        tokenizer = load_tokenizer(path)
        check_vocabulary(str(path), tokenizer, model.vocab_size)
        return ServedPolicy(path.name, build_policy(model), params, tokenizer)
    trained = open_trained(path, None, defaults=defaults)
    program = trained.program
    check_reads_text_alone(program.model)
    name = trained.workdir.name
    return ServedPolicy(name, program.policy, trained.params, program.task.tokenizer)


def choose_game(config: ConfigDict, name: str) -> None:
    """Set the game of a configuration to an array or a host game, by its name.

    Raises:
      ValueError: there is no such game.
    """
    is_host = is_host_game(name)
    with config.ignore_type():
        config.env.mix = None
        config.env.host = name if is_host else None
    if not is_host:
        config.env.name = name


def build_game(config: ConfigDict, overrides: Collection[str] = ()) -> Game:
    """The game of a configuration; a moment for a host game, seconds for arrays.

    Args:
      config: of a task; changed in place.
      overrides: dotted paths that the user set.

    Raises:
      ValueError: there is no such game, it refuses an option, there are several, or an
        override changes nothing here.
      ImportError: the game needs a package that is not installed.
    """
    check_kind(config)
    if config.env.mix is not None:
        raise ValueError(
            "env.mix plays several games; serve one of them per port, with --env=NAME"
        )
    is_host = config.env.host is not None
    known = HOST_KEYS if is_host else ARRAY_KEYS
    refuse_unread(overrides, known, "on what is served")
    if config.prompt.style == "terse" and "prompt.style" not in overrides:
        # Clients are models that have never seen the game.
        config.prompt.style = "full"
    if is_host:
        # Its limits are its own; a turn is an answer.
        config.rollout.max_actions_per_turn = 1
        config.rollout.max_actions_per_episode = config.rollout.max_turns
    validate(config, overrides)
    (spec,) = env_specs(config)
    if is_host:
        return ServedHostGame(make_env(spec)[0])
    task, game = build_chat(config, spec)
    return ServedArrayGame(task.name, game)
