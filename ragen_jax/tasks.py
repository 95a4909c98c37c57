"""Tasks: an environment with its dialogue, its rules and its ceiling.

In: the `env` section of a validated configuration. Out: a specification per
environment, in the order of the batch's rows, and the tasks built from them. Without
`env.mix` there is one specification, `env.name`, that plays every group.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Key
from ml_collections import ConfigDict

import envs
from envs.base import EnvParams, PlayBudget, TextEnvironment, make_ceiling
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.policy import Policy
from ragen_jax.registry.functions import bind, is_reference, load_reference
from ragen_jax.registry.settings import number_problem
from ragen_jax.rollout.bonuses import build_bonus
from ragen_jax.rollout.collect import Collect, Rollouts, make_collect
from ragen_jax.rollout.host.env import World, make_world
from ragen_jax.rollout.host.games import make_world_collect
from ragen_jax.rollout.metrics import METRIC_FUNCTIONS, rollout_metrics
from ragen_jax.rollout.records import add_boards, episodes
from ragen_jax.rollout.replay import grid_of, make_boards_after
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.sharding import MESH_AXES, row_problems
from ragen_jax.text.dialogue import Dialogue, build_dialogue
from ragen_jax.text.statements import build_facts
from ragen_jax.text.tokenizer import Tokenizer, check_vocabulary
from ragen_jax.types import EnvState, Params, Trajectory

_SETTINGS = ("kwargs", "params", "label")
# Labels become parts of metric names.
_LABEL = re.compile(r"[A-Za-z][\w-]*")
_FORM = (
    "an entry is (name, groups) or (name, groups, settings), e.g. ('sokoban', 4) or "
    "('sokoban', 4, {'kwargs': {'num_boxes': 2}, 'label': 'TwoBoxes'})"
)


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """Specification of an environment.

    Attributes:
      name: key of the table in `envs/__init__.py`, or "package.module:Name".
      num_groups: groups of a training batch that play it.
      kwargs, params: constructor arguments; changed values of its `EnvParams`.
      label: name in metrics; None: the environment's `name`.
      path: place in the configuration, for error messages.
      host: settings of a game in Python, the section `host`; None for the others.
    """

    name: str
    num_groups: int = 1
    kwargs: Mapping[str, object] = dataclasses.field(default_factory=dict)
    params: Mapping[str, object] = dataclasses.field(default_factory=dict)
    label: str | None = None
    path: str = "env"
    host: Mapping[str, object] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """An environment and how it is played.

    Attributes:
      name: name in metrics and records.
      env, params: the environment and its parameters.
      rules: budget, reply length, penalties and bonuses of an episode.
      tokenizer, dialogue: how states become tokens and replies become actions; None
        for a model behind an API, which exchanges text.
      training, validation: the policy's rollouts; None before `program.bind_policy`.
      play_quality: comparison of episodes with the exact solver's; None before, too.
      boards_after: the board after every action, if the game shows one.
      more_metrics: the user's function of metrics, an entry of `METRIC_FUNCTIONS`.
    """

    name: str
    env: TextEnvironment
    params: EnvParams
    rules: EpisodeLimits
    tokenizer: Tokenizer | None = None
    dialogue: Dialogue | None = None
    training: Rollouts | None = None
    validation: Rollouts | None = None
    play_quality: Callable[..., dict[str, float]] | None = None
    boards_after: Callable[[Trajectory], Array] | None = None
    more_metrics: Callable[[Trajectory], Mapping[str, float]] | None = None

    def collect(self, params: Params, step_key: Key[Array, ""]) -> Trajectory:
        """One training rollout."""
        return self.training.play(params, self.dialogue, step_key)

    def collect_validation(self, params: Params, sample: int = 0) -> Trajectory:
        """One episode of each validation prompt."""
        return self.validation.play(params, self.dialogue, sample)

    def measure(self, rollout: Trajectory, group_size: int) -> dict[str, float]:
        """Metrics of episodes, by the last part of their names.

        Raises:
          ValueError: the user's function returns no mapping, or a name that is taken.
        """
        values = rollout_metrics(rollout, group_size=group_size)
        if self.more_metrics is not None:
            more = self.more_metrics(rollout)
            if not isinstance(more, Mapping) or more.keys() & values.keys():
                raise ValueError(f"logging.metrics: {more!r} has no names of its own")
            values |= more
        return {name: float(value) for name, value in jax.device_get(values).items()}

    def records(self, rollout: Trajectory, count: int | None = None) -> list[dict]:
        """Records of the first `count` rows, see `ragen_jax.rollout.records`."""
        records = episodes(rollout, self.tokenizer, self.dialogue.prompts, count)
        self.add_boards(records, rollout)
        return records

    def add_boards(self, records: Sequence[dict], rollout: Trajectory) -> None:
        """Add the board after every action to records of the first rows."""
        if self.boards_after is not None:
            rows = jax.tree.map(lambda x: x[: len(records)], rollout)
            boards = jax.device_get(self.boards_after(rows))
            add_boards(records, boards, grid_of(self.env).symbols)

    @functools.cached_property
    def ceiling(self) -> Callable[[EnvState], float | None]:
        """Success of the solver on levels, given their states; None: unknown."""
        return make_ceiling(self.env, self.params, self.rules.budget)


def build_task(config: ConfigDict, spec: EnvSpec, tokenizer: Tokenizer) -> Task:
    """The task of a configuration, without a policy.

    Raises:
      ValueError: the environment, its arguments or the wording cannot be used.
    """
    name = config.logging.metrics
    task = make_task(
        spec,
        tokenizer,
        play_rules(config),
        prompt=config.prompt,
        context=config.rollout.context,
        context_turns=config.rollout.context_turns,
        bonus=config.bonus,
    )
    more = None if name is None else bind(METRIC_FUNCTIONS[name], config.logging)
    return dataclasses.replace(task, more_metrics=more)


def make_task(
    spec: EnvSpec,
    tokenizer: Tokenizer,
    rules: EpisodeLimits,
    *,
    prompt: Mapping[str, object],
    context: str = "full",
    context_turns: int | None = None,
    bonus: Mapping[str, float | int | None] | None = None,
) -> Task:
    """A task in the words of a tokenizer, without a policy.

    Args:
      spec: the environment.
      tokenizer: the model's.
      rules: of an episode; their bonus is replaced if `bonus` is given.
      prompt: style, tokenization, length hint and thinking, see `build_dialogue`.
      context, context_turns: see `build_dialogue`.
      bonus: settings of `build_bonus`; None: `rules.bonus`.
    """
    env, params = make_env(spec)
    dialogue = build_dialogue(
        env,
        tokenizer,
        budget=rules.budget,
        max_reply_tokens=rules.max_reply_tokens,
        context=context,
        context_turns=context_turns,
        **prompt,
    )
    if bonus is not None:
        if bonus["facts"] is not None:
            dialogue = dialogue.replace(facts=build_facts(env, tokenizer))
        rules = dataclasses.replace(rules, bonus=build_bonus(env, params, **bonus))
    task = Task(spec.label or env.name, env, params, rules, tokenizer, dialogue)
    return dataclasses.replace(task, boards_after=make_boards_after(env, params))


def make_env(spec: EnvSpec) -> tuple[TextEnvironment, EnvParams]:
    """The environment and its parameters.

    Raises:
      ValueError: the environment, an argument or a parameter does not exist.
    """
    # JSON has no tuples, constructors take no lists.
    kwargs = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in spec.kwargs.items()
    }
    try:
        if spec.host is not None:
            env = make_world(spec.name, kwargs, **spec.host)
        else:
            name = load_reference(spec.name) if is_reference(spec.name) else spec.name
            env = envs.make(name, **kwargs)
    except (ValueError, ImportError) as error:
        raise ValueError(f"{spec.path}: {error}") from error
    return env, env_params(env, spec.params, path=f"{spec.path}.params")


def env_params(
    env: TextEnvironment,
    changes: Mapping[str, object],
    *,
    path: str,
    base: EnvParams | None = None,
) -> EnvParams:
    """Environment parameters with some values changed.

    Args:
      changes: values by the parameter's name.
      path: section of the configuration that holds them.
      base: parameters to change; None: the environment's defaults.

    Raises:
      ValueError: no parameter has that name, or it cannot take a value.
    """
    base = env.default_params if base is None else base
    known = [field.name for field in dataclasses.fields(base)]
    for name, value in changes.items():
        if name not in known:
            raise ValueError(
                f"{path}.{name}: {env.name} has no such parameter; it has "
                f"{', '.join(known)}"
            )
        if problem := number_problem(f"{path}.{name}", value, getattr(base, name)):
            raise ValueError(problem)
    params = base.replace(**changes)
    if problem := env.params_problem(params):
        raise ValueError(f"{path}.{problem}")
    return params


def build_collect(
    config: ConfigDict,
    task: Task,
    policy: Policy,
    mesh: Mesh,
    *,
    num_groups: int,
    group_size: int,
    **sampling: float | None,
) -> Collect:
    """Compiled rollouts of a task; `sampling` replaces settings of `config.rollout`."""
    names = ("temperature", "top_k", "top_p", "compactions")
    names += ("decode_chunk_tokens", "read_chunk_tokens", "decode_attention")
    if not isinstance(task.env, World):
        names += ("part_rows",)
    decoding = {name: config.rollout[name] for name in names} | sampling
    sizes = {"num_groups": num_groups, "group_size": group_size}
    return make_task_collect(task, policy, mesh=mesh, **sizes, **decoding)


def make_task_collect(task: Task, policy: Policy, **arguments: Any) -> Collect:
    """Rollouts of a task; further arguments as of `make_collect`, but for the rules."""
    make = make_collect
    if isinstance(task.env, World):
        make = functools.partial(make_world_collect, tokenizer=task.tokenizer)
    return make(task.env, task.params, policy, rules=task.rules, **arguments)


def check_names(tasks: Sequence[Task]) -> None:
    """Refuse tasks with the same name in metrics."""
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"env.mix has two entries named {name!r} in metrics; give one a label, "
                "e.g. ('sokoban', 4, {'label': 'Second'})"
            )


def check_fit(config: ConfigDict, task: Task, model: ModelConfig) -> None:
    """Refuse a dialogue longer than the model's context, or a foreign tokenizer."""
    needed = task.dialogue.max_window_tokens
    if needed > model.max_position_embeddings:
        raise ValueError(
            f"an episode may need {needed} tokens of context, but the model has "
            f"{model.max_position_embeddings} positions; lower rollout.max_turns or "
            "rollout.max_reply_tokens, or show it a window (rollout.context)"
        )
    check_vocabulary(config.model.path, task.tokenizer, model.vocab_size)


