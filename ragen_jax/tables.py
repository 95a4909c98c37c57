"""Tables of interchangeable functions, rules of configuration keys, and metrics.

A table maps a name that a configuration key may have to a function. The keyword-only
parameters of an entry are of two kinds: data that the program has at that point, and
options, each of which is the configuration key of the same name in the table's section.
The signature is the only place that lists them: an option that the chosen entry does
not read is refused by `unread_options`.

`Rules` and `Metric` are declarations: packages list the rules of their options and
their metrics, and the program checks, records, draws and documents what is listed.
"""

import dataclasses
import difflib
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

# Keyword-only parameters that are data, not options: the program supplies them.
DATA = frozenset(
    {"group_size", "num_groups", "entropies", "rewards", "values", "env_index"}
)

# Programs compute with 32 bits.
LARGEST_INTEGER = 2**31 - 1
LARGEST_FLOAT = 3.4e38

# All keys of a configuration by their dotted paths, with their values.
Leaves = Mapping[str, Any]
Table = Mapping[str, Callable]
# Rule in words, test of a value.
Range = tuple[str, Callable[[float], bool]]


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


def option_names(function: Callable) -> tuple[str, ...]:
    """Names of the options an entry reads, in the order of its signature."""
    return tuple(name for name in _keywords(function) if name not in DATA)


def data_names(function: Callable) -> tuple[str, ...]:
    """Names of the data an entry takes by keyword, in the order of its signature."""
    return tuple(name for name in _keywords(function) if name in DATA)


def from_section(kind: type, section: Mapping[str, Any], **others: object) -> Any:
    """A dataclass that holds a section's choices, and their options for `bind`.

    Args:
      kind: a dataclass; fields with the name of a key get its value, the field
        `options` gets the whole section.
      section: of a configuration.
      others: fields from elsewhere.
    """
    keys = {field.name for field in dataclasses.fields(kind)} & set(section)
    named = {key: section[key] for key in keys}
    return kind(**named, options=dict(section), **others)


def bind(entry: Callable, options: Mapping[str, Any], **data: object) -> Callable:
    """The entry with its options and data filled in.

    Args:
      entry: of a table.
      options: a value for each option of the entry, others are ignored.
      data: a value for each piece of data an entry of the table may take.
    """
    arguments = {name: options[name] for name in option_names(entry)}
    arguments |= {name: data[name] for name in data_names(entry)}
    return functools.partial(entry, **arguments)


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
        for name, entry in table.items():
            options = {f"{section}.{option}" for option in option_names(entry)}
            if name == leaves[key]:
                read |= options
            reason = f"{key} = {leaves[key]!r} does not read it"
            reasons |= dict.fromkeys(options - reasons.keys(), reason)
    return [(key, reason) for key, reason in reasons.items() if key not in read]


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
        if leaves[key] is not None and leaves[key] not in allowed:
            names = ", ".join(sorted(allowed))
            hint = did_you_mean(leaves[key], allowed)
            yield f"{key} = {leaves[key]!r}; choose one of {names}.{hint}"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for a misspelt name; empty where none is near."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


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


def _keywords(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


@dataclasses.dataclass(frozen=True)
class View:
    """A line of a figure: a panel of the report, a chart of TensorBoard.

    Attributes:
      title: of the panel. Metrics of one section and one title share a panel, which
        takes its unit and its kind from the first; `{env}` in it makes a panel per
        environment.
      unit: label of the vertical axis.
      name: metric drawn, where the declaration's name covers several; "": the name.
      label: of the line, where a panel has several.
      style: "main" (with its band), "thin" or "reference" (dashed).
      section: key of the section, where it is not the metric's own.
      console: label on the line that every iteration prints; "": not printed.
      is_special: the report draws it in a figure of another kind; TensorBoard, which
        has lines only, as a line.
    """

    title: str
    unit: str = ""
    name: str = ""
    label: str = ""
    style: str = "main"
    section: str = ""
    console: str = ""
    is_special: bool = False


@dataclasses.dataclass(frozen=True)
class Metric:
    """Declaration of a metric: everything the program says or draws of it.

    Attributes:
      name: as in `metrics.jsonl`. A field in braces stands for several names, see
        `FIELDS`; `{env}` is the name of an environment.
      text: meaning, for docs/metrics.md.
      section: key of a section of docs/metrics.md and, where it has views, of the
        report and of TensorBoard's layout (`ragen_jax.runs.figures.SECTIONS`).
      kind: how values read: "number", "share" (in per cent) or "seconds".
      views: where the metric is drawn; most are drawn nowhere but under "Any metric".
      healthy: what a run that learns looks like.
      cure: what to do where it does not look so.
      value: function that computes it; its argument is documented at the table that
        the declaration belongs to. None where several metrics are computed together.
    """

    name: str
    text: str
    section: str
    kind: str = "number"
    views: tuple[View, ...] = ()
    healthy: str = ""
    cure: str = ""
    value: Callable | None = None

    @property
    def key(self) -> str:
        """Last part of the name."""
        return self.name.rsplit("/", 1)[-1]

    def matches(self, name: str) -> bool:
        """Whether a recorded name is one of this declaration's."""
        return re.fullmatch(name_pattern(self.name), name) is not None


# Field of a metric's name -> regular expression of what it stands for.
FIELDS = {
    "split": "(train|val-env)",
    "env": "[^/]+",
    "k": "[0-9]+",
    "turns": "(first_turn|trajectory)",
    "form": "(|_seq|_paper|_uniform|_seq_uniform)",
    "rank": "(|@[0-9]+)",
    "bucket": "(bucket_[0-9]+|all)",
    "part": "(task|entropy|kl)",
    "loss": "(policy|entropy|kl|total)",
    "statistic": "(mean|min|max)",
    "end": "(low|high)",
    "stage": "[a-z_]+",
    "indicator": "[a-z0-9_]+",
}


def name_pattern(name: str) -> str:
    """Regular expression of the names that a declared name stands for."""
    parts = re.split(r"\{(\w+)\}", name)
    # Text and fields alternate; text comes first.
    return "".join(
        FIELDS[part] if i % 2 else re.escape(part) for i, part in enumerate(parts)
    )
