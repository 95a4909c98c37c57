"""A sink is shown a run that stops and resumes, as training would show it."""

import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from ragen_jax.runs.sinks.base import OpenedRun, Sink

# Records with everything they may hold.
_RECORDS = (
    {"iteration": 0, "time": 1.7e9, "val-env/Sokoban/success": 0.25},
    {"iteration": 1, "time": 1.7e9, "actor/entropy": None, "spreads": [0.0, 0.5]},
    {"iteration": 2, "actor/entropy": 0.5, "spreads": []},
)
_EPISODE = {
    "turns": [{"observation": "P_O", "reply": "Right", "reward": 1.0}],
    "return": 1.0,
    "success": True,
}


def outcomes(kind: type[Sink]) -> Iterator[tuple[str, list[str]]]:
    """What was tried of a sink, each with its problems: none, or what was raised."""
    with tempfile.TemporaryDirectory() as folder:
        for what, num_before in (("a new run", 0), ("a resumed run", 2)):
            run = OpenedRun(
                workdir=pathlib.Path(folder),
                run_id="checked",
                settings={"seed": 0},
                games=("Sokoban",),
                records=_RECORDS[:num_before],
                episode_files={},
            )
            sink, problems = _try(kind, run)
            yield f"It opens {what}.", problems
            if problems:
                return
            for record in _RECORDS[num_before:]:
                where = f"{what}, iteration {record['iteration']}"
                yield f"It takes a record of {where}.", _try(sink.write, record)[1]
            yield f"`episodes` of {what}.", _try(sink.episodes, 2, [_EPISODE])[1]
            yield f"`flush` of {what}.", _try(sink.flush)[1]
            yield f"`close` of {what}.", _try(sink.close)[1]


def _try(call: Callable, *args: object) -> tuple[Any, list[str]]:
    """Result of a call, and the problems: what it raised."""
    try:
        return call(*args), []
    # A user's code; what it raises is the finding.
    except Exception as error:
        return None, [f"{type(error).__name__}: {error}"]
