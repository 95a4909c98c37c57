"""The sinks of one run, opened together; a sink that fails does not end the run."""

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from ragen_jax import install_command
from ragen_jax.registry.functions import load_reference
from ragen_jax.runs.progress import announced_late
from ragen_jax.runs.sinks import SINKS
from ragen_jax.runs.sinks.base import OpenedRun, Record, Sink


def load_sinks(names: Sequence[str]) -> dict[str, type[Sink]]:
    """The classes that `logging.sinks` names, imported.

    Raises:
      ValueError: a package is not installed, or a name is not that of a sink.
    """
    return {name: _load(name) for name in names}


def _load(name: str) -> type[Sink]:
    if name in SINKS and name != "tensorboard" and not _is_installed(name):
        raise ValueError(
            f"logging.sinks names {name}, which is not installed; run: "
            f"{install_command(name)}, or leave it out"
        )
    try:
        kind = load_reference(SINKS.get(name, name))
    except ValueError as error:
        raise ValueError(f"logging.sinks names {name}: {error}") from error
    if not inspect.isclass(kind) or not issubclass(kind, Sink):
        raise ValueError(
            f"logging.sinks names {name}, which is not a sink; derive a class from "
            f"{Sink.__module__}.{Sink.__name__} (docs/library.md)"
        )
    return kind


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    # A folder of that name in the current one has no origin.
    return spec is not None and spec.origin is not None


class Sinks:
    """All sinks of a run; each is closed and left out once it has failed.

    Args:
      names: of `logging.sinks`.
      run: the run.

    Raises:
      ValueError: see `load_sinks`.
    """

    def __init__(self, names: Sequence[str], run: OpenedRun):
        self._sinks: dict[str, Sink] = {}
        for name, kind in load_sinks(names).items():
            with self._guarded(name):
                self._sinks[name] = kind(run)

    def write(self, record: Record) -> None:
        self._call(lambda sink: sink.write(record))

    def episodes(self, iteration: int, episodes: Sequence[Mapping]) -> None:
        self._call(lambda sink: sink.episodes(iteration, episodes))

    def flush(self) -> None:
        self._call(lambda sink: sink.flush())

    def close(self) -> None:
        for name in tuple(self._sinks):
            sink = self._sinks.pop(name)
            with self._guarded(name):
                sink.close()

    def _call(self, call: Callable[[Sink], None]) -> None:
        for name, sink in tuple(self._sinks.items()):
            with self._guarded(name):
                call(sink)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        # Their clients try again for minutes, in silence, before they raise.
        waiting = f"waiting for the sink {name} ..."
        try:
            with announced_late(lambda: print(waiting, file=sys.stderr)):
                yield
        # The code is a user's or a service's: it may raise anything, and hours of
        # training are worth more than its curves.
        except Exception as error:
            failed = self._sinks.pop(name, None)
            first = str(error).strip().split("\n")[0]
            print(
                f"warning: the sink {name} failed ({type(error).__name__}: {first}) "
                "and is left out from here on; metrics.jsonl has every metric, and "
                "resuming the run opens the sink again",
                file=sys.stderr,
            )
            if failed is not None:
                # What it holds is released if possible; it is known to be broken.
                with contextlib.suppress(Exception):
                    failed.close()
