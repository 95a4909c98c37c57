"""Seconds by stage, and the compilations that happened in them.

In: a stage of an iteration. Out: `timing_s/<stage>`, and `perf/compile_s/<stage>` and
`perf/compile_cached/<stage>` where something was compiled.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

import jax

# `timed`, or a function around it: (timing, name of the stage) -> context.
Timed = Callable[[dict[str, float], str], AbstractContextManager[None]]

_COMPILED = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"

# Blocks of `compilations` that count for all threads but these.
_open: list["Compilation"] = []
_apart: set[int] = set()


@dataclasses.dataclass(eq=False)
class Compilation:
    """Compilations of one stage.

    Attributes:
      seconds: in all, cache look-ups included.
      num_programs: compiled or loaded from the cache.
      num_cached: loaded from the cache of earlier runs.
    """

    seconds: float = 0.0
    num_programs: int = 0
    num_cached: int = 0

    def add(self, other: "Compilation") -> None:
        self.seconds += other.seconds
        self.num_programs += other.num_programs
        self.num_cached += other.num_cached

    def metrics(self, stage: str) -> dict[str, float]:
        """Metrics of a stage; empty if nothing was compiled."""
        if not self.num_programs:
            return {}
        return {
            f"perf/compile_s/{stage}": self.seconds,
            f"perf/compile_cached/{stage}": self.num_cached / self.num_programs,
        }


@contextlib.contextmanager
def compilations(*, apart: bool = False) -> Iterator[Compilation]:
    """Count the compilations that happen while the block runs.

    Args:
      apart: those of this thread alone, which no other block then counts.
    """
    compiled, thread = Compilation(), threading.get_ident()

    def is_counted() -> bool:
        here = threading.get_ident()
        return here == thread if apart else here not in _apart

    def on_duration(event: str, seconds: float, **_) -> None:
        if event == _COMPILED and is_counted():
            compiled.add(Compilation(seconds, num_programs=1))

    def on_event(event: str, **_) -> None:
        if event == _CACHE_HIT and is_counted():
            compiled.num_cached += 1

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    if apart:
        _apart.add(thread)
    else:
        _open.append(compiled)
    try:
        yield compiled
    finally:
        if apart:
            _apart.remove(thread)
        else:
            _open.remove(compiled)
        jax.monitoring.unregister_event_duration_listener(on_duration)
        jax.monitoring.unregister_event_listener(on_event)


def count_here(compiled: Compilation) -> None:
    """Count what a block apart has counted in all blocks that are open."""
    for block in _open:
        block.add(compiled)


def describe(metrics: Mapping[str, float]) -> str:
    """A line about the compilations of all stages; empty if there were none."""
    stages = []
    for name, seconds in metrics.items():
        if name.startswith("perf/compile_s/"):
            stage = name.rsplit("/", 1)[1]
            is_cached = metrics[f"perf/compile_cached/{stage}"] == 1
            source = " (from the cache)" if is_cached else ""
            stages.append(f"{stage} {seconds:.1f}s{source}")
    return f"compiled: {', '.join(stages)}" if stages else ""


def time_left(seconds: float, *, num_done: int, num_left: int) -> str:
    """Time until the end, in words, at the mean pace so far.

    Args:
      seconds: spent on `num_done` units of work, of which `num_left` remain.
    """
    remaining = round(seconds / num_done * num_left)
    return f"{remaining // 60}m{remaining % 60:02d}s left"


@contextlib.contextmanager
def timed(timing: dict[str, float], name: str) -> Iterator[None]:
    """Record the seconds that the block takes and the compilations in it.

    Args:
      timing: receives `timing_s/<name>`, `perf/compile_s/<name>` and
        `perf/compile_cached/<name>`.
      name: of the stage.
    """
    began = time.perf_counter()
    with compilations() as compiled:
        yield
    timing[f"timing_s/{name}"] = time.perf_counter() - began
    timing |= compiled.metrics(name)
