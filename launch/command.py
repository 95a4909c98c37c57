"""Flags, errors and settings of the process that all commands share."""

import ast
import atexit
import contextlib
import functools
import gc
import os
import pathlib
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

import configs
from launch.help import help_parts, help_topic
from launch.other_programs import cure_of_word, own_flags, unknown_flag
from ragen_jax.registry.functions import did_you_mean, is_reference, read_literal
from ragen_jax.registry.settings import add_options, flatten, spell_out, unknown_key
from ragen_jax.runs.stop import prompt_interrupt
from ragen_jax.terminal import say


def config_files(words: Sequence[str]) -> list[str]:
    """Paths that `--config` names, without their presets."""
    matches = [re.match(r"--?config=([^:]+)", word) for word in words]
    return [match.group(1) for match in matches if match]


def check_config_files(words: Sequence[str]) -> None:
    """Refuse files that are not Python, or define no configuration.

    Raises:
      ValueError: names the file; a file that is not there is found later.
    """
    for path in filter(os.path.isfile, config_files(words)):
        cure = "use a file such as configs/sokoban.py"
        try:
            tree = ast.parse(pathlib.Path(path).read_bytes(), filename=path)
        except (SyntaxError, ValueError) as error:
            reason = getattr(error, "msg", None) or error
            raise ValueError(
                f"the configuration file {path} is not valid Python ({reason}); {cure}"
            ) from error
        # Every way to give a name at the top of a module, an import included.
        if not re.search(r"\bget_config\b|import \*", ast.unparse(tree)):
            raise ValueError(
                f"the configuration file {path} defines no get_config(); {cure}"
            )


def config_file_sentence(error: Exception, words: Sequence[str]) -> str | None:
    """One line about an error raised in the code of a configuration file, if it was."""
    files = {os.path.abspath(path) for path in config_files(words)}
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if os.path.abspath(frame.filename) in files:
            return (
                f"the configuration file {frame.filename} fails in line "
                f"{frame.lineno}: {type(error).__name__}: {error}"
            )
    return None


# Parser's complaint about a value -> the rule.
_RULES_OF_VALUES = {
    "invalid literal for int()": "it must be a whole number",
    "could not convert string to float": "it must be a number",
    "Non-boolean argument": "it must be True or False",
    "as a ConfigDict": "this is a section; set its keys one by one, as in "
    "--config.algo.gamma=0.9",
}


def flag_sentence(error: Exception, keys: Sequence[str], kind: str = "") -> str:
    """One line about the user's input, from an error of absl or ml_collections.

    `keys` are overridden; `kind` is that of the configuration, see `run`.
    """
    lines = [line for line in str(error).replace("\\n", "\n").splitlines() if line]
    last = lines[-1]
    suggestion = re.search(r'Did you mean "(.*)" instead of "(.*)"', last)
    if suggestion or isinstance(error, AttributeError | KeyError):
        close, name = suggestion.groups() if suggestion else ("", last.strip("'\""))
        # The error names a part of the path.
        paths = [key for key in keys if name in key.split(".")]
        path = paths[0] if paths else name
        known = [path.replace(name, close)] if close else _keys_here(kind)
        return str(unknown_key(path, known))
    value = re.match(r"flag (--[\w.]+)=(.*?): (.*)", last, re.DOTALL)
    if value:
        flag, text, complaint = value.groups()
        for words, rule in _RULES_OF_VALUES.items():
            if words in complaint:
                if "," in text and "set" in flags.FLAGS:
                    key = flag.removeprefix("--config.")
                    is_seed = key == "seed"
                    way = f"--seeds={text}" if is_seed else f'--set "{key}={text}"'
                    rule += f"; several: {way}"
                return f"{flag}={text}; {rule}"
    if unknown := re.search(r"Unknown command line flag '([\w.-]+)'", last):
        return unknown_flag(unknown[1], _keys_here(kind))
    last = re.sub(r"^(ValueError|TypeError|OSError): ", "", last)
    if last.startswith("get_config() takes 0 positional arguments"):
        return "this configuration file takes no presets; leave out the colon and them"
    return last


def _keys_here(kind: str) -> list[str]:
    """Keys of the command's configuration; none where it has no flag `config`."""
    if "config" not in flags.FLAGS:
        return []
    from configs import sft

    return [*flatten(sft.get_config() if kind == "fine-tuning" else defaults())]


