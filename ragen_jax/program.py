"""Builds everything a run needs from its configuration: the only place that does.

In: a validated configuration. Out: a `Program`: the games with their dialogues, the
policy and the compiled functions that train and evaluate. All of it but the weights are
its `Parts`, which say how large everything is before anything is allocated. Sections
of the configuration are spread as keyword arguments, so a key that no function accepts
is a `TypeError` at start-up.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Key
from ml_collections import ConfigDict

from ragen_jax import rngs, sharding
from ragen_jax.config import VALIDATION_SETTINGS, flatten, pass_at, validate
from ragen_jax.diagnostics.optimality import PlayQuality, make_play_quality
from ragen_jax.learner.learner import Learner, Networks, build_learner
from ragen_jax.learner.rules import needs_critic
from ragen_jax.learner.state import TrainState
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.critic import build_critic
from ragen_jax.models.hf_files import identity, resolve_checkpoint, weights_digest
from ragen_jax.models.hf_weights import load_checkpoint, load_config
from ragen_jax.models.lora import read_lora
from ragen_jax.models.policy import Policy, abstract_params, build_policy, logical_axes
from ragen_jax.rollout.collect import rollout_keys, validation_keys
from ragen_jax.rollout.join import make_join
from ragen_jax.rollout.records import episodes
from ragen_jax.tasks import (
    Game,
    build_game,
    check_fit,
    check_names,
    collector,
    environments,
    make_ceiling,
    thought_reader,
)
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer
from ragen_jax.types import EnvState, Params, Trajectory

POCKET = pathlib.Path(__file__).parent / "pocket"


@dataclasses.dataclass(frozen=True)
class Task:
    """A game and the compiled functions that play it.

    Attributes:
      game: what is played.
      play: `(params, dialogue, step_key) -> Trajectory`, training's groups and
        temperature; the dialogue is the game's.
      collect_validation: `(params, sample=0) -> Trajectory`, one episode of each of the
        fixed validation prompts.
      ceiling: best possible success on levels, given their states.
      play_quality: how episodes compare with the exact solver's.
    """

    game: Game
    play: Callable[[Params, Dialogue, Key[Array, ""]], Trajectory]
    collect_validation: Callable[..., Trajectory]
    ceiling: Callable[[EnvState], float]
    play_quality: PlayQuality

    def collect(self, params: Params, step_key: Key[Array, ""]) -> Trajectory:
        """One rollout."""
        return self.play(params, self.game.dialogue, step_key)


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a program is made of, without its weights.

    Attributes:
      tasks: what is played.
      policy, model: the network's pure functions and its description.
      learner: descriptions of the train state, what makes it, what changes it.
      join: one batch from the rollouts of all tasks.
      batch_sharding: where that batch lives.
    """

    tasks: tuple[Task, ...]
    policy: Policy
    model: ModelConfig
    learner: Learner
    join: Callable[[Sequence[Trajectory]], Trajectory]
    batch_sharding: NamedSharding


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything a run needs.

    Attributes:
      tasks: what is played, nearly always one thing; several with `env.mix`.
      policy, model: the network's pure functions and its description.
      state: the train state before the first iteration, on its devices.
      identity: what the state belongs to, see `checkpoint.identity`.
      validation: `VALIDATION_SETTINGS` and their values.
      pass_at: the `k` of pass@k on validation prompts.
      join: one batch from the rollouts of all tasks.
      update: `(state, batch, key) -> (state, stats)`; donates the state.
      play_params: parameters of the policy in a state, for `collect` and export.
      learner: what the two came from.
      frozen: the parameters that both are given beside the state; None: none.
    """

    tasks: tuple[Task, ...]
    policy: Policy
    model: ModelConfig
    state: TrainState
    identity: Mapping[str, Any]
    validation: Mapping[str, float]
    pass_at: Sequence[int]
    join: Callable[[Sequence[Trajectory]], Trajectory]
    update: Callable[..., tuple[TrainState, dict[str, Any]]]
    play_params: Callable[[TrainState], Params]
    learner: Learner
    frozen: Params | None

    @property
    def game(self) -> Game:
        """The first task's."""
        return self.tasks[0].game

    @property
    def names(self) -> tuple[str, ...]:
        """What metrics call the games."""
        return tuple(task.game.name for task in self.tasks)

    def collect(self, params: Params, key: Key[Array, ""]) -> tuple[Trajectory, ...]:
        """One rollout per task, finished."""
        return self._in_turn(lambda task: task.collect(params, key))

    def collect_validation(self, params: Params) -> tuple[Trajectory, ...]:
        """The validation episodes of every task, finished; a prompt's are adjacent."""
        # A sample at a time: they need the memory of one.
        samples = [
            self._in_turn(lambda task, i=i: task.collect_validation(params, i))
            for i in range(self.validation["num_samples"])
        ]
        if len(samples) == 1:
            return samples[0]
        return tuple(_side_by_side(own) for own in zip(*samples, strict=True))

    def _in_turn(self, play: Callable[[Task], Trajectory]) -> tuple[Trajectory, ...]:
        # One after the other: programs that are split over the same devices must not
        # overlap, or collectives of both may wait for each other.
        return tuple(jax.block_until_ready(play(task)) for task in self.tasks)

    def episodes(
        self, rollouts: Sequence[Trajectory], count: int | None = None
    ) -> list[dict[str, Any]]:
        """Records of the first `count` rows of every rollout, None: of all.

        See `ragen_jax.rollout.records`. Where there are several tasks, a record names
        its own as `environment`.
        """
        records = []
        for task, rollout in zip(self.tasks, rollouts, strict=True):
            game = task.game
            label = {"environment": game.name} if len(self.tasks) > 1 else {}
            prompts = game.dialogue.prompts
            found = episodes(rollout, game.tokenizer, prompts, count)
            records += [label | record for record in found]
        return records


