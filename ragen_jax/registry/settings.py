"""Rules of configuration keys, and the check that applies them.

In: all keys of a configuration by their paths. Out: nothing, or one `ValueError` that
names the key, its value, the rule and the cure. Packages list the rules of their
options; an option that the chosen entry of a table does not read is refused.
"""

import dataclasses
import functools
import inspect
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ragen_jax.registry.functions import (
    Table,
    did_you_mean,
    is_reference,
    option_names,
    resolve,
)

# Programs compute with 32 bits.
LARGEST_INTEGER = 2**31 - 1

LARGEST_FLOAT = 3.4e38

# All keys of a configuration by their dotted paths, with their values.
Leaves = Mapping[str, Any]

# Rule in words, test of a value.
Range = tuple[str, Callable[[float], bool]]


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules of some configuration keys; `check` applies them.

    Attributes:
      optional: keys that may be None, which means "off". The other rules hold where
        they are not.
      positive_integers: keys whose values are whole numbers from 1.
      ranges: key -> `Range`.
      choices: key -> allowed values.
      tables: key -> table whose entry it names; the options of the entries are keys of
        the same section.
      checks: rules between keys; each yields a sentence for every rule that is broken,
        with what, why and the cure.
      no_effect: each yields, for keys that change nothing in this configuration, the
        beginning of their paths and the reason.
    """

    optional: Collection[str] = ()
    positive_integers: Collection[str] = ()
    ranges: Mapping[str, Range] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    checks: Collection[Callable[[Leaves], Iterator[str]]] = ()
    no_effect: Collection[Callable[[Leaves], Iterator[tuple[str, str]]]] = ()

    def only(self, keys: Collection[str]) -> "Rules":
        """The rules of these single keys, for another configuration that has them."""
        return Rules(
            optional=[key for key in self.optional if key in keys],
            positive_integers=[key for key in self.positive_integers if key in keys],
            ranges={key: x for key, x in self.ranges.items() if key in keys},
            choices={key: x for key, x in self.choices.items() if key in keys},
            tables={key: x for key, x in self.tables.items() if key in keys},
        )

    def __or__(self, other: "Rules") -> "Rules":
        return Rules(
            optional=(*self.optional, *other.optional),
            positive_integers=(*self.positive_integers, *other.positive_integers),
            ranges={**self.ranges, **other.ranges},
            choices={**self.choices, **other.choices},
            tables={**self.tables, **other.tables},
            checks=(*self.checks, *other.checks),
            no_effect=(*self.no_effect, *other.no_effect),
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that a rule of a single key names."""
        several = (self.optional, self.positive_integers, self.ranges)
        return tuple(itertools.chain(*several, self.choices, self.tables))