_OVERRIDE = re.compile(r"^--?(?:no)?config\.([\w.]+)(?:=(.*))?$", re.DOTALL)
# Keys whose names depend on the environment, so that no file lists them all.
_OPEN_KEY = re.compile(
    r"(?:env\.(?:kwargs|params)|games\.\w+\.(?:kwargs|params|planning_params))\.\w+"
)
# Sections whose keys may name the user's functions, which have options there.
_SECTIONS_OF_FUNCTIONS = ("algo", "filter", "loss", "kl", "bonus", "logging")
# Kind of configuration, see `run` -> what `--help` has.
HINTS = {
    "training": "(--help lists flags, presets and all keys; --help=rollout the keys of "
    "a section)",
    "fine-tuning": "(--help lists flags, presets and all keys; --help=train the keys "
    "of a section)",
    "": "(--help lists the flags)",
}
# A configuration of the command's kind, for its errors; set in `_parse_flags`.
_example = ["configs/sokoban.py"]
# The command line of ml_collections, which reads it in `_parse_flags`.
_config_words: list[str] = []
_EXAMPLES = {"fine-tuning": "configs/sft.py:sokoban,pocket"}
# Flags defined here belong to the command, whose --help lists them.
flags.disclaim_key_flags()


def define_config() -> flags.FlagHolder:
    """Define `--config=FILE[:PRESET]` with `--config.key=value` overrides."""
    return config_flags.DEFINE_config_file(
        "config",
        None,
        "Configuration file, e.g. configs/sokoban.py[:PRESET].",
        sys_argv=_config_words,
    )


def define_checkpoint() -> flags.FlagHolder:
    """Define `--checkpoint`, see `evaluation.load.open_trained`."""
    return flags.DEFINE_string(
        "checkpoint",
        None,
        "Checkpoint of --run: last (the default), best (by the metric "
        "checkpoint.keep_best of the run), or the iteration of one that was kept.",
    )


