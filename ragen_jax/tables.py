"""What an entry of a table reads, told by its own signature.

An entry's keyword-only parameters are of two kinds: data that the program has at hand
at that point, and options, each of which is the configuration key of the same name. So
a key that the chosen entry does not read can be refused, and nothing has to be listed
twice.
"""

import inspect
from collections.abc import Callable

# Keyword-only parameters that are no options: the program supplies them.
DATA = frozenset({"group_size", "entropies", "rewards", "env_index"})


def own_options(function: Callable) -> tuple[str, ...]:
    """Names of the options an entry reads, in the order of its signature."""
    return tuple(name for name in _keywords(function) if name not in DATA)


def needed_data(function: Callable) -> tuple[str, ...]:
    """Names of the data an entry wants by keyword, in the order of its signature."""
    return tuple(name for name in _keywords(function) if name in DATA)


def _keywords(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
