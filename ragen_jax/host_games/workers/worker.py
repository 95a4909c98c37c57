"""A worker process: plays the games of some rows, one request after the other.

In: requests, a JSON object a line, on standard input. Out: an answer a line on what was
standard output; what games print goes to standard error. A game that raises answers
with its exception and is thrown away; anything worse that happens to the process is the
business of `pool.py`, which starts it.

    {"number": 7, "row": 3, "reset": [seed, task]} -> {"number": 7, "observation": ...}
    {"number": 8, "row": 3, "step": "reply"}       -> {"number": 8, "observation": ...}
    {"number": 9, "row": 3, "solution": true}      -> {"number": 9, "solution": [...]}

An answer has its request's number, so that none is taken for another's. The answer
{"number": ..., "error": sentence} may have "spoiled": an import has failed, and no game
can be made in this process any more; or "spent": the request needs a new process. Half
a surrogate pair in a text, which no encoding can write, becomes "?". Images are PNG
files in base64, a list of texts as "images" beside the observation; "call" is a call of
a model, see `base.Observation`.

The first line says what to play: {"game": "module:Class", "kwargs": {...}, "wrappers":
[[name, argument], ...], "max_bytes": limit of its memory or null}.
"""

import functools
import importlib
import json
import os
import resource
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

from ragen_jax.host_games.base import (
    BrokenContract,
    HostGame,
    Observation,
    SpentProcess,
    Step,
)
from ragen_jax.host_games.common.images import png_base64
from ragen_jax.host_games.wrappers import wrap

# Between two looks whether the parent of this process has died, and for its games to
# close if it has.
WATCH_SECONDS = 1.0
CLOSE_SECONDS = 5.0
# No answer is longer, in bytes, its images included; a process that writes more all the
# same is stopped.
MAX_ANSWER = 8_000_000


def main() -> None:
    """Serve until standard input ends."""
    # Games may print and read; their words must not stand among the answers, nor may
    # they take the requests.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    start = json.loads(requests.readline())
    if start["max_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (start["max_bytes"],) * 2)
    failures: list[Exception] = []
    build = functools.partial(_build, start, failures)
    worker = os.getpid()
    games: dict[int, HostGame] = {}
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent, games), daemon=True).start()
    for line in requests:
        request = json.loads(line)
        row, number = request["row"], {"number": request["number"]}
        try:
            if "reset" in request:
                if row not in games:
                    games[row] = build()
                answer = _observation(games[row].reset(*request["reset"]))
            elif "solution" in request:
                answer = {"solution": list(games[row].solution())}
            else:
                answer = _step(games[row].step(request["step"]))
            line = _line(number | answer)
        except Exception as error:  # every exception of a game is an answer
            why = {"spoiled": True} if failures else {}
            if isinstance(error, SpentProcess):
                why = {"spent": True}
            line = _line(number | {"error": _words(error)} | why)
            if row in games:
                _close(games.pop(row))
        if os.getpid() != worker:
            # The game forked and let both processes return. One of them answers.
            os._exit(0)
        answers.write(line)
        answers.flush()
    _close_all(games)


def _watch(parent: int, games: Mapping[int, HostGame]) -> None:
    """End the process, with what its games have started, if its parent is killed.

    A game may be waiting for something that never comes, and not see the end of the
    requests.
    """
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    closing = threading.Thread(target=_close_all, args=(games,), daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
    os._exit(1)


def _build(start: dict[str, Any], failures: list[Exception]) -> HostGame:
    """A game, unless an import has failed in this process.

    Python leaves behind what a module that fails has imported, so that a second attempt
    may come further: rows would play or not by their order.

    Args:
      start: the first line.
      failures: of imports, so far.
    """
    if failures:
        raise failures[0]
    module, name = start["game"].split(":")
    try:
        make = getattr(importlib.import_module(module), name)
        return wrap(make(**start["kwargs"]), start["wrappers"])
    except Exception as error:  # a module may raise anything
        if _is_of_import(error):
            failures.append(error)
        raise


def _is_of_import(error: BaseException | None) -> bool:
    """Whether an exception, or what it was raised from, comes from an import."""
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, ImportError) or any(x.name == "<module>" for x in frames):
            return True
        error = error.__cause__ or error.__context__
    return False


def _words(error: Exception) -> str:
    """What an exception says, and where it was raised if not by one of our checks."""
    if isinstance(error, BrokenContract):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{where.filename}, line {where.lineno}"
    return f"{type(error).__name__}: {error} ({place})"


def _close_all(games: Mapping[int, HostGame]) -> None:
    for game in list(games.values()):
        _close(game)


def _close(game: HostGame) -> None:
    """Close a game; one that cannot ends with the process."""
    try:
        game.close()
    except Exception:  # it may have failed before, and is not used again
        traceback.print_exc()


def _line(answer: dict[str, Any]) -> str:
    line = json.dumps(answer, ensure_ascii=False) + "\n"
    size = len(line.encode("utf-8", "replace"))
    if size > MAX_ANSWER:
        raise BrokenContract(
            f"an observation takes {size:,} bytes, its images as PNG files in base64 "
            f"included, and may take {MAX_ANSWER:,}; show less, or smaller images"
        )
    return line


def _observation(observation: Observation) -> dict[str, Any]:
    images = list(map(png_base64, observation.images))
    shown = {"observation": observation.text}
    shown |= {"images": images} if images else {}
    return shown | ({} if observation.call is None else {"call": observation.call})


def _step(step: Step) -> dict[str, Any]:
    return _observation(step.observation) | {
        "reward": float(step.reward),
        "terminated": bool(step.terminated),
        "truncated": bool(step.truncated),
        "info": {name: float(value) for name, value in step.info.items()},
    }


if __name__ == "__main__":
    main()
