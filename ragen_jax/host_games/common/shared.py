"""What all games need and one process works out, such as the list of a large folder.

In: a name and a function that gives it. Out: its value, worked out by the first process
that asks and read from a small file by all others: the workers of the games, and the
process that started them. Later changes of what it was made of are not seen.
"""

import functools
import json
import os
import pathlib
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from ragen_jax.host_games.common.splits import text_hash

# Variable of the environment that tells workers the folder of these files.
FOLDER = "RAGEN_JAX_SHARED_FOLDER"

# Threads start workers at once, and `functools.cache` lets two of them make a folder:
# the one that is not kept is removed, though a worker may have its name already.
_making = threading.Lock()


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    """The folder of a process that no other has started; it is removed at its end."""
    return tempfile.TemporaryDirectory(prefix="ragen-jax-shared-")


def folder() -> str:
    """Where this process and those that it starts keep the files."""
    with _making:
        return os.environ.get(FOLDER) or _temporary().name


def once(name: str, make: Callable[[], Any]) -> Any:
    """A value that is worked out once for this process and all workers.

    Processes that ask meanwhile wait. If the one that works it out fails or is killed,
    the next one does.

    Args:
      name: of the value, the same in every process; names what it is made of.
      make: gives the value, JSON-able.
    """
    import fcntl  # Windows, which has no workers, lacks it

    # Workers start in the folder of the process that starts them.
    key = text_hash(f"{os.getcwd()} {name}")
    file = pathlib.Path(folder(), f"{key:016x}.json")
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            written = file.with_suffix(".part")
            written.write_text(json.dumps(make()))
            # A process that is killed while it writes leaves no half of a file.
            written.rename(file)
    return json.loads(file.read_text())
