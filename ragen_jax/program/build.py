"""Builds everything a run needs from its configuration: the only place that does.

In: a validated configuration. Out: a `Program`: the tasks, the policy and the compiled
functions that train and evaluate. Its `Parts` are everything but the weights: they give
the size of every array before any is allocated. Sections
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
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Key
from ml_collections import ConfigDict

from ragen_jax.config import VALIDATION_SETTINGS, pass_at, validate
from ragen_jax.devices import sharding
from ragen_jax.devices.exchange import to_local_devices
from ragen_jax.diagnostics.optimality import make_play_quality
from ragen_jax.diagnostics.schedule import Diagnostics, build_diagnostics
from ragen_jax.learner.learner import Learner, Networks, build_learner
from ragen_jax.learner.prompts import SharedPrompts
from ragen_jax.learner.rules import needs_critic
from ragen_jax.learner.state import TrainState
from ragen_jax.learner.update import EpisodeCredit
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.critic import build_critic
from ragen_jax.models.hf.files import identity, resolve_checkpoint, weights_digest
from ragen_jax.models.hf.weights import load_checkpoint, load_config
from ragen_jax.models.lora import read_lora
from ragen_jax.models.policy import Policy, build_policy, computation
from ragen_jax.models.vision_config import ShownPictures
from ragen_jax.program.reading import CURE, CURE_OF_SEEING, warn_of_unread_words
from ragen_jax.registry.settings import flatten
from ragen_jax.rollout.collect import Rollouts
from ragen_jax.rollout.footprint import Footprint
from ragen_jax.rollout.host.env import HostGameEnv
from ragen_jax.rollout.join import interleave, make_join
from ragen_jax.rollout.keys import training_keys, validation_keys
from ragen_jax.rollout.numbers import SAMPLING, RolloutNumbers, rollout_numbers
from ragen_jax.rollout.records import add_credit
from ragen_jax.tasks.build import (
    build_collect,
    build_task,
    check_fit,
    check_sees,
    pictures_of,
)
from ragen_jax.tasks.specs import env_specs
from ragen_jax.tasks.task import Task, check_names
from ragen_jax.terminal import say
from ragen_jax.text.statements import FactReader, build_facts
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer
from ragen_jax.types import Params, Trajectory

# Values of `model.path` that name a model of this package -> its folder.
BUILT_IN = {
    name: pathlib.Path(__file__).parents[1] / name
    for name in ("pocket", "pocket_worlds", "pocket_host", "pocket_vision")
}
POCKET = BUILT_IN["pocket"]
# Sections that no rollout reads.
LEARNING = frozenset(
    {
        *("algo", "checkpoint", "critic", "diagnostics", "filter", "kl", "learner"),
        *("loss", "optimizer", "schedule", "train", "warning"),
    }
)


@dataclasses.dataclass(frozen=True)
class Parts:
    """A program without its weights.

    Attributes:
      tasks: with the policy bound.
      policy, model: the network's pure functions and its description.
      learner: shapes of the train state, its initialisation and its update.
      join: one batch from the rollouts of all tasks.
      batch_sharding: of that batch.
      players: devices that play training's rollouts; others only with `rollout.ahead`.
    """

    tasks: tuple[Task, ...]
    policy: Policy
    model: ModelConfig
    learner: Learner
    join: Callable[[Sequence[Trajectory]], Trajectory]
    batch_sharding: NamedSharding
    players: Mesh


@dataclasses.dataclass(frozen=True)
class Program(Parts):
    """Everything a run needs: the parts and their weights.

    Attributes:
      state: the train state before the first iteration, on its devices; of
        `open_program` its description.
      identity: of the model that the state belongs to, see `hf.files.identity`.
      validation: `VALIDATION_SETTINGS` and their values.
      pass_at: the `k` of pass@k on validation prompts.
      group_size: rows of a training rollout that play the same level.
      update: `(state, batch, key) -> (state, stats, credit)`; donates the state.
      play_params: parameters of the policy in a state, for `collect` and export.
      frozen: base weights (for LoRA or a KL reference), passed to both; None if unused.
      diagnostics: measurements of the policy while it trains.
    """

    state: TrainState
    identity: Mapping[str, Any]
    validation: Mapping[str, float]
    pass_at: Sequence[int]
    group_size: int
    update: Callable[..., tuple[TrainState, dict[str, Any], EpisodeCredit]]
    play_params: Callable[[TrainState], Params]
    frozen: Params | None
    diagnostics: Diagnostics

    @property
    def task(self) -> Task:
        """The first task."""
        return self.tasks[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks in metrics."""
        return tuple(task.name for task in self.tasks)

    def collect(self, params: Params, key: Key[Array, ""]) -> tuple[Trajectory, ...]:
        """One rollout per task, finished."""
        return self._in_turn(lambda task: task.collect(params, key))

    def collect_validation(self, params: Params) -> tuple[Trajectory, ...]:
        """The validation episodes of every task, finished; a prompt's are adjacent."""
        # One sample at a time, so that memory is needed for one only.
        samples = [
            self._in_turn(lambda task, i=i: task.collect_validation(params, i))
            for i in range(self.validation["num_samples"])
        ]
        samples = to_local_devices(samples)
        if len(samples) == 1:
            return samples[0]
        return tuple(interleave(rollouts) for rollouts in zip(*samples, strict=True))

    def _in_turn(self, play: Callable[[Task], Trajectory]) -> tuple[Trajectory, ...]:
        # In sequence: programs split over the same devices must not overlap,
        # or their collectives may wait for each other forever.
        return tuple(jax.block_until_ready(play(task)) for task in self.tasks)

    def episodes(
        self,
        rollouts: Sequence[Trajectory],
        count: int | None = None,
        credit: EpisodeCredit | None = None,
    ) -> list[dict[str, Any]]:
        """Records of the first `count` rows of every rollout; None: of all rows.

        See `ragen_jax.rollout.records`. With several tasks each record has the name of
        its task as `environment`. With the `credit` of all rows, each also says what
        the update made of it, see `records.add_credit`.
        """
        records, first_row = [], 0
        for task, rollout in zip(self.tasks, rollouts, strict=True):
            label = {"environment": task.name} if len(self.tasks) > 1 else {}
            of_task = [label | record for record in task.records(rollout, count)]
            if credit is not None:
                rows = slice(first_row, first_row + len(of_task))
                kept, advantages = jax.device_get((credit.kept, credit.advantages))
                add_credit(of_task, kept[rows], advantages[rows], self.group_size)
            records += of_task
            first_row += len(rollout.lengths)
        return records