def _side_by_side(samples: Sequence[Trajectory]) -> Trajectory:
    """One trajectory of several of the same prompts, gathered on one device."""

    def join(*leaves: np.ndarray) -> Array:
        rows = np.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])
        return jnp.asarray(rows)

    return jax.tree.map(join, *jax.device_get(list(samples)))


def model_folder(path: str) -> pathlib.Path:
    """Folder of a `model.path`: the pocket model's, a local or a downloaded one."""
    return POCKET if path == "pocket" else resolve_checkpoint(path)


def build_program(config: ConfigDict, overrides: Collection[str] = ()) -> Program:
    """Check the configuration, load the model, tabulate the text, set up the mesh.

    Raises:
      ValueError: a key or a file is wrong; nothing has been written.
    """
    validate(config, overrides)
    folder = model_folder(config.model.path)
    tokenizer = load_tokenizer(folder)
    parts = build_parts(config, load_config(folder), tokenizer)
    warn_of_pocket_settings(config, tokenizer)
    model, params = load_checkpoint(folder)
    learner = parts.learner
    frozen = learner.freeze(params)
    return Program(
        tasks=parts.tasks,
        policy=parts.policy,
        model=model,
        state=learner.init(params),
        identity=identity(
            model, tokenizer.folder, tokenizer.stop_ids, _base_digest(config, folder)
        ),
        validation={name: config.evaluation[name] for name in VALIDATION_SETTINGS},
        pass_at=pass_at(config),
        join=parts.join,
        update=functools.partial(learner.update, frozen),
        play_params=functools.partial(learner.play_params, frozen),
        learner=learner,
        frozen=frozen,
    )