def env_specs(config: ConfigDict) -> tuple[EnvSpec, ...]:
    """The environments of a validated configuration, in the order of the rows."""
    env, num_groups = config.env, config.rollout.num_groups
    if env.host is not None:
        fraction = config.rollout.max_failed_fraction
        host = config.host.to_dict() | {"max_failed_fraction": fraction}
        kwargs = env.kwargs.to_dict()
        return (EnvSpec(env.host, num_groups, kwargs, env.params, host=host),)
    if env.mix is None:
        return (EnvSpec(env.name, num_groups, env.kwargs, env.params),)
    return tuple(_read_entry(i, entry) for i, entry in enumerate(env.mix))


def mix_problems(leaves: Mapping[str, object]) -> Iterator[str]:
    """Broken rules of `env.mix`; environments are looked up when they are built.

    Args:
      leaves: all keys of the configuration by their dotted paths.
    """
    mix = leaves["env.mix"]
    if mix is None:
        return
    if len(mix) < 2 or not all(isinstance(entry, tuple | list) for entry in mix):
        yield (
            f"env.mix = {mix!r}; it takes at least two entries, {_FORM}; a single "
            "environment is env.name, with env.kwargs and env.params"
        )
    try:
        entries = [_read_entry(i, entry) for i, entry in enumerate(mix)]
    except ValueError as error:
        yield str(error)
        return
    for key in leaves:
        if key.startswith(("env.kwargs.", "env.params.")):
            yield (
                f"{key} belongs to the single environment env.name, but env.mix plays "
                "several; give an entry its own: ('sokoban', 4, {'kwargs': {...}, "
                "'params': {...}})"
            )
    total, num_groups = sum(e.num_groups for e in entries), leaves["rollout.num_groups"]
    if total != num_groups:
        yield (
            f"env.mix has {total} groups in all, but rollout.num_groups = "
            f"{num_groups}; set --config.rollout.num_groups={total}, or change the "
            "entries"
        )
    mesh = {axis: leaves[f"mesh.{axis}"] for axis in MESH_AXES}
    size = leaves["rollout.group_size"]
    for entry in entries:
        name = (
            f"{entry.path}, {entry.name!r}: {entry.num_groups} groups x "
            f"rollout.group_size"
        )
        yield from row_problems(name, entry.num_groups * size, mesh)


