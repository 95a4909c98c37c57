"""The machine, the code and the versions on which a run's bits depend.

In: the process. Out: a description that goes into `config.json`, and the differences
between two. Equal seeds give equal bits where the descriptions are equal. XLA's CPU
pool has a thread per core that the process may use, or `NPROC` threads if that variable
is set. A pool of one thread adds the terms of matrix products in another order than a
larger one, so the commands never use one (`launch.command`); sizes from 2 to 64 gave
equal bits. XLA also picks instructions by the processor, and each version may compile
another program.
"""

import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jaxlib
from ml_collections import ConfigDict

from ragen_jax import __version__
from ragen_jax.registry.functions import is_reference
from ragen_jax.registry.settings import flatten

_CPU_INFO = pathlib.Path("/proc/cpuinfo")


def describe_machine(references: Iterable[str] = ()) -> dict[str, Any]:
    """Everything besides configuration and files that the bits of a run depend on.

    Args:
      references: `package.module:Name` of the user's functions that take part.
    """
    device = jax.local_devices()[0]
    cpu = {"cpu": _cpu_model(), "cpu_threads": cpu_threads()}
    return {
        **describe_versions(),
        "num_devices": jax.device_count(),
        **(cpu if device.platform == "cpu" else {}),
        "jaxlib": jaxlib.__version__,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        **{f"module {name}": _digest(name) for name in _modules(references)},
    }


def describe_versions() -> dict[str, str]:
    """Versions of this package and of JAX, the commit if known, and the device."""
    return {
        "ragen_jax": __version__,
        **({"commit": commit} if (commit := git_commit()) else {}),
        "jax": jax.__version__,
        "device": jax.local_devices()[0].device_kind,
    }


def describe_run(config: ConfigDict) -> dict[str, Any]:
    """What must be equal in all processes of a run: configuration, code, versions."""
    machine = describe_machine(references(config))
    keys = {f"configuration key {k}": v for k, v in flatten(config).items()}
    of_host = ("cpu", "cpu_threads")
    return (
        {k: v for k, v in machine.items() if k not in of_host}
        | {"Python": platform.python_version(), "code": _code_digest()}
        # What JSON cannot hold is refused later, by the check of the configuration.
        | json.loads(json.dumps(keys, default=repr))
    )


def references(config: ConfigDict) -> list[str]:
    """The user's functions and games that a configuration names.

    Also within a value, such as an entry of `env.mix`, and behind the prefix of an
    adapter, as in "agent:package.module:function".
    """
    found = []
    for text in _texts(flatten(config)):
        forms = (text, text.partition(":")[2])
        found += [form for form in forms if is_reference(form)]
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _texts(part)


def _code_digest() -> str:
    """Beginning of the SHA-256 of our files, committed or not."""
    root, sha = pathlib.Path(__file__).resolve().parents[2], hashlib.sha256()
    for package in ("envs", "ragen_jax", "launch"):
        for path in sorted((root / package).rglob("*.py")):
            sha.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return sha.hexdigest()[:16]


def _modules(references: Iterable[str]) -> list[str]:
    return sorted({reference.split(":")[0] for reference in references})


def _digest(module: str) -> str | None:
    spec = importlib.util.find_spec(module)
    file = None if spec is None else spec.origin
    if file is None or not os.path.isfile(file):
        return None
    return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()[:16]


def git_commit() -> str | None:
    """Commit of this code, with "-dirty" if files differ from it.

    None where the code is not a git checkout (an installed package) or git is missing.
    """
    root = pathlib.Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(words, cwd=root, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def cpu_threads() -> int:
    """Threads of XLA's CPU pool."""
    nproc = os.environ.get("NPROC", "")
    if nproc.isdecimal() and int(nproc) > 0:
        return int(nproc)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between two machines, as "name: before -> now"; "" for nothing.

    A run of an earlier version has not recorded everything: that does not count.
    """
    changes = [
        f"{name}: {before[name]} -> {now[name]}"
        for name in now
        if name in before and before[name] != now[name]
    ]
    return "; ".join(changes)


def _cpu_model() -> str:
    """Name of the processor, as Linux has it; elsewhere its architecture."""
    if _CPU_INFO.exists():
        names = re.search(r"model name\s*:\s*(.+)", _CPU_INFO.read_text())
        if names:
            return names.group(1)
    return platform.machine()
