"""Tables of interchangeable functions, the library's and the user's.

A table maps a name that a configuration key may have to a function;
`package.module:Name` names the user's function. The parameters of an entry are of two
kinds: data, filled in by name with what the program has at that point, and options,
which are keyword-only and each the configuration key of the same name in the table's
section. The signature is the only place that lists them.
"""

import ast
import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

# Parameters that describe a batch of episodes (`ragen_jax.learner.batch.named_arrays`).
EPISODE_DATA = (
    "trajectory",  # the whole record, a `ragen_jax.types.Trajectory`
    "mask",  # Bool[B, T]: the token was sampled, and is trained on
    "turn_index",  # Int[B, T]: turn of each token, -1 on padding
    "num_turns",  # K
    "played",  # Bool[B, K]: the row took the turn
    "turn_rewards",  # Float[B, K]: reward, format penalty and bonus of each turn
    "totals",  # Float[B]: the same of each episode
    "game_rewards",  # Float[B]: what the game alone paid in each episode
    "state_hash",  # UInt32[B, K, 2]: equal for turns that began in the same state
    "env_index",  # Int[B]: which of several environments; None where there is one
    "group_size",  # N
    "num_groups",  # G
)
# Parameters that are data, not options: the program supplies them. What `rewards` are
# depends on the table.
DATA = frozenset(
    {
        *EPISODE_DATA,
        "rewards",
        "values",
        "entropies",
        "counted",
        "scores",
        "kept_ratio",
        "log_probs",
        "old_log_probs",
        "advantages",
        "written",
    }
)

_NO_DEFAULT = inspect.Parameter.empty
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Table(dict):
    """Interchangeable functions by name; `package.module:Name` is the user's.

    Iterating and `in` know the entries of the table alone; see `resolve`.

    Args:
      entries: functions.
      data: names of the data that an entry may take, the usual ones first.
      returns: type of an entry's result; None: anything.
    """

    def __init__(
        self,
        entries: Mapping[str, Callable],
        *,
        data: Collection[str],
        returns: type | None = None,
    ):
        super().__init__(entries)
        self.data, self.returns = data, returns

    def __missing__(self, name: str) -> Callable:
        return resolve(self, name)


def resolve(table: Table, name: str) -> Callable:
    """The entry of a table, or the user's function that `package.module:Name` names.

    Raises:
      KeyError: the table has no such entry.
      ValueError: `name` is a `package.module:Name` that cannot be imported, is not a
        function, or has a positional parameter that is not data of the table.
    """
    if name in table:
        return table[name]
    if not is_reference(name):
        raise KeyError(name)
    entry = load_reference(name)
    if not callable(entry):
        raise ValueError(f"it is {type(entry).__name__}, not a function")
    for word in dict.fromkeys((*_positional(entry), *data_names(entry))):
        if word not in table.data:
            raise ValueError(
                f"it asks for {word}, which is not available here; it may ask for "
                f"{', '.join(table.data)}. Options are keyword-only: put `*` before "
                "them"
            )
        if inspect.signature(entry).parameters[word].default is not _NO_DEFAULT:
            raise ValueError(
                f"its parameter {word} has a default, but the program fills it in; "
                "remove the default, or give an option another name"
            )
    return _guarded(name, entry, table.returns)


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
        # Last, so that the user's folders do not hide installed packages.
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


@contextlib.contextmanager
def constructing(name: str) -> Iterator[None]:
    """One sentence for what a constructor of the user's, or of a package, raises.

    Raises:
      ValueError: the constructor that is called inside raised something; a ValueError
        or an ImportError stays as it is.
    """
    try:
        yield
    except (ValueError, ImportError):
        raise
    except Exception as error:
        if ":" not in name:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"the constructor of {name} raised {type(error).__name__}: {error} "
            f"({place.filename}, line {place.lineno}); RAGEN_JAX_TRACEBACK=1 shows the "
            "traceback"
        ) from error


def _guarded(name: str, entry: Callable, returns: type | None) -> Callable:
    """The user's function: its ValueErrors are defects, not errors of the settings.

    A result of another type than `returns` is a ValueError.
    """

    @functools.wraps(entry)
    def call(*args, **kwargs):
        try:
            result = entry(*args, **kwargs)
        except ValueError as error:
            raise RuntimeError(f"{name} fails") from error
        except TypeError as error:
            # As `grpo(trajectory, rewards)` was called before it took arrays.
            if "Trajectory" not in str(error):
                raise
            raise ValueError(
                f"{name} passes a trajectory to a function of ragen_jax.algo, which "
                "takes arrays, as in grpo(rewards, mask, *, group_size); pass "
                "trajectory.loss_mask as the mask, or take `mask` by name"
            ) from error
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
    """Names of the data an entry takes, in the order of its signature."""
    names = (*_positional(function), *_keywords(function))
    return tuple(name for name in names if name in DATA)


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
      data: known by now; the rest is an argument of the result.
    """
    arguments = {name: options[name] for name in option_names(entry)}
    arguments |= {name: data[name] for name in data_names(entry) if name in data}
    return functools.partial(entry, **arguments)


def call(table: Table, name: str, options: Mapping[str, Any], **data: object) -> Any:
    """Result of an entry of a table; see `resolve` and `bind`."""
    return bind(resolve(table, name), options, **data)()


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
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return text


def _keywords(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _positional(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]
