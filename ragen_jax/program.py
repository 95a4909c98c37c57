"""Builds everything a run needs from its configuration: the only place that does.

In: a validated configuration. Out: a `Program`: the game, the dialogue, the policy and
the compiled functions that train and evaluate. Sections of the configuration are spread
as keyword arguments, so a key that no function accepts is a `TypeError` at start-up.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Key
from ml_collections import ConfigDict

import envs
from envs.base import EnvParams, PlayBudget, TextEnvironment
from ragen_jax import rngs
from ragen_jax.config import play_budget, validate
from ragen_jax.learner import sharding
from ragen_jax.learner.optimizer import build_optimizer
from ragen_jax.learner.state import TrainState, init_state, state_shardings
from ragen_jax.learner.update import make_update
from ragen_jax.models.hf_files import resolve_checkpoint
from ragen_jax.models.hf_weights import load_checkpoint
from ragen_jax.models.qwen2 import Policy, Qwen2Config, build_policy, logical_axes
from ragen_jax.rollout.device import make_collect, rollout_keys
from ragen_jax.text.dialogue import Dialogue, build_dialogue
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer
from ragen_jax.types import Params, Trajectory

POCKET = pathlib.Path(__file__).parent / "pocket"


@dataclasses.dataclass(frozen=True)
class Game:
    """An environment and the dialogue it is played in.

    Attributes:
      env, params: the environment and its parameters.
      budget: how much play an episode allows.
      tokenizer, dialogue: how states become tokens and replies become actions.
    """

    env: TextEnvironment
    params: EnvParams
    budget: PlayBudget
    tokenizer: Tokenizer
    dialogue: Dialogue


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything a run needs.

    Attributes:
      game: what is played.
      policy, model: the network's pure functions and its description.
      state: the train state before the first iteration, on its devices.
      collect: `(params, step_key) -> Trajectory`, training's groups and temperature.
      collect_validation: the same for the fixed validation prompts, `params` only.
      update: `(state, trajectory, key) -> (state, stats)`; donates the state.
    """

    game: Game
    policy: Policy
    model: Qwen2Config
    state: TrainState
    collect: Callable[[Params, Key[Array, ""]], Trajectory]
    collect_validation: Callable[[Params], Trajectory]
    update: Callable[..., tuple[TrainState, dict[str, Any]]]


def model_folder(path: str) -> pathlib.Path:
    """Folder of a `model.path`: the pocket model's, a local or a downloaded one."""
    return POCKET if path == "pocket" else resolve_checkpoint(path)


def build_game(config: ConfigDict, folder: pathlib.Path) -> Game:
    """The environment and its dialogue under the checkpoint's tokenizer."""
    kwargs = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in config.env.kwargs.items()
    }
    env = envs.make(config.env.name, **kwargs)
    tokenizer = load_tokenizer(folder)
    budget = play_budget(config)
    dialogue = build_dialogue(
        env,
        tokenizer,
        budget=budget,
        max_reply_tokens=config.rollout.max_reply_tokens,
        **config.prompt,
    )
    params = env_params(env, config.env.params)
    return Game(env, params, budget, tokenizer, dialogue)


def env_params(env: TextEnvironment, changes: ConfigDict) -> EnvParams:
    """The environment's default parameters with some values changed.

    Raises:
      ValueError: the environment has no parameter of that name.
    """
    defaults = env.default_params
    known = [field.name for field in dataclasses.fields(defaults)]
    for name in changes:
        if name not in known:
            raise ValueError(
                f"env.params.{name}: {env.name} has no such parameter; it has "
                f"{', '.join(known)}"
            )
    return defaults.replace(**changes)


def build_program(config: ConfigDict, overrides=()) -> Program:
    """Check the configuration, load the model, tabulate the text, set up the mesh.

    Raises:
      ValueError: a key or a file is wrong; nothing has been written.
    """
    validate(config, overrides)
    folder = model_folder(config.model.path)
    game = build_game(config, folder)
    model, params = load_checkpoint(folder)
    _check_fit(config, game, model)
    policy = build_policy(model, dtype=config.model.dtype)
    optimizer = build_optimizer(**config.optimizer)
    mesh = sharding.make_mesh(**config.mesh)
    state = init_state(params, optimizer, mesh, logical_axes(model))
    num_groups = config.rollout.num_groups
    group_size = config.rollout.group_size
    layout = {"num_groups": num_groups, "group_size": group_size}
    collect = collector(config, game, policy, mesh, **layout)
    num_prompts = config.evaluation.num_prompts
    collect_validation = collector(
        config,
        game,
        policy,
        mesh,
        num_groups=num_prompts,
        group_size=1,
        temperature=config.evaluation.temperature or None,
        top_k=None,
        top_p=None,
    )
    validation_key = rngs.stream(rngs.root_key(config.evaluation.seed), "evaluation")
    validation_keys = rollout_keys(validation_key, num_prompts, 1)
    update = make_update(
        policy,
        optimizer,
        state_shardings(state),
        **layout,
        temperature=config.rollout.temperature,
        learning_rate=config.optimizer.learning_rate,
        **config.learner,
        **config.algo,
        **config.filter,
    )
    return Program(
        game=game,
        policy=policy,
        model=model,
        state=state,
        collect=lambda params, key: collect(
            params, game.dialogue, rollout_keys(key, num_groups, group_size)
        ),
        collect_validation=lambda params: collect_validation(
            params, game.dialogue, validation_keys
        ),
        update=update,
    )


def collector(
    config: ConfigDict,
    game: Game,
    policy: Policy,
    mesh: Mesh,
    *,
    num_groups: int,
    group_size: int,
    **own,
) -> Callable:
    """Rollouts as the configuration has them; `own` replaces settings of sampling."""
    layout = ("num_groups", "group_size", *vars(game.budget))
    settings = {k: v for k, v in config.rollout.items() if k not in layout}
    return make_collect(
        game.env,
        game.params,
        policy,
        mesh=mesh,
        num_groups=num_groups,
        group_size=group_size,
        budget=game.budget,
        **settings | own,
    )


def _check_fit(config: ConfigDict, game: Game, model: Qwen2Config) -> None:
    """Refuse what does not fit the model."""
    needed = game.dialogue.max_trajectory_tokens
    if needed > model.max_position_embeddings:
        raise ValueError(
            f"an episode may need {needed} tokens, but the model reads "
            f"{model.max_position_embeddings}; lower rollout.max_turns or "
            "rollout.max_reply_tokens"
        )
    if game.tokenizer.vocab_size > model.vocab_size:
        raise ValueError(
            f"the tokenizer in {config.model.path} has {game.tokenizer.vocab_size} "
            f"ids, the model only {model.vocab_size}; they do not belong together"
        )


def num_params(params: Params) -> int:
    """Number of scalars in a parameter tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
