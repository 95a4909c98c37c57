"""How long the stages of a run take, and what was compiled for them."""

import contextlib
import time

from ragen_jax.compilation import compilations


@contextlib.contextmanager
def timed(timing: dict[str, float], name: str):
    """Note the seconds the block took and what was compiled for it.

    As `timing_s/<name>`, `perf/compile_s/<name>` and `perf/compile_cached/<name>`.
    """
    began = time.perf_counter()
    with compilations() as compiled:
        yield
    timing[f"timing_s/{name}"] = time.perf_counter() - began
    timing |= compiled.metrics(name)
