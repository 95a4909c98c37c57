"""Which environments a run plays, and in how many groups each.

In: the `env` section of a configuration. Out: an `Entry` per environment, in the order
of the batch's rows, or one `ValueError` with the cure. Without `env.mix` there is one
entry, `env.name`, that plays every group.
"""

import dataclasses
import re
from collections.abc import Mapping

from ml_collections import ConfigDict

_SETTINGS = ("kwargs", "params", "label")
# Labels become parts of metric names.
_LABEL = re.compile(r"[A-Za-z][\w-]*")
_FORM = (
    "an entry is (name, groups) or (name, groups, settings), e.g. ('sokoban', 4) or "
    "('sokoban', 4, {'kwargs': {'num_boxes': 2}, 'label': 'TwoBoxes'})"
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One environment of a run.

    Attributes:
      name: in the table of `envs/__init__.py`.
      num_groups: groups of a training batch that play it.
      kwargs: arguments of its constructor.
      params: values of its `EnvParams` that differ from its own defaults.
      label: what metrics call it. None: the environment's own name.
      path: where it stands in the configuration, for error messages.
    """

    name: str
    num_groups: int
    kwargs: Mapping[str, object]
    params: Mapping[str, object]
    label: str | None = None
    path: str = "env"


def environments(config: ConfigDict) -> tuple[Entry, ...]:
    """The environments of a validated configuration, in the order of the rows."""
    env, num_groups = config.env, config.rollout.num_groups
    if env.mix is None:
        return (Entry(env.name, num_groups, env.kwargs, env.params),)
    return tuple(_read(i, entry) for i, entry in enumerate(env.mix))


def check_mix(leaves: Mapping[str, object]) -> None:
    """Rules of `env.mix`; whether an environment exists is seen when it is built.

    Args:
      leaves: all keys of the configuration by their dotted paths.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    mix = leaves["env.mix"]
    if mix is None:
        return
    if len(mix) < 2 or not all(isinstance(entry, tuple | list) for entry in mix):
        raise ValueError(
            f"env.mix = {mix!r}; it takes at least two entries, {_FORM}; a single "
            "environment is env.name, with env.kwargs and env.params"
        )
    entries = [_read(i, entry) for i, entry in enumerate(mix)]
    for key in leaves:
        if key.startswith(("env.kwargs.", "env.params.")):
            raise ValueError(
                f"{key} belongs to the single environment env.name, but env.mix plays "
                "several; give an entry its own: ('sokoban', 4, {'kwargs': {...}, "
                "'params': {...}})"
            )
    total, num_groups = sum(e.num_groups for e in entries), leaves["rollout.num_groups"]
    if total != num_groups:
        raise ValueError(
            f"env.mix has {total} groups in all, but rollout.num_groups = "
            f"{num_groups}; set --config.rollout.num_groups={total}, or change the "
            "entries"
        )
    shards = leaves["mesh.data"] * leaves["mesh.fsdp"]
    group_size = leaves["rollout.group_size"]
    for entry in entries:
        if entry.num_groups * group_size % shards:
            raise ValueError(
                f"{entry.path}: {entry.num_groups} groups x rollout.group_size = "
                f"{group_size} are {entry.num_groups * group_size} rows of "
                f"{entry.name!r}, which cannot be split over mesh.data x mesh.fsdp = "
                f"{shards} devices; use a multiple of {shards}"
            )


def _read(index: int, entry: object) -> Entry:
    """An entry of `env.mix`.

    Raises:
      ValueError: it has another form.
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
    return Entry(name, num_groups, kwargs, params, label, path)