def model_folder(path: str) -> pathlib.Path:
    """Folder of a `model.path`: a built-in one, a local or a downloaded one."""
    return resolve_checkpoint(BUILT_IN.get(path, path))


def num_ids(path: str, tokenizer: Tokenizer) -> int | None:
    """Ids that the model of a `model.path` may write, see `build_policy`.

    A built-in model keeps the spare rows that it was trained with: measured results and
    hashes depend on them, and it gives them 6e-6 of the probability (1e-9 at T=0.5).
    """
    return None if path in BUILT_IN else tokenizer.vocab_size


def build_program(
    config: ConfigDict,
    overrides: Collection[str] = (),
    bound: Sequence[Task] | None = None,
) -> Program:
    """Check the configuration, load the model, tabulate the text, set up the mesh.

    `bound`: see `build_parts`.

    Raises:
      ValueError: a key or a file is wrong; nothing has been written.
    """
    program, params = open_program(config, overrides, bound)
    check_sessions(config, program)
    return dataclasses.replace(program, state=program.learner.init(params, config.seed))


def open_program(
    config: ConfigDict,
    overrides: Collection[str] = (),
    bound: Sequence[Task] | None = None,
) -> tuple[Program, Params]:
    """The program with a description of its state, and the checkpoint's parameters.

    For what plays and does not learn: no moments are made, and no critic.

    Raises:
      ValueError: see `build_program`.
    """
    validate(config, overrides)
    folder = model_folder(config.model.path)
    tokenizer = load_tokenizer(folder)
    parts = build_parts(config, load_config(folder), tokenizer, bound=bound)
    check_memory(config, parts)
    warn_of_pocket_settings(config, tokenizer)
    if config.model.path in BUILT_IN:
        cure = CURE if config.prompt.observation == "text" else CURE_OF_SEEING
        warn_of_unread_words([task.env for task in parts.tasks], tokenizer, cure)
    model, params = load_checkpoint(folder)
    learner = parts.learner
    frozen, parser = learner.freeze(params), parts.tasks[0].dialogue.parser
    program = Program(
        **vars(parts) | {"model": model},
        state=learner.state,
        identity=identity(
            model, tokenizer.folder, tokenizer.stop_ids, _base_digest(config, folder)
        ),
        validation={name: config.evaluation[name] for name in VALIDATION_SETTINGS},
        pass_at=pass_at(config),
        group_size=config.rollout.group_size,
        # Arguments, not constants of the compiled update, which would hold a copy of
        # `frozen`, and be compiled again for every number of a sweep.
        update=functools.partial(learner.update, frozen, learner.numbers),
        play_params=functools.partial(learner.play_params, frozen),
        frozen=frozen,
        diagnostics=build_diagnostics(config, learner, frozen, parser),
    )
    return program, params


