"""Tables of interchangeable functions, theirs and the user's.

A table maps a name that a configuration key may have to a function;
`package.module:Name` names one of the user's. The keyword-only parameters of an entry
are of two kinds: data that the program has at that point, and options, each of which is
the configuration key of the same name in the table's section. The signature is the only
place that lists them.
"""

import ast
import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

# Keyword-only parameters that are data, not options: the program supplies them.
DATA = frozenset(
    {"group_size", "num_groups", "entropies", "rewards", "values", "env_index"}
)

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Table(dict):
    """Interchangeable functions by name; `package.module:Name` is one of the user's.

    Iterating yields the entries of the table alone.

    Args:
      entries: all called alike.
      like: a function that is called as the user's are; None: the first entry.
      data: names of the data that an entry may take.
      returns: type of an entry's result; None: anything.
    """

    def __init__(
        self,
        entries: Mapping[str, Callable],
        *,
        like: Callable | None = None,
        data: Collection[str] = (),
        returns: type | None = None,
    ):
        super().__init__(entries)
        self._returns = returns
        self._like = like or next(iter(entries.values()))
        self._data = data

    def __contains__(self, name: object) -> bool:
        """Raises ValueError for a reference to what cannot be used."""
        return super().__contains__(name) or (
            is_reference(name) and self[name] is not None
        )

    def __missing__(self, name: str) -> Callable:
        if not is_reference(name):
            raise KeyError(name)
        entry = load_reference(name)
        expected = _positional(self._like)
        if not callable(entry):
            raise ValueError(f"it is no function, but {type(entry).__name__}")
        if len(_positional(entry)) != len(expected):
            raise ValueError(
                f"it must take {len(expected)} positional parameters "
                f"({', '.join(expected)}) and options by keyword only; it takes "
                f"{', '.join(_positional(entry)) or 'none'}"
            )
        self._check_data(name, entry)
        return _guarded(name, entry, self._returns)

    def _check_data(self, name: str, entry: Callable) -> None:
        for word in data_names(entry):
            if word not in self._data:
                raise ValueError(
                    f"it asks for {word}, which is not there at this point; there "
                    f"is {', '.join(sorted(self._data)) or 'nothing by keyword'}"
                )


def is_reference(name: object) -> bool:
    """The value has the form `package.module:Name`."""
    return isinstance(name, str) and _REFERENCE.fullmatch(name) is not None


def load_reference(name: str) -> Any:
    """What `package.module:Name` names, from the current folder or what is installed.

    Raises:
      ValueError: there is no such module or name, or the module cannot be imported.
    """
    module_name, attribute = name.split(":")
    if os.getcwd() not in sys.path:
        # Last, so that no folder of the user's hides an installed package.
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"{module_name} needs {error.name}") from error
        raise ValueError(
            f"there is no module {error.name} in {os.getcwd()} or among the "
            "installed packages; change to the folder that has it, or install it"
        ) from error
    except Exception as error:
        raise ValueError(
            f"importing {module_name} fails: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, vars(module))
        raise ValueError(f"{module_name} has no {attribute}.{hint}")
    return getattr(module, attribute)


def _guarded(name: str, entry: Callable, returns: type | None) -> Callable:
    """The user's function; its ValueErrors are defects, no sentences about settings.

    A result of another type than `returns` is one sentence.
    """

    @functools.wraps(entry)
    def call(*args, **kwargs):
        try:
            result = entry(*args, **kwargs)
        except ValueError as error:
            raise RuntimeError(f"{name} fails") from error
        if returns is not None and not isinstance(result, returns):
            raise ValueError(
                f"{name} returns {_describe(result)}; it must return "
                f"{returns.__module__}.{returns.__name__}"
            )
        return result

    return call


def _describe(result: object) -> str:
    if hasattr(result, "shape") and hasattr(result, "dtype"):
        return f"{result.dtype}{list(result.shape)}"
    return type(result).__name__


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


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for a misspelt name; empty where none is near."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def read_literal(text: str) -> object:
    """A Python literal, `true` or `false`; any other text is a string."""
    try:
        return ast.literal_eval(
            text.capitalize() if text in ("true", "false") else text
        )
    except (SyntaxError, ValueError):
        return text


def _keywords(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _positional(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]
