"""Declarations of settings, and the check that applies them.

A configuration key is declared once, by `count`, `number`, `text`, `switch` or `values`
in a list such as `configs/base.py`; from the declaration follow its default, the text
of `--help` and the check of its value. In: all keys of a configuration by their paths.
Out: nothing, or one `ValueError` that names the key, its value, the rule and the cure.
Rules between keys are functions beside the code that needs them; an option that the
chosen entry of a table does not read is refused.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict, FieldReference

from ragen_jax.registry.functions import (
    Table,
    did_you_mean,
    is_reference,
    load_reference,
    option_names,
    resolve,
)

# Programs compute with 32 bits.
LARGEST_INTEGER = 2**31 - 1

LARGEST_FLOAT = 3.4e38

# The list of all keys, by reference: the library takes configurations as arguments and
# imports none of their files.
DECLARED = "configs.base:SETTINGS"

# All keys of a configuration by their dotted paths, with their values.
Leaves = Mapping[str, Any]

# A rule between keys: a sentence for each way in which it is broken, with what, why and
# the cure.
Check = Callable[[Leaves], Iterator[str]]

# Keys without effect in a configuration: the beginning of their paths and the reason.
Idle = Callable[[Leaves], Iterator[tuple[str, str]]]

_CONDITION = re.compile(r"([\w.]+) (is not|is|==|!=|>) (.+)")
_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "is": lambda value, other: value is other,
    "is not": lambda value, other: value is not other,
    "==": lambda value, other: value == other,
    "!=": lambda value, other: value != other,
    ">": lambda value, other: value > other,
}
_WANTED = {bool: "True or False", str: "a text", tuple: "a list of values"}


@dataclasses.dataclass(frozen=True)
class Section:
    """Declaration of a group of keys.

    Attributes:
      meaning: its heading; of an open section, the meaning of its keys.
      needs, is_mutable: see `Setting`, for all keys of the section.
      is_open: its keys are those of the environment, and not declared.
    """

    meaning: str
    needs: tuple[str, ...] = ()
    is_open: bool = False
    is_mutable: bool = False


@dataclasses.dataclass(frozen=True)
class Setting:
    """Declaration of one key.

    Attributes:
      default: its value where nothing sets another.
      meaning: sentences for `--help`: what it is, unit, source; each understood alone.
      kind: type of its values.
      none: what None means; "": the key may not be None. Other rules hold where it is
        not None.
      least, above, most, below: bounds of a number; None: open.
      never: a number that the value may not be.
      note: on the bounds, for the error.
      one_of: allowed values, and references to tables of them (`package.module:NAME`);
        where the key has several values, of each, which may also name the user's class.
      entry_of: reference to a table of functions whose entry the key names; the options
        of the entries are keys of the same section.
      needs: conditions on other keys, all of which hold where this key is read, such as
        "env.host is None". The operators are is, is not, ==, != and >.
      is_mutable: a resumed run may change it, since it does not touch what is learned
        (another mesh, attention or part rounds differently).
      is_data: a number that compiled programs take as an argument: another one compiles
        nothing. None stays part of the program, see `numbers.py`.
    """

    default: Any
    meaning: str
    kind: type
    none: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    never: float | None = None
    note: str = ""
    one_of: tuple[Any, ...] = ()
    entry_of: str = ""
    needs: tuple[str, ...] = ()
    is_mutable: bool = False
    is_data: bool = False

    @property
    def choices(self) -> Collection[Any]:
        """The allowed values; empty where a rule says what is allowed."""
        if self.entry_of:
            return load_reference(self.entry_of)
        several = (load_reference(x) if is_reference(x) else (x,) for x in self.one_of)
        return list(itertools.chain(*several))

    @property
    def range(self) -> str:
        """The bounds in words; "" without any."""
        if self.least is not None and self.most is not None:
            words = f"between {self.least} and {self.most}"
        elif self.never is not None:
            words = f"above or below {self.never}, or None"
        else:
            bounds = {"at least": self.least, "above": self.above}
            bounds |= {"at most": self.most, "below": self.below}
            given = ((word, x) for word, x in bounds.items() if x is not None)
            words = " and ".join(f"{word} {_bound(x)}" for word, x in given)
        return f"{words} ({self.note})" if self.note else words

    def problem(self, key: str, value: object) -> str | None:
        """Why the key may not have this value, with the cure; None: it may."""
        if value is None:
            return None if self.none else f"{key} may not be None; give it a value"
        allowed = (tuple, list) if self.kind is tuple else self.kind
        if self.kind is tuple and self.one_of and isinstance(value, allowed):
            return self._items_problem(key, value)
        if self.entry_of or (self.one_of and self.kind is not tuple):
            return choice_problem(key, value, self.choices)
        if self.kind in (int, float):
            return self._number_problem(key, value)
        if not isinstance(value, allowed):
            return f"{key} = {value!r}; it must be {_WANTED[self.kind]}"
        return None

    def _items_problem(self, key: str, values: Collection) -> str | None:
        for item in values:
            if item not in self.choices and not is_reference(item):
                return (
                    f"{key} = {tuple(values)}: {item!r} is neither one of "
                    f"{', '.join(self.choices)} nor package.module:Name."
                    f"{did_you_mean(item, self.choices)}"
                )
        return None

    def _number_problem(self, key: str, value: object) -> str | None:
        if self.kind is int and not is_integer(value):
            return f"{key} = {value!r}; it must be a whole number, {self.range}"
        if not is_number(value) or not (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
            and (self.never is None or value != self.never)
        ):
            return f"{key} = {value!r}; it must be {self.range}"
        return None


def _bound(number: float) -> str:
    power = int(number).bit_length() - 1
    return f"2**{power}" if power > 30 and number == 2**power else str(number)


def _declare(default: Any, meaning: str, kind: type, **rules: Any) -> Setting:
    for name in ("needs", "one_of"):
        if isinstance(rules.get(name), str):
            rules[name] = (rules[name],)
    return Setting(default, meaning, kind, **rules)


def count(default: int | None, meaning: str, **rules: Any) -> Setting:
    """A whole number from 1; `rules` are attributes of `Setting`."""
    bounds = {"least": 1, "below": LARGEST_INTEGER + 1}
    return _declare(default, meaning, int, **bounds, **rules)


def number(default: float | None, meaning: str, **rules: Any) -> Setting:
    """A number, whole if its default is."""
    kind = int if is_integer(default) else float
    return _declare(default, meaning, kind, **rules)


def text(default: str | None, meaning: str, **rules: Any) -> Setting:
    """A text, such as the name of a choice."""
    return _declare(default, meaning, str, **rules)


def switch(default: bool, meaning: str, **rules: Any) -> Setting:
    """True or False."""
    return _declare(default, meaning, bool, **rules)


def values(default: tuple | None, meaning: str, **rules: Any) -> Setting:
    """Several values; a list where they are read from JSON."""
    return _declare(default, meaning, tuple, **rules)


def section(
    meaning: str, *, needs: str | tuple[str, ...] = (), **rules: bool
) -> Section:
    """A group of keys; `rules` are attributes of `Section`."""
    needs = (needs,) if isinstance(needs, str) else needs
    return Section(meaning, needs, **rules)


class Settings(dict[str, Section | Setting]):
    """Declarations by dotted path, in the order of their list; sections come first."""

    def __or__(self, other: Mapping[str, Section | Setting]) -> "Settings":
        return Settings({**self, **other})

    # Lists are shared: `|=` makes another, too.
    __ior__ = __or__

    def only(self, *names: str) -> "Settings":
        """The declarations of these keys, and of all keys of these sections."""
        return Settings(
            {
                key: entry
                for key, entry in self.items()
                if any(f"{key}.".startswith(f"{name}.") for name in names)
            }
        )

    def under(self, prefix: str) -> "Settings":
        """The same declarations for the keys of a section."""
        return Settings({f"{prefix}.{key}": entry for key, entry in self.items()})

    def changed(
        self, key: str, path: str | None = None, **attributes: Any
    ) -> dict[str, Setting]:
        """The declaration of a key with another path, or some other attributes."""
        return {path or key: dataclasses.replace(self[key], **attributes)}

    @property
    def keys_of_values(self) -> list[str]:
        """All keys that are not sections."""
        return [key for key, entry in self.items() if isinstance(entry, Setting)]

    @property
    def mutable(self) -> tuple[str, ...]:
        """Beginnings of the keys that a resumed run may change."""
        return tuple(
            key if isinstance(entry, Setting) else f"{key}."
            for key, entry in self.items()
            if entry.is_mutable
        )

    @property
    def data(self) -> tuple[str, ...]:
        """Keys of numbers that compiled programs take as arguments."""
        return tuple(key for key in self.keys_of_values if self[key].is_data)

    @property
    def tables(self) -> dict[str, Mapping[str, Callable]]:
        """By key, the table of functions whose entry it names."""
        return {
            key: entry.choices
            for key, entry in self.items()
            if isinstance(entry, Setting) and entry.entry_of
        }

    def make_config(self) -> ConfigDict:
        """The configuration of all defaults."""
        config = ConfigDict()
        for key, entry in self.items():
            *path, name = key.split(".")
            place = functools.reduce(ConfigDict.__getitem__, path, config)
            if isinstance(entry, Section):
                place[name] = ConfigDict()
            else:
                # Unlike a bare value it keeps its type where a file sets it to None.
                place[name] = FieldReference(entry.default, field_type=entry.kind)
        return config

    def unmet(self, key: str, leaves: Leaves) -> str | None:
        """Why nothing reads a key in this configuration, as far as `needs` say."""
        words = key.split(".")
        owners = (".".join(words[:i]) for i in range(1, len(words) + 1))
        for owner in filter(self.__contains__, owners):
            for condition in self[owner].needs:
                other, operator, value = _CONDITION.fullmatch(condition).groups()
                if not _HOLDS[operator](leaves[other], ast.literal_eval(value)):
                    return (
                        f"it is read only if {condition}, and {other} = "
                        f"{leaves[other]!r}"
                    )
        return None


def declared() -> Settings:
    """The declarations of training's keys."""
    return load_reference(DECLARED)


