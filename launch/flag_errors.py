"""Errors of the command line as one sentence about what the user typed."""

import ast
import difflib
import os
import pathlib
import re
import traceback
from collections.abc import Sequence


def config_files(words: Sequence[str]) -> list[str]:
    """Paths that `--config` names, without their presets."""
    matches = [re.match(r"--?config=([^:]+)", word) for word in words]
    return [match.group(1) for match in matches if match]


def check_config_files(words: Sequence[str]) -> None:
    """Refuse files that are no Python, or define no configuration.

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


def _same_last_part(path: str) -> str:
    """A suggestion for a key that lacks its section: `iterations`."""
    from configs import base
    from ragen_jax.tables.rules import flatten

    by_last = {key.split(".")[-1]: key for key in flatten(base.get_config())}
    close = difflib.get_close_matches(path.split(".")[-1], by_last, n=1)
    return f" Did you mean {by_last[close[0]]!r}?" if close else ""


def flag_sentence(error: Exception, keys: Sequence[str]) -> str:
    """One line about the user's input, from an error of absl or ml_collections."""
    lines = [line for line in str(error).replace("\\n", "\n").splitlines() if line]
    last = lines[-1]
    suggestion = re.search(r'Did you mean "(.*)" instead of "(.*)"', last)
    if suggestion or isinstance(error, AttributeError | KeyError):
        close, name = suggestion.groups() if suggestion else ("", last.strip("'\""))
        # The error names a part of the path.
        paths = [key for key in keys if name in key.split(".")]
        path = paths[0] if paths else name
        hint = f" Did you mean {path.replace(name, close)!r}?" if close else ""
        hint = hint or _same_last_part(path)
        return f"no configuration key {path!r}.{hint}"
    value = re.match(r"flag (--[\w.]+)=(.*?): (.*)", last, re.DOTALL)
    if value:
        flag, text, complaint = value.groups()
        for words, rule in _RULES_OF_VALUES.items():
            if words in complaint:
                return f"{flag}={text}; {rule}"
    last = re.sub(r"^(ValueError|TypeError|OSError): ", "", last)
    if last.startswith("get_config() takes 0 positional arguments"):
        return "this configuration file takes no presets; leave out the colon and them"
    return last
