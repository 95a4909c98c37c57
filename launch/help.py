"""The text of `--help`: what a command does, its flags, its presets, all keys.

The meaning of a configuration key is the comment above it in `configs/`, so that help
and file cannot say two things.
"""

import ast
import functools
import inspect
import os
import pathlib
import re
import runpy
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from absl import flags
from ml_collections import ConfigDict

if TYPE_CHECKING:
    from ragen_jax.registry.settings import Rules

# Flags of a configuration, described here in place of the library's words.
_CONFIG_TEXT = (
    "Configuration file, with presets after a colon; --config.KEY=VALUE changes a key."
)
# Type of a flag -> how its value is written.
_VALUES = {
    "bool": "",
    "int": "=NUMBER",
    "float": "=NUMBER",
    "comma separated list of strings": "=A,B,...",
}


def help_parts(main: Callable, kind: str = "") -> Iterator[str]:
    """Help of a command, part by part: the last one takes seconds to look up.

    Args:
      main: of the command, whose file says what it does and how to call it.
      kind: of the configuration, a key of `_KINDS`; "": it takes none.
    """
    module = main.__globals__
    yield inspect.cleandoc(module["__doc__"])
    yield "\n".join(["Flags", *_flags(module["__name__"])])
    if kind:
        presets, keys = _KINDS[kind]
        yield presets()
        chosen, config = _chosen_config(sys.argv)
        heading = (
            f"Keys, set by --config.KEY=VALUE, with their values in {chosen}"
            if chosen
            else "Keys, set by --config.KEY=VALUE, with their defaults; task files and "
            "presets\nchange some: add --config=FILE:PRESETS to see theirs"
        )
        yield "\n".join([heading, *keys(config)])


def wants_help(argv: list[str]) -> bool:
    """Whether the command line asks for help."""
    return any(word in ("--help", "-help", "-h", "--helpfull") for word in argv)


def _chosen_config(argv: list[str]) -> tuple[str, ConfigDict | None]:
    """`FILE:PRESETS` of the command line and its configuration, if it names a file."""
    for word in argv:
        match = re.fullmatch(r"--?config=([^:]+)(?::(.*))?", word)
        if match and os.path.isfile(match.group(1)):
            path, presets = match.groups()
            get_config = runpy.run_path(path)["get_config"]
            return word.split("=", 1)[1], get_config(*filter(None, [presets]))
    return "", None


def _flags(module: str) -> Iterator[str]:
    names = {flag.name: flag for flag in _own_flags(module)}
    for name, flag in sorted(names.items()):
        if name == "config":
            yield _entry("--config=FILE[:PRESETS]", _CONFIG_TEXT)
            continue
        default = "" if flag.default is None else f" Default: {flag.value!r}."
        value = _VALUES.get(flag.flag_type(), "=TEXT")
        if isinstance(flag.parser, flags.EnumParser):
            value = f"={'|'.join(flag.parser.enum_values)}"
        # The library puts an enum's values in front.
        text = re.sub(r"^<[^>]*>: ", "", flag.help)
        yield _entry(f"--{name}{value}", f"{_sentence(text)}{default}")


def _own_flags(module: str) -> list[flags.Flag]:
    """Flags that the command defines, sections such as `--api.*` included."""
    every = flags.FLAGS.flags_by_module_dict()
    # Of a file that runs as a program absl knows the first word only.
    owners = (module, sys.argv[0], "launch.command")
    return [flag for owner in owners for flag in every.get(owner, [])]


def _entry(name: str, text: str) -> str:
    """A name, and its text below it."""
    width = min(shutil.get_terminal_size((80, 24)).columns, 100)
    lines = textwrap.wrap(
        text, width - 6, break_on_hyphens=False, break_long_words=False
    )
    return "\n".join([f"  {name}", *(f"      {line}" for line in lines)])


