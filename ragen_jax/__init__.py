"""StarPO: multi-turn reinforcement learning of LLM agents on the accelerator.

This file is the package as it is installed: its version, and the command that adds an
optional package where this Python runs.
"""

import json
import pathlib
import shlex
import sys

__version__ = "0.1.0"

ROOT = pathlib.Path(__file__).parents[1]


def install_command(extra: str) -> str:
    """The command that installs an extra of `setup.py` into the running Python.

    ragen_jax is on no index: it comes from a checkout, or from the wheel that was
    installed.
    """
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if (ROOT / "setup.py").is_file():
        return f'{pip} -e "{ROOT}[{extra}]"'
    return f'{pip} "ragen_jax[{extra}]{_source()}"'


def _source() -> str:
    """Where the installed package is from, as pip writes it; empty if unknown."""
    # Every worker of a host game imports this file, and few need this module.
    import importlib.metadata

    try:
        text = importlib.metadata.distribution("ragen_jax").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return ""
    if text is None:
        return ""
    source = json.loads(text)
    if "vcs_info" not in source:
        return f" @ {source['url']}"
    commit = source["vcs_info"]
    return f" @ {commit['vcs']}+{source['url']}@{commit['commit_id']}"