def _joined(words: Sequence[str]) -> list[str]:
    """The words with `--config FILE` in the form that is read here."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in ("--config", "-config") and word[:1] != "-":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _find_config(word: str) -> str:
    """Finds the project's file in `--config=NAME` where no file has that path.

    So `--config=sokoban:grpo` works in any folder. Other words are returned as given.
    """
    match = re.fullmatch(r"(--?config=)([^:]+)(:.*)?", word, re.DOTALL)
    if not match or os.path.exists(match.group(2)):
        return word
    flag, path, presets = match.groups("")
    folder, name = os.path.split(path)
    file = pathlib.Path(configs.__path__[0]) / f"{name.removesuffix('.py')}.py"
    if folder not in ("", "configs") or not file.is_file():
        return word
    if folder:
        print(f"note: {path} is not in this folder; using {file}", file=sys.stderr)
    return f"{flag}{file}{presets}"


def define_section(
    name: str, defaults: ConfigDict, helps: Mapping[str, str]
) -> Callable[[], ConfigDict]:
    """Define `--name.key=value` for every key of a small configuration.

    `config_flags.DEFINE_config_dict` would stop at an unknown key with a traceback, and
    show one help text for all keys.

    Args:
      name, defaults: of the configuration.
      helps: help text of every key.

    Returns:
      A function that returns the configuration with the values of the command line.
    """
    kinds = {
        str: flags.DEFINE_string,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
    }
    holders = {
        key: kinds[defaults.get_type(key)](f"{name}.{key}", default, helps[key])
        for key, default in defaults.items()
    }

    def read() -> ConfigDict:
        config = defaults.copy_and_resolve_references()
        config.update({key: holder.value for key, holder in holders.items()})
        return config.lock()

    return read


def defaults() -> ConfigDict:
    from configs import base

    return base.get_config()


def overridden_keys(argv: Sequence[str]) -> list[str]:
    """Dotted paths of the keys set on the command line."""
    return [match.group(1) for match in map(_OVERRIDE.match, argv) if match]


def read_config(holder: flags.FlagHolder, argv: Sequence[str]) -> ConfigDict:
    """The resolved, locked configuration.

    Raises:
      ValueError: no configuration was named, or the file does not exist.
    """
    config = read_optional_config(holder, argv)
    if config is None:
        raise ValueError(f"no configuration given; add e.g. --config={_example[0]}")
    return config


def read_optional_config(
    holder: flags.FlagHolder, argv: Sequence[str]
) -> ConfigDict | None:
    """The resolved, locked configuration; None without `--config`."""
    config = holder.value
    if config is None:
        return None
    if not isinstance(config, ConfigDict):
        path = config_flags.get_config_filename(flags.FLAGS[holder.name])
        path = path.split(":")[0]
        if os.path.isfile(path):
            raise ValueError(
                f"get_config() of {path} returns {type(config).__name__}, not a "
                "ConfigDict; use a file such as configs/sokoban.py"
            )
        if not path:
            raise ValueError("--config= names no file; add e.g. --config=sokoban")
        if os.path.isdir(path):
            raise ValueError(
                f"--config={path} is a folder; name a configuration file, such as "
                "configs/sokoban.py"
            )
        names = [p.stem for p in pathlib.Path(configs.__path__[0]).glob("[a-z]*.py")]
        hint = did_you_mean(pathlib.Path(path.split(",")[0]).stem, names)
        raise ValueError(
            f"there is no configuration file {path}.{hint} Presets follow a colon, as "
            "in sokoban:grpo"
        )
    for key in overridden_keys(argv):
        is_section = _has(config, key.split(".")) and not _OPEN_KEY.fullmatch(
            f"{key}.x"
        )
        if is_section and key in defaults():
            raise ValueError(f"--config.{key}: {_RULES_OF_VALUES['as a ConfigDict']}")
    options = {}
    for key, value in _untyped_overrides(argv).items():
        if _may_be_option(key) and key.partition(".")[0] in config:
            options[key] = value
        else:
            _set(config, key, value)
    _add_options(config, options)
    return config


def _add_options(config: ConfigDict, options: Mapping[str, object]) -> None:
    known = flatten(config)
    if not options and not any(map(is_reference, known.values())):
        return
    from ragen_jax.config import check_kind, declared

    tables = declared().tables
    # Fine-tuning names games of the user's, too, but no functions that have options.
    if options or any(is_reference(known.get(key)) for key in tables):
        check_kind(config)
        add_options(config, tables, options)


def _untyped_overrides(argv: Sequence[str]) -> dict[str, object]:
    overrides: dict[str, object] = {}
    for word in argv:
        match = _OVERRIDE.match(word)
        if match:
            key, text = match.groups()
            # A section replaces its keys.
            overrides = {
                k: v for k, v in overrides.items() if not f"{k}.".startswith(f"{key}.")
            }
            if _is_read_here(word):
                overrides[key] = read_literal(text)
    return overrides


def _is_read_here(word: str) -> bool:
    """Whether ml_collections cannot read the override: None, or an undeclared key."""
    match = _OVERRIDE.match(word)
    if not match or match.group(2) is None:
        return False
    key, text = match.groups()
    return text == "None" or bool(_OPEN_KEY.fullmatch(key)) or _may_be_option(key)


def _may_be_option(key: str) -> bool:
    """True for a key that the defaults lack, in a section that may name a function."""
    section, _, name = key.partition(".")
    if section not in _SECTIONS_OF_FUNCTIONS or not name or "." in name:
        return False
    return name not in defaults()[section]


def _needs_value(key: str, following: str) -> bool:
    """Whether a key without `=VALUE` lacks a value; a flag cannot be the value."""
    if _OPEN_KEY.fullmatch(key) or _may_be_option(key):
        return True
    is_switch = isinstance(flatten(defaults()).get(key, True), bool)
    return following.startswith("-") and not is_switch


def _set(config: ConfigDict, key: str, value: object) -> None:
    known = flatten(config)
    *sections, name = key.split(".")
    is_open = _OPEN_KEY.fullmatch(key) and _has(config, sections)
    if key not in known and not is_open:
        raise unknown_key(key, known)
    section = functools.reduce(ConfigDict.__getitem__, sections, config)
    with section.unlocked(), section.ignore_type():
        section[name] = value


def _has(config: ConfigDict, sections: Sequence[str]) -> bool:
    for name in sections:
        if name not in config:
            return False
        config = config[name]
    return isinstance(config, ConfigDict)


def run_folder(text: str | None, flag: str = "run") -> pathlib.Path | None:
    """The folder of a flag that names a run; None without one.

    Raises:
      ValueError: there is no such folder. Checked here, before slow imports.
    """
    if not text:
        return None
    folder = pathlib.Path(text)
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder}; --{flag} names the --workdir of a run of "
            "launch.train"
        )
    return folder


def enable_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder.

    The environment variable `JAX_COMPILATION_CACHE_DIR` names another folder.
    """
    import jax

    if not jax.config.jax_compilation_cache_dir:
        root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(root, "ragen_jax", "compiled")
        jax.config.update("jax_compilation_cache_dir", folder)
    # Small programs too: a start compiles many of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def run(
    main: Callable[[list[str]], int],
    *,
    config: str = "",
    rewrite: Callable[[list[str]], list[str]] = list,
) -> None:
    """Parse the flags, call `main(argv)`, exit with its status.

    `config` is the kind of its configuration, for `--help`: "training", "fine-tuning"
    or "" for none; `rewrite` replaces words of the command line.

    Errors with a sentence for the user (`ValueError`, `OSError`, bad flags) are printed
    as one line and exit with status 2; `RAGEN_JAX_TRACEBACK=1` shows their traceback.
    Other exceptions are defects and keep it.
    """

    def call(argv):
        rest = _parse_flags(argv, config)
        if rest:
            word = rest[0].lstrip("+~")
            known = _keys_here(config)
            form, file = "--name=value", f"--config={word}"
            name, is_set, value = word.partition("=")
            if name in known:
                form = f"--config.{word}"
            elif (full := spell_out(name)) in known and is_set:
                form = f"--config.{full}={value}"
            elif known and is_set and re.fullmatch(r"[\w.-]+", name):
                form += cure_of_word(name, known)
            elif known and (word.endswith(".py") or _find_config(file) != file):
                form = file
            elif "run" in flags.FLAGS and os.path.isdir(word):
                form = f"--run={word}"
            raise ValueError(
                f"unexpected argument {rest[0]!r}; options are written {form}"
            )
        return main(argv)

    _exit_with(call, main, rewrite(sys.argv), config)