def build_parts(config: ConfigDict, model: ModelConfig, tokenizer: Tokenizer) -> Parts:
    """Tabulate the text, set up the mesh, put the functions together.

    Args:
      config: validated.
      model, tokenizer: what `model.path` names; weights are not looked at.

    Raises:
      ValueError: they do not fit each other, or the configuration.
    """
    entries = environments(config)
    games = [build_game(config, entry, tokenizer) for entry in entries]
    sharding.check_network(config.mesh, model)
    check_names(games)
    for game in games:
        check_fit(config, game, model)
    networks = _networks(config, model)
    mesh = sharding.make_mesh(**config.mesh)
    batch_sharding = sharding.by_rows(mesh)
    return Parts(
        tasks=tuple(
            build_task(
                config,
                game,
                networks.policy,
                mesh,
                index=i,
                num_groups=entry.num_groups,
            )
            for i, (game, entry) in enumerate(zip(games, entries, strict=True))
        ),
        policy=networks.policy,
        model=model,
        learner=build_learner(config, networks, mesh),
        join=make_join(batch_sharding),
        batch_sharding=batch_sharding,
    )


def build_task(
    config: ConfigDict,
    game: Game,
    policy: Policy,
    mesh: Mesh,
    *,
    index: int,
    num_groups: int,
) -> Task:
    """The rollouts of a game, `num_groups` groups in training.

    In training the game number `index` has random streams of its own. The validation
    prompts of a game are the same in every mix and alone, so that numbers compare.
    """
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

    def play(params: Params, dialogue: Dialogue, step_key) -> Trajectory:
        key = rngs.environment_key(step_key, index)
        return collect(params, dialogue, rollout_keys(key, num_groups, group_size))

    def validate_once(params: Params, sample: int = 0) -> Trajectory:
        keys = validation_keys(config.evaluation.seed, num_prompts, sample)
        return collect_validation(params, game.dialogue, keys)

    return Task(
        game=game,
        play=play,
        collect_validation=validate_once,
        ceiling=make_ceiling(game),
        play_quality=make_play_quality(
            game.env,
            game.params,
            game.budget,
            reader=thought_reader(game),
            max_reply_tokens=game.dialogue.parser.max_reply_tokens,
        ),
    )


def _base_digest(config: ConfigDict, folder: pathlib.Path) -> str | None:
    """Of the weights that stay frozen beside the train state, if any do."""
    if config.lora.rank is None and config.kl.placement is None:
        return None
    return weights_digest(folder)


def _networks(config: ConfigDict, model: ModelConfig) -> Networks:
    """What the configuration trains."""
    how = computation(config)
    lora, critic = read_lora(**config.lora), None
    if needs_critic(flatten(config)):
        critic = build_critic(model, config.critic.trunk, lora=lora, **how)
    return Networks(
        policy=build_policy(model, **how),
        params=abstract_params(model),
        logical_axes=logical_axes(model),
        critic=critic,
        lora=lora,
    )


def computation(config: ConfigDict) -> dict[str, Any]:
    """How the network is computed: keyword arguments of `build_policy`."""
    return {key: value for key, value in config.model.items() if key != "path"}


def warn_of_pocket_settings(config: ConfigDict, tokenizer: Tokenizer) -> None:
    """A line on standard error when a real model is spoken to like the pocket model.

    The pocket model and those retrained by `launch.sft` are known by their tokenizer:
    its first ids are the 256 bytes in order, which no published one's are.
    """
    is_pocket = tokenizer.token_bytes[:256] == [bytes([i]) for i in range(256)]
    prompt = config.prompt
    if prompt.style == "terse" and not is_pocket:
        print(
            f"warning: {config.model.path} is no pocket model, but prompt.style = "
            f"'terse', prompt.tokenization = {prompt.tokenization!r} and "
            f"optimizer.learning_rate = {config.optimizer.learning_rate:g} come from "
            "the pocket preset; use one for real models, e.g. --config=FILE:qwen2.5-"
            "0.5b (configs/sizes.py has them all)",
            file=sys.stderr,
        )


def num_params(params: Params) -> int:
    """Number of scalars in a parameter tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
