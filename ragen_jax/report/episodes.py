"""Sample episodes for the viewer, as many as a page may hold.

In: runs and a number. Out: records as `trajectories/*.jsonl` has them, chosen evenly
over runs and iterations, and how many there are in all.
"""

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from ragen_jax.report.runs import RunData, read_lines
from ragen_jax.report.series import thin

# However many episodes are asked for, a page that browsers open at once.
MAX_CHARACTERS = 24_000_000

_FILE = re.compile(r"iteration_(\d+)\.jsonl")


def choose_episodes(
    runs: Sequence[RunData], max_episodes: int
) -> tuple[list[dict[str, Any]], int]:
    """At most so many episodes, and the number of those there are.

    Every run gets an equal share. Of a run, iterations are taken evenly, the first and
    the last among them, each with its first episodes. To a record are added `run`, its
    number, and `iteration`.

    Raises:
      ValueError: a file is damaged.
    """
    files = [_files(run.folder) for run in runs]
    sizes = [{i: _count(path) for i, path in own.items()} for own in files]
    total = sum(sum(own.values()) for own in sizes)
    chosen, room = [], MAX_CHARACTERS
    for number, (own, size) in enumerate(zip(files, sizes, strict=True)):
        share = max_episodes // len(runs) + (number < max_episodes % len(runs))
        iterations = thin(list(own), _num_iterations(size, share))
        for rank, iteration in enumerate(iterations):
            # What is left of the share, evenly over what is left to read.
            count = -(-share // (len(iterations) - rank))
            records = read_lines(own[iteration])[:count]
            share -= len(records)
            for record in records:
                room -= len(json.dumps(record))
                if room < 0:
                    return chosen, total
                chosen.append({"run": number, "iteration": iteration} | record)
    return chosen, total


def _num_iterations(sizes: dict[int, int], share: int) -> int:
    """Iterations to take from: as few as fill the share, but two at least."""
    largest = max(sizes.values(), default=0)
    return min(share, max(-(-share // largest), 2)) if largest else 0


def _files(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    found = ((_FILE.fullmatch(p.name), p) for p in folder.glob("trajectories/*.jsonl"))
    return dict(sorted((int(match.group(1)), path) for match, path in found if match))


def _count(path: pathlib.Path) -> int:
    return path.read_bytes().count(b"\n")