def run_on_words(main: Callable[[list[str]], int]) -> None:
    """Like `run`, for a command that takes words besides flags: `main(words)`."""
    _exit_with(lambda argv: main(_parse_flags(argv)), main, sys.argv)


def _avoid_single_thread() -> None:
    """Give XLA's CPU pool two threads on a single core.

    With one thread it adds in another order than with more, so that one seed would give
    other bits on a single core. Called before JAX starts.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count()
    if cores == 1:
        os.environ.setdefault("NPROC", "2")


def _exit_with(
    call: Callable[[list[str]], int],
    main: Callable,
    words: list[str],
    config: str = "",
) -> None:
    argv = [_find_config(word) for word in _joined(words)]
    topic = help_topic(argv)
    _avoid_single_thread()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with prompt_interrupt():
            status = (
                call(argv) if topic is None else _print_help(main, argv, config, topic)
            )
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        status = 130
    except BrokenPipeError:
        # `| head` has read enough; what is left to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        try:
            say("stopped: nothing reads the output any more", sys.stderr)
        except BrokenPipeError:  # `2>&1 | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        status = 128 + signal.SIGPIPE
    except (ValueError, OSError) as error:
        if os.environ.get("RAGEN_JAX_TRACEBACK"):
            raise
        say(f"error: {error}", sys.stderr)
        say(HINTS[config], sys.stderr)
        status = 2
    # Nothing is left to lose: Ctrl-C during the shutdown of Python needs no traceback.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


def _print_help(main: Callable, argv: list[str], config: str, topic: str) -> int:
    try:
        for part in help_parts(main, argv, config, topic):
            print(f"{part}\n", flush=True)
    except BrokenPipeError:
        # A pager was closed; what is left to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _missing_configuration(key: str, has_run: bool) -> str:
    """Why there is no configuration whose `key` could be changed; what to write."""
    if not has_run:
        return f"none is given; add --config=FILE, e.g. --config={_example[0]}"
    flag = key.rpartition(".")[2]
    own = f"write --{flag}=VALUE, or " if flag in own_flags() else ""
    return (
        f"with --run alone it is the run's own; {own}add --config=FILE, the file and "
        "the presets that the run was started with; others play another game"
    )


def _parse_flags(argv: Sequence[str], kind: str = "") -> list[str]:
    """Parse the command line; returns the words that are not flags.

    `kind` is that of the configuration, see `run`.
    Errors of absl and ml_collections become a ValueError about the command line.
    """
    _example[0] = _EXAMPLES.get(kind, "configs/sokoban.py")
    for word, following in zip(argv, [*argv[1:], "--"], strict=True):
        if re.fullmatch("--?config", word) and following.startswith("-"):
            raise ValueError(f"{word} has no value; write {word}={_example[0]}")
        match = _OVERRIDE.match(word)
        if match and match.group(2) is None and _needs_value(match.group(1), following):
            raise ValueError(f"{word} has no value; write {word}=VALUE")
    is_configured = any(re.match(r"--?config(=|$)", word) for word in argv)
    takes_config = "config" in flags.FLAGS
    if takes_config and not is_configured:
        has_run = any(re.match(r"--?run(=|$)", word) for word in argv)
        for key in overridden_keys(argv):
            raise ValueError(
                f"--config.{key} changes a configuration, and "
                f"{_missing_configuration(key, has_run)}"
            )
    words = [word for word in argv if not (takes_config and _is_read_here(word))]
    _config_words[:] = words
    check_config_files(words)
    try:
        rest = flags.FLAGS(words)
    except ValueError:
        raise
    except Exception as error:
        if sentence := config_file_sentence(error, words):
            raise ValueError(sentence) from error
        if not isinstance(error, flags.Error | AttributeError | KeyError | TypeError):
            raise
        sentence = flag_sentence(error, overridden_keys(argv), kind)
        raise ValueError(sentence) from error
    own = own_flags()
    for name in flags.FLAGS:
        if flags.FLAGS[name].present and name not in own:
            raise ValueError(unknown_flag(name, _keys_here(kind)))
    return rest[1:]


@contextlib.contextmanager
def lasting_objects() -> Iterator[None]:
    """Objects created in the block are exempt from garbage collection for good."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
