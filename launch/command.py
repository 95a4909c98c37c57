"""What every command shares: the `--config` flag, and errors as one sentence.

Flags are absl's and ml_collections' own; on top, `None` is accepted as the value of an
optional key, and anything a user can get wrong ends as `error: <sentence>` on standard
error with exit status 2 instead of a traceback.
"""

import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence

from absl import app, flags
from ml_collections import ConfigDict, config_flags

_NONE_OVERRIDE = re.compile(r"^--?config\.([\w.]+)=[Nn]one$")


def define_config() -> flags.FlagHolder:
    """Define `--config=FILE[:PRESET]` with `--config.key=value` overrides."""
    return config_flags.DEFINE_config_file(
        "config", None, "Configuration file, e.g. configs/sokoban.py[:PRESET]."
    )


def overridden_keys(argv: Sequence[str]) -> list[str]:
    """Dotted paths of the keys set on the command line."""
    found = (re.match(r"^--?(?:no)?config\.([\w.]+)", word) for word in argv)
    return [match.group(1) for match in found if match]


def read_config(holder: flags.FlagHolder, argv: Sequence[str]) -> ConfigDict:
    """The resolved, locked configuration.

    Raises:
      ValueError: no configuration was named, or the file does not exist.
    """
    config = read_optional_config(holder, argv)
    if config is None:
        raise ValueError("no configuration given; add e.g. --config=configs/sokoban.py")
    return config


def read_optional_config(
    holder: flags.FlagHolder, argv: Sequence[str]
) -> ConfigDict | None:
    """The same, or None when no configuration was named."""
    config = holder.value
    if config is None:
        return None
    if not isinstance(config, ConfigDict):
        path = config_flags.get_config_filename(flags.FLAGS[holder.name])
        raise ValueError(f"there is no configuration file {path.split(':')[0]}")
    for word in argv:
        match = _NONE_OVERRIDE.match(word)
        if match:
            _set_none(config, match.group(1))
    return config


def _set_none(config: ConfigDict, key: str) -> None:
    """Switch an optional key off."""
    from ragen_jax.config import flatten

    known = flatten(config)
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1)
        hint = f' Did you mean "{close[0]}"?' if close else ""
        raise ValueError(f"no configuration key {key!r}.{hint}")
    config.update_from_flattened_dict({key: None})


def enable_compilation_cache() -> None:
    """Keep compiled programs between runs in the user's cache folder.

    `JAX_COMPILATION_CACHE_DIR` chooses another folder, as everywhere in JAX.
    """
    import jax

    if not jax.config.jax_compilation_cache_dir:
        root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(root, "ragen_jax", "compiled")
        jax.config.update("jax_compilation_cache_dir", folder)
    # Small programs count too: a start-up runs many of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def run(main: Callable[[list[str]], int]) -> None:
    """Parse the flags, call `main(argv)`, exit with its status.

    Errors that carry a sentence for the user (`ValueError`, `OSError`, bad flags) are
    printed as one line; `RAGEN_JAX_TRACEBACK=1` shows where they came from. Everything
    else is a defect and keeps its traceback.
    """
    argv = list(sys.argv)
    app.define_help_flags()
    try:
        _parse_flags(argv)
        status = main(argv)
    except (ValueError, OSError) as error:
        if os.environ.get("RAGEN_JAX_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        print("(--help lists the options)", file=sys.stderr)
        status = 2
    sys.exit(status)


def _parse_flags(argv: Sequence[str]) -> None:
    """Parse the command line.

    Raises:
      ValueError: with the user's part of whatever absl or ml_collections said.
    """
    words = [word for word in argv if not _NONE_OVERRIDE.match(word)]
    try:
        rest = flags.FLAGS(words)
    except (flags.Error, AttributeError, KeyError, TypeError) as error:
        raise ValueError(_flag_sentence(error)) from error
    if len(rest) > 1:
        raise ValueError(
            f"unexpected argument {rest[1]!r}; options are written --name=value"
        )


def _flag_sentence(error: Exception) -> str:
    """The last line of a flag error's text, which is the one about the user's input."""
    lines = [line for line in str(error).replace("\\n", "\n").splitlines() if line]
    suggestion = re.search(r'Did you mean "(.*)" instead of "(.*)"', lines[-1])
    if suggestion:
        close, name = suggestion.groups()
        return f'no configuration key "{name}". Did you mean "{close}"?'
    if isinstance(error, AttributeError | KeyError):
        return f"no configuration key {lines[-1]}"
    return re.sub(r"^(ValueError|TypeError|OSError): ", "", lines[-1])
