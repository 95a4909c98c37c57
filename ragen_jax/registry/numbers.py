"""Settings that are numbers, as data: arguments of compiled programs, not constants.

In: a validated configuration. Out: the numbers that its programs take as arguments, by
key, so that configurations which differ in them alone share what is compiled. A program
calls `fill_in` while it is traced and builds its stages from the sections that it gets.

Which keys these are is declared with them (`is_data`). Part of the program stay: a
value of None, which switches something off, and a number that a function of the user's
reads, which may compare it in Python.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from ragen_jax.registry.functions import is_reference, option_names
from ragen_jax.registry.settings import Leaves, declared, flatten

# A setting as functions of arrays get it: the number itself, or an argument of the
# program that is traced.
Number = float | int | np.number | Float[Array, ""] | Int[Array, ""]
# By the dotted path of a key.
Numbers = Mapping[str, np.number]


def data_keys(leaves: Leaves) -> frozenset[str]:
    """Keys that programs of this configuration take as data."""
    settings = declared()
    of_users = {
        f"{key.rpartition('.')[0]}.{option}"
        for key, table in settings.tables.items()
        if is_reference(leaves[key])
        for option in option_names(table[leaves[key]])
    }
    is_number = (key for key in settings.data if leaves[key] is not None)
    return frozenset(is_number) - of_users


def read_numbers(config: ConfigDict, sections: Collection[str]) -> Numbers:
    """The data of some sections and keys, in 32 bits."""
    leaves, settings = flatten(config), declared()
    return {
        key: (np.int32 if settings[key].kind is int else np.float32)(leaves[key])
        for key in sorted(data_keys(leaves) & settings.only(*sections).keys())
    }


def fill_in(config: ConfigDict, numbers: Numbers) -> dict[str, dict[str, Any]]:
    """The sections of a configuration with these numbers in place of its own."""
    sections = {name: x for name, x in config.to_dict().items() if isinstance(x, dict)}
    for key, number in numbers.items():
        section, name = key.split(".")
        sections[section] = sections[section] | {name: number}
    return sections
