"""What every benchmark does: time its contestants in turn, print tables, write a file.

Contestants take turns, so that a busy machine is busy for all of them. Machines are
noisy: the minimum tells what a program needs, the median what one gets.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from ragen_jax.runs import markdown

# A flag that is defined here belongs to the benchmark, and stands in its --help.
flags.disclaim_key_flags()


def define_json(default: str | None = None) -> flags.FlagHolder:
    """The flag `--json` of `write_json`."""
    text = "Also write the figures to this file."
    return flags.DEFINE_string("json", default, text)


# Calls that are printed as they end.
LONG_SECONDS = 5.0
_BEGAN = time.perf_counter()


def note(text: str) -> None:
    """Print how far a benchmark has come, with the seconds since it began."""
    print(f"[{time.perf_counter() - _BEGAN:.0f} s] {text}", flush=True)


def take_turns(
    contestants: Mapping[Any, Callable],
    repeats: int,
    *,
    warm_ups: int = 1,
    prepare: Callable[[], tuple] = tuple,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[Any, list[float]], dict[Any, Any]]:
    """Seconds of the calls of every contestant, and its last result.

    Calls that take long are printed at once: a benchmark may be stopped.

    Args:
      contestants: by name; a call counts until its result is on the device.
      repeats: measured calls of each.
      warm_ups: calls before, which compile and do not count.
      prepare: makes the arguments of a call, which does not count.
      clock: `time.process_time` counts the CPU seconds of all threads.
    """
    import jax

    seconds: dict[Any, list[float]] = {name: [] for name in contestants}
    results = {}
    for turn in range(warm_ups + repeats):
        for name, call in contestants.items():
            arguments = jax.block_until_ready(prepare())
            began = clock()
            results[name] = jax.block_until_ready(call(*arguments))
            taken = clock() - began
            if taken > LONG_SECONDS:
                note(f"call {turn + 1}{name and f' of {name}'} took {taken:.1f} s")
            if turn >= warm_ups:
                seconds[name].append(taken)
    return seconds, results


def has_torch() -> bool:
    """Whether PyTorch and transformers, which the peers need, are installed."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def least_seconds(call: Callable, repeats: int) -> float:
    """Least seconds of a call that is compiled already."""
    return min(take_turns({"": call}, repeats)[0][""])


def times(seconds: Sequence[float], digits: int = 3) -> dict[str, str]:
    """Two cells of a table, by column."""
    summary = {"min s": min(seconds), "median s": statistics.median(seconds)}
    return {column: f"{value:.{digits}f}" for column, value in summary.items()}


def table(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows, cells by column, as a table in Markdown."""
    rows = list(rows)
    return markdown.table([*rows[0]] if rows else [], [[*row.values()] for row in rows])


def print_rows(rows: Iterable[Mapping[str, object]]) -> None:
    """Print the table."""
    print(table(rows), flush=True)


def versions() -> dict[str, str]:
    """Versions, device and cores that the figures belong to."""
    import jax

    packages = ("jax", "jaxlib", "flax", "torch", "transformers")
    installed = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    return {
        "device": jax.devices()[0].device_kind,
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        **{p: importlib.metadata.version(p) for p in packages if p in installed},
    }


def print_versions() -> None:
    """Print `versions` in one line."""
    print(", ".join(f"{name} {value}" for name, value in versions().items()))


def report(figures: Mapping[str, Any], print_figures: Callable) -> int:
    """Print versions, notes, the figures and problems; write the file.

    Returns:
      Exit status: 1 where there is a problem, and the figures are not to be trusted.
    """
    print_versions()
    for note in figures["notes"]:
        print(f"note: {note}")
    print_figures(figures)
    for problem in figures["problems"]:
        print(f"problem: {problem}")
    write_json(figures)
    return 1 if figures["problems"] else 0


def write_json(figures: Mapping[str, Any]) -> None:
    """Write figures to the file of `--json`, if there is one."""
    if path := flags.FLAGS.json:
        text = json.dumps({"versions": versions(), **figures}, indent=2)
        pathlib.Path(path).write_text(text + "\n")
