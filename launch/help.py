"""The text of `--help`: what a command does, its flags, its presets, all keys.

Headings and entries of the keys are the declarations in `configs/`, so that help and
checks cannot say two things. `--help=rollout` shows one section, `--help=rollout.max`
the keys that begin so.
"""

import inspect
import os
import re
import runpy
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from absl import flags
from ml_collections import ConfigDict

if TYPE_CHECKING:
    from ragen_jax.registry.settings import Section, Setting, Settings

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
_MAX_COLUMNS = 80


def help_parts(
    main: Callable, argv: Sequence[str], kind: str = "", topic: str = ""
) -> Iterator[str]:
    """Help of a command, part by part: the last one takes seconds to look up.

    Args:
      main: of the command, whose file says what it does and how to call it.
      argv: the command line.
      kind: of the configuration, a key of `_KINDS`; "": it takes none.
      topic: beginning of the keys to show, such as a section; "": everything.

    Raises:
      ValueError: no key begins like `topic`.
    """
    module = main.__globals__
    if not topic:
        yield from map(_filled, inspect.cleandoc(module["__doc__"]).split("\n\n"))
        yield "\n".join(["Flags", *_flags(module["__name__"], argv[0])])
    if not kind:
        if topic:
            raise ValueError(
                f"--help={topic}: this command has no keys; --help lists its flags"
            )
        return
    presets, declared = _KINDS[kind]
    chosen, config = _chosen_config(argv)
    settings, config = declared(config)
    if not topic:
        yield presets()
        yield _filled(
            f"Keys, set by --config.KEY=VALUE, with their values in {chosen}"
            if chosen
            else "Keys, set by --config.KEY=VALUE, with their defaults; task files and "
            "presets change some: add --config=FILE:PRESETS to see theirs"
        )
    sections = list(_sections(settings, config, topic))
    if not sections:
        from ragen_jax.registry.functions import did_you_mean

        raise ValueError(
            f"--help={topic}: no key begins like this.{did_you_mean(topic, settings)}"
        )
    yield from sections


def help_topic(argv: Sequence[str]) -> str | None:
    """What the command line asks help about; "": everything; None: it does not ask."""
    for word in argv:
        if match := re.fullmatch(r"-h|--?help(?:full)?(?:=(.*))?", word):
            return match.group(1) or ""
    return None


def _chosen_config(argv: Sequence[str]) -> tuple[str, ConfigDict | None]:
    for word in argv:
        match = re.fullmatch(r"--?config=([^:]+)(?::(.*))?", word)
        if match and os.path.isfile(match.group(1)):
            path, presets = match.groups()
            get_config = runpy.run_path(path)["get_config"]
            return word.split("=", 1)[1], get_config(*filter(None, [presets]))
    return "", None


def _flags(module: str, program: str) -> Iterator[str]:
    # absl names the module of a running file by its command line's first word.
    owners = (module, program, "launch.command")
    every = flags.FLAGS.flags_by_module_dict()
    names = {flag.name: flag for owner in owners for flag in every.get(owner, [])}
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


def _sections(
    settings: "Settings", config: ConfigDict, topic: str = ""
) -> Iterator[str]:
    from ragen_jax.registry.settings import Section, flatten

    leaves, parts, listed = flatten(config), {}, set()

    def add(key: str, value: object, text: str) -> None:
        if key.startswith(topic):
            name = key.partition(".")[0] if "." in key else ""
            entry = _entry(f"{key} = {value!r}", text)
            parts.setdefault(name, []).append(entry)

    for key, entry in settings.items():
        if not isinstance(entry, Section):
            add(key, leaves[key], _text(entry, leaves))
            listed.add(key)
        elif entry.is_open:
            below = [leaf for leaf in leaves if leaf.startswith(f"{key}.")]
            values = {leaf.removeprefix(f"{key}."): leaves[leaf] for leaf in below}
            add(key, values, entry.meaning)
            listed.update(below)
        elif "." not in key:
            heading = f"{_sentence(entry.meaning)}{_needs(entry, leaves)}"
            parts[key] = [key, "-" * len(key), _filled(heading)]
    # Options of the user's functions.
    for key in leaves.keys() - listed:
        add(key, leaves[key], "")
    for name, part in parts.items():
        if name == "" or len(part) > 3:
            yield "\n".join(part)


