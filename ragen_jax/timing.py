"""How long the stages of a run take."""

import contextlib
import time


@contextlib.contextmanager
def timed(timing: dict[str, float], name: str):
    """Add the seconds the block took as `timing_s/<name>`."""
    began = time.perf_counter()
    yield
    timing[f"timing_s/{name}"] = time.perf_counter() - began