def check(
    leaves: Leaves,
    settings: Settings,
    *,
    checks: Collection[Check] = (),
    idle: Collection[Idle] = (),
    overrides: Collection[str] = (),
) -> None:
    """Apply every rule: of single keys, between keys, then about keys without effect.

    Args:
      leaves: all keys and their values, those of `settings` among them.
      settings: the declarations.
      checks: rules between keys.
      idle: further keys without effect.
      overrides: paths of the keys the user set.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    problems = itertools.chain(
        _single_key_problems(leaves, settings), *(rule(leaves) for rule in checks)
    )
    for problem in problems:
        raise ValueError(problem)
    reasons = [pair for rule in idle for pair in rule(leaves)]
    reasons += unread_options(leaves, settings.tables)
    for key in overrides:
        reason = settings.unmet(key, leaves) or next(
            (
                reason
                for prefix, reason in reasons
                if key == prefix or (prefix[-1] == "." and key.startswith(prefix))
            ),
            None,
        )
        if reason and leaves.get(key) is not None:
            raise ValueError(f"{key} has no effect here: {reason}; leave it out")


def _single_key_problems(leaves: Leaves, settings: Settings) -> Iterator[str]:
    for key, value in leaves.items():
        if is_number(value) and not abs(value) <= LARGEST_FLOAT:
            yield f"{key} = {value}; it must be a finite number (32 bits)"
        if key not in settings and value is None:
            yield f"{key} may not be None; give it a value"
        if key not in settings and not _is_json(value):
            yield (
                f"{key} = {value!r}; it must be a number, a text, True, False or a "
                "list or dict of these, which config.json can hold"
            )
        if key in settings and (problem := settings[key].problem(key, value)):
            yield problem


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def choice_problem(key: str, value: object, allowed: Collection) -> str | None:
    """Why a value is not one of a key's choices, with the nearest; None: it is."""
    # False equals 0 and True 1.
    if value in allowed and not isinstance(value, bool):
        return None
    if isinstance(allowed, Table) and is_reference(value):
        try:
            resolve(allowed, value)
        except ValueError as error:
            return f"{key} = {value!r}: {error}"
        return None
    names = ", ".join(sorted(map(str, allowed)))
    if isinstance(allowed, Table):
        names += ", or package.module:Name for your own function"
    hint = did_you_mean(value, map(str, allowed))
    return f"{key} = {value!r}; choose one of {names.removeprefix(', or ')}.{hint}"