def _needs(entry: "Section | Setting", leaves: Mapping[str, object]) -> str:
    # Conditions on keys of another command's configuration do not hold here.
    needs = [need for need in entry.needs if need.split(" ")[0] in leaves]
    return f" Read only if {' and '.join(needs)}." if needs else ""


def _text(setting: "Setting", leaves: Mapping[str, object]) -> str:
    from ragen_jax.registry.functions import Table

    words = [setting.meaning]
    if setting.none:
        words.append(f"None: {setting.none}.")
    choices = setting.choices
    if choices:
        names = ", ".join(map(str, sorted(choices)))
        is_open = isinstance(choices, Table)
        words.append(f"One of {names}{', or package.module:Name' * is_open}.")
    elif setting.range and setting.least != 1:
        words.append(f"{setting.range[0].upper()}{setting.range[1:]}.")
    if setting.is_data:
        words.append("Compiled once for all numbers.")
    return " ".join(words) + _needs(setting, leaves)


def _training_presets() -> str:
    from configs import sizes

    lines = ["Presets, at most one of each kind, with commas: --config=FILE:A,B,C"]
    for kind, table in sizes.PRESETS.items():
        lines += [
            _entry(f"{name}  ({kind})", _first_sentence(preset))
            for name, preset in table.items()
        ]
    return "\n".join(lines)


def _tuning_presets() -> str:
    from configs import sft

    return "\n".join(
        [
            "Presets of configs/sft.py, at most one of each kind, with commas",
            *(_entry(kind, ", ".join(table)) for kind, table in sft.PRESETS.items()),
        ]
    )


def _training_keys(config: ConfigDict | None) -> tuple["Settings", ConfigDict]:
    from configs import base
    from ragen_jax.config import check_kind

    config = config or base.get_config()
    check_kind(config)
    return base.SETTINGS, config


def _tuning_keys(config: ConfigDict | None) -> tuple["Settings", ConfigDict]:
    from configs import sft
    from ragen_jax.sft.rules import declared

    config = config or sft.get_config()
    return declared(config), config


def _columns() -> int:
    return min(shutil.get_terminal_size((_MAX_COLUMNS, 24)).columns, _MAX_COLUMNS)


def _filled(text: str) -> str:
    """A paragraph within the columns; commands keep their lines."""
    options = {"break_on_hyphens": False, "break_long_words": False}
    if "\n " not in text and not text.startswith((" ", "python ")):
        return textwrap.fill(text, _columns(), **options)
    lines = []
    for line in text.splitlines():
        parts = textwrap.wrap(line, _columns() - 2, subsequent_indent="    ", **options)
        lines.append(" \\\n".join(parts) if len(line) > _columns() else line)
    return "\n".join(lines)


def _entry(name: str, text: str) -> str:
    options = {"break_on_hyphens": False, "break_long_words": False}
    head = textwrap.wrap(
        name, _columns(), initial_indent="  ", subsequent_indent="    ", **options
    )
    lines = textwrap.wrap(
        text, _columns(), initial_indent=" " * 6, subsequent_indent=" " * 6, **options
    )
    return "\n".join([*head, *lines])


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", ".)")) else f"{text}."


def _first_sentence(function: Callable) -> str:
    return inspect.getdoc(function).split("\n\n")[0].replace("\n", " ")


# Kind of configuration -> text about presets; declarations and values of keys.
_KINDS = {
    "training": (_training_presets, _training_keys),
    "fine-tuning": (_tuning_presets, _tuning_keys),
}