def _read_entry(index: int, entry: object) -> EnvSpec:
    """Specification of an entry of `env.mix`.

    Raises:
      ValueError: the entry is not (name, groups) or (name, groups, settings).
    """
    path = f"env.mix[{index}]"
    if not isinstance(entry, tuple | list) or len(entry) not in (2, 3):
        raise ValueError(f"{path} = {entry!r}; {_FORM}")
    name, num_groups, settings = (*entry, {})[:3]
    is_count = isinstance(num_groups, int) and not isinstance(num_groups, bool)
    if not isinstance(name, str) or not is_count or num_groups < 1:
        raise ValueError(
            f"{path} = {entry!r}; {_FORM}, with a whole number of groups, at least 1"
        )
    if not isinstance(settings, Mapping):
        raise ValueError(f"{path} has the settings {settings!r}, no dict; {_FORM}")
    for key, value in settings.items():
        if key not in _SETTINGS:
            raise ValueError(
                f"{path} has no setting {key!r}; settings are {', '.join(_SETTINGS)}"
            )
        if key != "label" and not isinstance(value, Mapping):
            raise ValueError(f"{path}: {key} = {value!r}; it must be a dict; {_FORM}")
    label = settings.get("label")
    if label is not None and not (isinstance(label, str) and _LABEL.fullmatch(label)):
        raise ValueError(
            f"{path}: label = {label!r}; it becomes part of metric names: use a letter "
            "and then letters, digits, '_' or '-'"
        )
    kwargs, params = settings.get("kwargs", {}), settings.get("params", {})
    return EnvSpec(name, num_groups, kwargs, params, label, path)


def play_rules(config: ConfigDict) -> EpisodeLimits:
    """The rules of an episode, without a bonus."""
    rollout, names = config.rollout, [f.name for f in dataclasses.fields(PlayBudget)]
    return EpisodeLimits(
        budget=PlayBudget(**{name: config.rollout[name] for name in names}),
        max_reply_tokens=rollout.max_reply_tokens,
        format_penalty=rollout.format_penalty,
    )