def unknown_key(key: str, known: Collection[str]) -> ValueError:
    """The error about an unknown key, with the nearest path as a hint.

    Otherwise the path whose last part is nearest, as for `iterations`.
    """
    full = spell_out(key)
    section, _, name = full.rpartition(".")
    by_last: dict[str, list[str]] = {}
    for path in known:
        by_last.setdefault(path.rpartition(".")[2], []).append(path)
    paths = [full] if full in known else by_last.get(name, [])
    # The policy's before the critic's.
    paths.sort(key=lambda path: path.startswith("critic."))
    # Of several sections that have the name one may be misspelt.
    sections = [path.rpartition(".")[0] for path in paths]
    if near := difflib.get_close_matches(section, sections, n=1, cutoff=0.8):
        paths = [f"{near[0]}.{name}"]
    hint = f" Did you mean {' or '.join(map(repr, paths))}?"
    if not paths:
        hint = did_you_mean(key, known)
    if not hint:
        for last in difflib.get_close_matches(name, by_last, n=1):
            hint = f" Did you mean {by_last[last][0]!r}?"
    if section == "env":
        hint += " An argument of the game is env.kwargs.NAME."
    return ValueError(f"no configuration key {key!r}.{hint}")


def spell_out(key: str) -> str:
    """A key in which other programs' `lr` is written as here, and a former name."""
    key = re.sub(r"\blr$", "learning_rate", key)
    return re.sub(r"\blogging\.tensorboard$", "logging.sinks", key)