def _sentence(text: str) -> str:
    """One line that ends with a full stop."""
    text = " ".join(text.split())
    return text if text.endswith((".", ")")) else f"{text}."


def _training_presets() -> str:
    from configs import algorithms, sizes

    kinds = {
        "size": sizes.SIZES,
        "variant": algorithms.VARIANTS,
        "estimator": algorithms.ESTIMATORS,
    }
    lines = ["Presets, at most one of each kind, with commas: --config=FILE:A,B,C"]
    for kind, table in kinds.items():
        lines += [
            _entry(f"{name}  ({kind})", _first_sentence(preset))
            for name, preset in table.items()
        ]
    return "\n".join(lines)


def _tuning_presets() -> str:
    from configs import sft, sizes

    return "\n".join(
        [
            "Presets of configs/sft.py, at most one of each kind, with commas",
            _entry("game", ", ".join(sft.TASKS)),
            _entry("size", ", ".join(sizes.SIZES)),
        ]
    )


def _first_sentence(function: Callable) -> str:
    return inspect.getdoc(function).split("\n\n")[0].replace("\n", " ")


def _training_keys(config: ConfigDict | None) -> Iterator[str]:
    from configs import base
    from ragen_jax.config import RULES

    yield from _keys(config or base.get_config(), key_comments("base"), RULES)


def _tuning_keys(config: ConfigDict | None) -> Iterator[str]:
    from configs import sft
    from ragen_jax.sft.rules import RULES

    comments = key_comments("base") | key_comments("pocket") | key_comments("sft")
    yield from _keys(config or sft.get_config(), comments, RULES)


def _keys(
    config: ConfigDict, comments: Mapping[str, str], rules: "Rules"
) -> Iterator[str]:
    choices = {**rules.choices, **rules.tables}
    # In the order of the file, since a comment may speak of the key before it.
    order = {key: i for i, key in enumerate(comments)}
    leaves = _leaves(config)
    for key in sorted(leaves, key=lambda key: order.get(key, len(order))):
        value, text = leaves[key], comments.get(key, "")
        if choices.get(key):
            text += f" One of {', '.join(map(str, sorted(choices[key])))}."
        yield _entry(f"{key} = {value!r}", text)


def _leaves(config: ConfigDict, prefix: str = "") -> dict[str, object]:
    """Values by dotted path; an empty section is a value."""
    leaves = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict) and len(value):
            leaves |= _leaves(value, f"{prefix}{name}.")
        else:
            empty = {} if isinstance(value, ConfigDict) else value
            leaves[prefix + name] = empty
    return leaves


@functools.cache
def key_comments(name: str) -> dict[str, str]:
    """The comment above every key that a file of `configs/` sets, by dotted path."""
    import configs

    path = pathlib.Path(configs.__path__[0]) / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    functions = {
        node.name: node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    lines, comments = source.splitlines(), {}

    def read(function: ast.FunctionDef, prefix: str) -> None:
        for statement in ast.walk(function):
            if not isinstance(statement, ast.Assign):
                continue
            target = ast.unparse(statement.targets[0])
            if "." not in target or "[" in target:
                continue
            key = prefix + target.split(".", 1)[1]
            if text := _comment_above(lines, statement.lineno - 1):
                comments.setdefault(key, text)
            value = statement.value
            called = value.func if isinstance(value, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in functions:
                read(functions[called.id], f"{key}.")

    read(functions["get_config"], "")
    return comments


def _comment_above(lines: list[str], row: int) -> str:
    """Text of the comment lines that end directly above a line."""
    words = []
    while row > 0 and (match := re.match(r"\s*# ?(.*)", lines[row - 1])):
        words.append(match.group(1))
        row -= 1
    return " ".join(reversed(words))


# Kind of configuration -> text about presets, entries of the keys.
_KINDS = {
    "training": (_training_presets, _training_keys),
    "fine-tuning": (_tuning_presets, _tuning_keys),
}
