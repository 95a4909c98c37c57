"""Specifications of environments, as the configuration writes them.

In: the `env` section of a validated configuration. Out: a specification per
environment, in the order of the batch's rows, and the environments built from them.
Without `env.mix` there is one specification, `env.name`, that plays every group.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping

from ml_collections import ConfigDict

import envs
from envs.base import EnvParams, TextGame
from ragen_jax.devices.sharding import MESH_AXES, row_problems
from ragen_jax.registry.functions import constructing, is_reference, load_reference
from ragen_jax.registry.settings import number_problem
from ragen_jax.rollout.host.env import make_host_game

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
      host: settings of a host game, the section `host`; None: an array environment.
    """

    name: str
    num_groups: int = 1
    kwargs: Mapping[str, object] = dataclasses.field(default_factory=dict)
    params: Mapping[str, object] = dataclasses.field(default_factory=dict)
    label: str | None = None
    path: str = "env"
    host: Mapping[str, object] | None = None


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


def make_env(spec: EnvSpec) -> tuple[TextGame, EnvParams]:
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
        with constructing(spec.name):
            if spec.host is not None:
                env = make_host_game(spec.name, kwargs, **spec.host)
            else:
                is_users = is_reference(spec.name)
                name = load_reference(spec.name) if is_users else spec.name
                env = envs.make(name, **kwargs)
    except (ValueError, ImportError) as error:
        raise ValueError(f"{spec.path}: {error}") from error
    return env, env_params(env, spec.params, path=f"{spec.path}.params")


def env_params(
    env: TextGame,
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
    """Specification of an `env.mix` entry: (name, groups) or with settings."""
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
        raise ValueError(f"{path} has the settings {settings!r}, not a dict; {_FORM}")
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
