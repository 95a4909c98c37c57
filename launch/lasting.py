"""Imports that the garbage collector leaves alone.

The libraries of a command are 700,000 objects that live until it ends. Python's
collector walks them again and again: while they are imported, whenever it looks at
everything later on, and once more at exit: 1.5 s of every command.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def lasting_objects() -> Iterator[None]:
    """What is made inside stays to the end of the process, and is never collected."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