def check_memory(config: ConfigDict, parts: Parts) -> None:
    """Refuse rollouts that cannot fit into the devices' memory, where it is known.

    Raises:
      ValueError: names the number of episodes and the expected bytes.
    """
    model, rollout = parts.model, config.rollout
    kv_size = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim
    num_cached = rollout.max_reply_tokens
    if rollout.context == "full":
        num_cached *= rollout.max_turns
    num_rows = rollout.num_groups * rollout.group_size
    played = {"rollout.num_groups x rollout.group_size": (num_rows, parts.players)}
    if config.evaluation.every is not None:
        num_prompts, where = config.evaluation.num_prompts, parts.batch_sharding.mesh
        played["evaluation.num_prompts"] = (num_prompts, where)
    shortest = min(t.dialogue.max_trajectory_tokens for t in parts.tasks)
    for key, (count, mesh) in played.items():
        memory = sharding.mesh_memory(mesh)
        if memory is not None:
            cache_bytes = kv_size * jnp.dtype(config.model.dtype).itemsize
            Footprint(count, shortest, num_cached, cache_bytes).check(key, memory)


def check_sessions(config: ConfigDict, parts: Parts) -> None:
    """Refuse more episodes than a game can play at the same time.

    Raises:
      ValueError: names both numbers.
    """
    num_rows = config.rollout.num_groups * config.rollout.group_size
    counts = {"rollout.num_groups x rollout.group_size": num_rows}
    if config.evaluation.every is not None:
        counts["evaluation.num_prompts"] = config.evaluation.num_prompts
    for task in parts.tasks:
        if isinstance(task.env, HostGameEnv):
            task.env.check_sessions(**counts)


def build_parts(
    config: ConfigDict,
    model: ModelConfig,
    tokenizer: Tokenizer,
    devices: Sequence[jax.Device] | None = None,
    bound: Sequence[Task] | None = None,
) -> Parts:
    """Tabulate the text, set up the mesh, put the functions together.

    Args:
      config: validated.
      model, tokenizer: of `model.path`; weights are not read.
      devices: to compute on, or described ones; None: JAX's.
      bound: tasks of a configuration that differs in `LEARNING` and in data alone,
        with rollouts that may have been compiled; None: new ones.

    Raises:
      ValueError: model, tokenizer and configuration do not fit each other.
    """
    check_sees(config, model)
    specs = env_specs(config)
    if bound is None:
        tasks = [
            build_task(config, spec, tokenizer, picture_kind=i)
            for i, spec in enumerate(specs)
        ]
    else:
        tasks = [renumber(config, task, model.vocab_size) for task in bound]
    sharding.check_network(config.mesh, model)
    check_names(tasks)
    for task in tasks:
        check_fit(config, task, model)
    mesh = sharding.make_mesh(**config.mesh, devices=devices)
    players, num_players = mesh, config.rollout.devices
    if config.rollout.ahead and num_players is not None:
        players = sharding.make_players(mesh, num_players, devices)
    pictures = pictures_of(tasks, model)
    networks = _networks(config, model, tokenizer, mesh, pictures)
    batch_sharding = sharding.by_rows(mesh)
    if bound is None:
        where = {"policy": networks.policy, "mesh": mesh, "players": players}
        bind = functools.partial(bind_policy, config, **where)
        tasks = [
            bind(task, index=i, num_groups=spec.num_groups)
            for i, (task, spec) in enumerate(zip(tasks, specs, strict=True))
        ]
    return Parts(
        tasks=tuple(tasks),
        policy=networks.policy,
        model=model,
        learner=build_learner(
            config, networks, mesh, players, _shared_prompts(config, tasks)
        ),
        join=make_join(batch_sharding),
        batch_sharding=batch_sharding,
        players=players,
    )


def _shared_prompts(config: ConfigDict, tasks: Sequence[Task]) -> SharedPrompts | None:
    if not config.learner.share_prompts:
        return None
    sizes = [
        (task.dialogue.opening.max_tokens, task.dialogue.max_trajectory_tokens)
        for task in tasks
    ]
    return SharedPrompts(
        message_tokens=max(opening for opening, _ in sizes),
        following_tokens=max(longest - opening for opening, longest in sizes),
        group_size=config.rollout.group_size,
    )


