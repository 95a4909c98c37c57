"""What users name by "package.module:Name": classes and functions of their own.

In: an option and its value. Out: what it names, or a ValueError that says what is
wrong.
"""

import importlib
from collections.abc import Callable
from typing import Any


def load_class(option: str, reference: str) -> type:
    """The class that "package.module:Class" names.

    Raises:
      ValueError: the text has another form, or there is no such class.
    """
    return _load(option, reference, "Class", lambda x: isinstance(x, type))


def load_function(option: str, reference: str) -> Callable:
    """The function, or whatever can be called, that "package.module:function" names.

    Raises:
      ValueError: the text has another form, or there is no such function.
    """
    return _load(option, reference, "function", callable)


def _load(
    option: str, reference: str, kind: str, is_right: Callable[[Any], bool]
) -> Any:
    module_name, _, name = str(reference).partition(":")
    if not module_name or not name.isidentifier():
        raise ValueError(f"{option} is {reference!r}; use package.module:{kind}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{option} is {reference!r}, but there is no module {error.name}; install "
            "it, or start in the folder that has it"
        ) from error
    named = getattr(module, name, None)
    if not is_right(named):
        raise ValueError(
            f"{option} is {reference!r}, but {module_name} has no {kind.lower()} {name}"
        )
    return named
