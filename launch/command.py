"""What every command shares: the `--config` flag, and errors as one sentence.

Flags are absl's and ml_collections' own; on top, `None` is accepted as the value of an
optional key, and anything a user can get wrong ends as `error: <sentence>` on standard
error with exit status 2 instead of a traceback.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence

from absl import flags
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
      ValueError: no configuration was named.
    """
    if holder.value is None:
        raise ValueError("no configuration given; add e.g. --config=configs/sokoban.py")
    config = holder.value
    for word in argv:
        match = _NONE_OVERRIDE.match(word)
        if match:
            config.update_from_flattened_dict({match.group(1): None})
    return config


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
    printed as one line; everything else is a defect and keeps its traceback.
    """
    argv = list(sys.argv)
    flags.FLAGS.set_default("logtostderr", True)
    try:
        words = [word for word in argv if not _NONE_OVERRIDE.match(word)]
        rest = flags.FLAGS(words, known_only=False)
        if len(rest) > 1:
            raise ValueError(
                f"unexpected argument {rest[1]!r}; options are written --name=value"
            )
        status = main(argv)
    except flags.Error as error:
        _fail(_flag_sentence(str(error)))
    except (AttributeError, KeyError, TypeError) as error:
        if not _is_about_flags(error):
            raise
        _fail(_flag_sentence(str(error)))
    except (ValueError, OSError) as error:
        if os.environ.get("RAGEN_JAX_TRACEBACK"):
            raise
        _fail(str(error))
    sys.exit(status)


def _is_about_flags(error: BaseException) -> bool:
    """Whether an error was raised while ml_collections applied the overrides."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("ml_collections"):
            return True
        trace = trace.tb_next
    return False


def _flag_sentence(message: str) -> str:
    """The user's part of a flag error: its last line of text, without quoting marks."""
    message = message.replace("\\n", "\n").strip("\"'")
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    suggestion = next((line for line in lines if line.startswith("Did you mean")), None)
    if suggestion:
        key = re.search(r'instead of "([^"]+)"', suggestion)
        name = key.group(1) if key else lines[0]
        return f"no configuration key {name!r}. {suggestion.strip(chr(39))}"
    return re.sub(r"^(ValueError|TypeError|OSError): ", "", lines[-1])


def _fail(sentence: str) -> None:
    print(f"error: {sentence}", file=sys.stderr)
    print("(--help lists the options)", file=sys.stderr)
    sys.exit(2)