def bind_policy(
    config: ConfigDict,
    task: Task,
    policy: Policy,
    mesh: Mesh,
    *,
    index: int,
    num_groups: int,
    players: Mesh | None = None,
) -> Task:
    """The task with compiled rollouts of a policy, `num_groups` groups in training.

    Training's are played by `players`; None: by the devices of `mesh`, like validation.
    In training the task number `index` has its own random streams. The validation
    prompts of an environment are the same alone and in every mix, for comparison.
    """
    group_size = config.rollout.group_size
    sizes = {"num_groups": num_groups, "group_size": group_size}
    training = build_collect(config, task, policy, players or mesh, **sizes)
    on_mesh = training
    if players not in (None, mesh):
        on_mesh = build_collect(config, task, policy, mesh, **sizes)
    num_prompts = config.evaluation.num_prompts
    temperature = config.evaluation.temperature
    validation = on_mesh.for_evaluation(num_prompts, temperature)
    of_step = functools.partial(training_keys, index, num_groups, group_size)
    seed = config.evaluation.seed
    of_sample = functools.partial(validation_keys, seed, num_prompts)
    return dataclasses.replace(
        task,
        training=Rollouts(training, of_step),
        validation=Rollouts(validation, of_sample),
        play_quality=_play_quality(task),
    )


def renumber(config: ConfigDict, task: Task, vocab_size: int) -> Task:
    """A task with the policy bound, by the same programs under other numbers.

    Args:
      config: of another run, which differs in settings that are data.
      vocab_size: ids of the policy.
    """
    rules = dataclasses.replace(
        task.rules, format_penalty=config.rollout.format_penalty
    )
    if rules.bonus is not None:
        bonus = rules.bonus.with_numbers(config.bonus.to_dict())
        rules = dataclasses.replace(rules, bonus=bonus)
    sampling = {name: config.rollout[name] for name in SAMPLING}
    numbers = rollout_numbers(rules, **sampling)
    held_out = numbers.untruncated(config.evaluation.temperature, vocab_size)

    def change(rollouts: Rollouts, numbers: RolloutNumbers) -> Rollouts:
        return rollouts._replace(collect=rollouts.collect.with_numbers(numbers))

    return dataclasses.replace(
        task,
        rules=rules,
        training=change(task.training, numbers),
        validation=change(task.validation, held_out),
    )


def _play_quality(task: Task) -> Callable[..., dict[str, float]] | None:
    if not task.env.lists_actions:
        return None
    return make_play_quality(
        task.env,
        task.params,
        task.rules.budget,
        reader=thought_reader(task),
        max_reply_tokens=task.rules.max_reply_tokens,
    )


def thought_reader(task: Task) -> FactReader | None:
    """Reader of the facts stated in thoughts; None where thoughts state none."""
    if not task.dialogue.thinking or not task.env.landmarks:
        return None
    return task.dialogue.facts or build_facts(task.env, task.tokenizer)


def _base_digest(config: ConfigDict, folder: pathlib.Path) -> str | None:
    if config.lora.rank is None and config.kl.placement is None:
        return None
    return weights_digest(folder)


def _networks(
    config: ConfigDict,
    model: ModelConfig,
    tokenizer: Tokenizer,
    mesh: Mesh,
    pictures: tuple[ShownPictures, ...],
) -> Networks:
    how = computation(config.model, model, sharding.kernel_platform(mesh))
    how["pictures"] = pictures
    lora, critic = read_lora(**config.lora), None
    if needs_critic(flatten(config)):
        critic = build_critic(model, config.critic.trunk, lora=lora, **how)
    return Networks(
        policy=build_policy(
            model, **how, num_ids=num_ids(config.model.path, tokenizer)
        ),
        critic=critic,
        lora=lora,
    )


def warn_of_pocket_settings(config: ConfigDict, tokenizer: Tokenizer) -> None:
    """Warn on standard error if a real model gets the pocket model's words and boards.

    Terse prompts alone are a choice: a model that was fine-tuned on them needs no more.
    The pocket model and those retrained by `launch.sft` have a tokenizer whose first
    256 ids are the bytes in order; no published tokenizer has.
    """
    is_pocket = tokenizer.token_bytes[:256] == [bytes([i]) for i in range(256)]
    wording = config.prompt.style, config.prompt.tokenization
    if wording == ("terse", "symbols") and not is_pocket:
        say(
            f"warning: {config.model.path} is not a pocket model, but prompt.style = "
            "'terse', prompt.tokenization = 'symbols' and "
            f"optimizer.learning_rate = {config.optimizer.learning_rate:g} are those "
            "of the pocket preset; use a preset of configs/sizes.py, e.g. "
            "--config=FILE:qwen2.5-0.5b",
            sys.stderr,
        )


def num_params(params: Params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