def check(leaves: Leaves, rules: Rules, overrides: Collection[str] = ()) -> None:
    """Apply every rule: of single keys, between keys, then about keys without effect.

    Args:
      leaves: all keys and their values.
      rules: see `Rules`; every key they name is in `leaves`.
      overrides: paths of the keys the user set.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    for problem in _single_key_problems(leaves, rules):
        raise ValueError(problem)
    for rule in rules.checks:
        for problem in rule(leaves):
            raise ValueError(problem)
    idle = [pair for rule in rules.no_effect for pair in rule(leaves)]
    idle += unread_options(leaves, rules.tables)
    for key in overrides:
        for prefix, reason in idle:
            is_idle = key == prefix or (prefix[-1] == "." and key.startswith(prefix))
            if is_idle and leaves.get(key) is not None:
                raise ValueError(f"{key} has no effect here: {reason}; leave it out")


def unread_options(
    leaves: Leaves, tables: Mapping[str, Table]
) -> list[tuple[str, str]]:
    """Options that no chosen entry reads, each with the reason.

    Args:
      leaves: all keys and their values.
      tables: see `Rules`. Tables of one section may share an option.
    """
    read, reasons = set(), {}
    for key, table in tables.items():
        section = key.rsplit(".", 1)[0]
        chosen = {leaves[key]: table[leaves[key]]} if is_reference(leaves[key]) else {}
        for name, entry in {**table, **chosen}.items():
            options = {f"{section}.{option}" for option in option_names(entry)}
            if name == leaves[key]:
                read |= options
            reason = f"{key} = {leaves[key]!r} does not read it"
            reasons |= dict.fromkeys(options - reasons.keys(), reason)
    return [(key, reason) for key, reason in reasons.items() if key not in read]


def add_options(
    config: Any, tables: Mapping[str, Table], values: Mapping[str, Any]
) -> None:
    """Add the options of the user's functions to the sections that name them.

    Args:
      config: a `ConfigDict`, changed in place.
      tables: see `Rules`.
      values: by dotted path, keys that the configuration does not have.

    Raises:
      ValueError: no function reads one of `values`, one lacks a value or has one of
        another type than its default.
    """
    known, added = flatten(config), {}
    for key, table in tables.items():
        if not is_reference(known.get(key)):
            continue
        for problem in _choice_problems(key, known[key], table):
            raise ValueError(problem)
        section = key.rsplit(".", 1)[0]
        parameters = inspect.signature(table[known[key]]).parameters
        for name in option_names(table[known[key]]):
            default, path = parameters[name].default, f"{section}.{name}"
            if path not in known or path in values:
                added[path] = option_value(
                    path, default, values, f"{key} = {known[key]!r}"
                )
    for path in values:
        if path not in added:
            hint = did_you_mean(path, [*known, *added])
            raise ValueError(f"no configuration key {path!r}.{hint}")
    with config.unlocked():
        for path, value in added.items():
            section, name = path.rsplit(".", 1)
            functools.reduce(lambda c, word: c[word], section.split("."), config)[
                name
            ] = value


def option_value(
    path: str, default: Any, values: Mapping[str, Any], reader: str
) -> Any:
    """Value of an option: the one given, or the default of the function."""
    if path not in values:
        if default is inspect.Parameter.empty:
            raise ValueError(
                f"{reader} reads {path}, which has no default; add "
                f"--config.{path}=VALUE, or give the parameter a default"
            )
        try:
            json.dumps(default)
        except TypeError as error:
            raise ValueError(
                f"{reader} reads {path}, whose default {default!r} config.json cannot "
                "hold; use a number, a text, True, False, None or a list of these"
            ) from error
        return default
    value = values[path]
    if default in (None, inspect.Parameter.empty) or type(value) is type(default):
        return value
    if is_number(default):
        if problem := number_problem(path, value, default):
            raise ValueError(problem)
        return type(default)(value)
    wanted = f"like its default, {default!r}"
    if isinstance(default, bool):
        wanted = "True or False"
    raise ValueError(f"{path} = {value!r}; it must be {wanted}")


def _single_key_problems(leaves: Leaves, rules: Rules) -> Iterator[str]:
    for key, value in leaves.items():
        if value is None and key not in rules.optional:
            yield f"{key} may not be None; give it a value"
        if is_number(value) and not abs(value) <= LARGEST_FLOAT:
            yield f"{key} = {value}; it must be a finite number (32 bits)"
    for key in rules.positive_integers:
        value = leaves[key]
        if value is not None and not is_integer(value):
            yield f"{key} = {value!r}; it must be a whole number, at least 1"
        if value is not None and not 1 <= value <= LARGEST_INTEGER:
            yield f"{key} = {value}; it must be at least 1 and below 2**31"
    for key, (rule, holds) in rules.ranges.items():
        value = leaves[key]
        if value is not None and not (is_number(value) and holds(value)):
            yield f"{key} = {value!r}; it must be {rule}"
    for key, allowed in {**rules.choices, **rules.tables}.items():
        if leaves[key] is not None:
            yield from _choice_problems(key, leaves[key], allowed)


def _choice_problems(key: str, value: object, allowed: Collection) -> Iterator[str]:
    if value in allowed:
        return
    if isinstance(allowed, Table) and is_reference(value):
        try:
            resolve(allowed, value)
        except ValueError as error:
            yield f"{key} = {value!r}: {error}"
        return
    names = ", ".join(sorted(allowed))
    if isinstance(allowed, Table):
        names += ", or package.module:Name for a function of yours"
    hint = did_you_mean(value, allowed)
    yield f"{key} = {value!r}; choose one of {names.removeprefix(', or ')}.{hint}"


def flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Every value of nested settings by its dotted path, in their order.

    Args:
      settings: a `ConfigDict`, or an object of a JSON file; sections are of its kind.
      prefix: beginning of every path.
    """
    leaves: dict[str, Any] = {}
    for name, value in settings.items():
        if hasattr(value, "items"):
            leaves |= flatten(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves


def number_problem(path: str, value: object, default: float) -> str | None:
    """Why a value cannot stand in a number's place; None: it can.

    Args:
      path: where the value stands, for the sentence.
      value: any object.
      default: the number it replaces; for an integer it must be one, too.
    """
    if is_integer(default):
        if is_integer(value) and abs(value) <= LARGEST_INTEGER:
            return None
        return f"{path} = {value!r}; it must be a whole number of 32 bits"
    if is_number(value) and abs(value) <= LARGEST_FLOAT:
        return None
    return f"{path} = {value!r}; it must be a finite number (32 bits)"


def is_integer(value: object) -> bool:
    """The value is a whole number; Python's True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """The value is a number, which may be infinite or not-a-number."""
    return isinstance(value, float) or is_integer(value)