def unread_options(
    leaves: Leaves, tables: Mapping[str, Table]
) -> list[tuple[str, str]]:
    """Options that no chosen entry reads, each with the reason.

    Args:
      leaves: all keys and their values.
      tables: see `Settings.tables`. Those of one section may share an option.
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
      tables: see `Settings.tables`.
      values: by dotted path, keys that the configuration does not have.

    Raises:
      ValueError: no function reads one of `values`, one lacks a value or has one of
        another type than its default.
    """
    known, added = flatten(config), {}
    for key, table in tables.items():
        if not is_reference(known.get(key)):
            continue
        if problem := choice_problem(key, known[key], table):
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
            raise unknown_key(path, [*known, *added])
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
                "hold; use a number, a text, True, False or a list of these"
            ) from error
        if default is None:
            raise ValueError(
                f"{reader} reads {path}, whose default is None; give the parameter a "
                "default of the type that its values have"
            )
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


def flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Every value of nested settings by its dotted path, in their order.

    Args:
      settings: a `ConfigDict`, or an object of a JSON file; sections are of its kind.
      prefix: beginning of every path.
    """
    leaves: dict[str, Any] = {}
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ValueError(f"{prefix}{name!r} is no key: names of keys are texts")
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
    """The value is a whole number; Python's True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """The value is a number, which may be infinite or not-a-number."""
    return isinstance(value, float) or is_integer(value)
