"""Games in worker processes that may fail, hang or be killed.

In: which game each row plays, then a reply for every row still playing. Out: each
row's answer, or why it failed. A worker plays the games of several rows. When one
of them outlasts its deadline the process is killed, a new one starts, and the worker's
other rows are brought back by playing their episodes again, which a game's contract
allows (`base.HostGame`); nothing changes for them. Knows no tokens.
"""

import concurrent.futures
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.host_games.common import child, shared
from ragen_jax.host_games.common.files import parse_json
from ragen_jax.host_games.workers.worker import MAX_ANSWER

# Seconds a worker gets to exit after its last message or when no longer needed.
END_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class GameSpec:
    """What a worker builds.

    Attributes:
      game: "package.module:Class" of a `HostGame`.
      kwargs: of its constructor, JSON-able; the split excepted.
      wrappers: around it, see `wrappers.wrap`.
      num_workers: processes; None: one for each processor, and no more than rows.
      start_seconds: a row that takes longer to begin an episode has failed; a new
        process imports and makes the game before that.
      step_seconds: a row that takes longer for a step has failed.
      max_bytes: memory of a worker; None: no limit.
    """

    game: str
    kwargs: Mapping[str, Any]
    wrappers: Sequence[Sequence[Any]] = ()
    num_workers: int | None = None
    start_seconds: float = 60.0
    step_seconds: float = 10.0
    max_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class WorkerResponse:
    """What a row's game answered.

    Attributes:
      text, images: the observation; PNG files in base64.
      call: of a model's API, in place of a message; None: none.
      reward, terminated, truncated, info: as in `Step`; of a reset 0, False, False, {}.
      solution: replies that win, where they were asked for.
      failure: why the answer is missing; None if there is one.
      spoiled: the failure is that of an import, which the process cannot try again.
      spent: the request needs a new process.
    """

    text: str = ""
    images: tuple[str, ...] = ()
    call: Mapping[str, Any] | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, float] = dataclasses.field(default_factory=dict)
    solution: tuple[str, ...] = ()
    failure: str | None = None
    spoiled: bool = False
    spent: bool = False

    @property
    def is_over(self) -> bool:
        """Nothing more can be asked of the row."""
        return self.terminated or self.truncated or self.failure is not None

    @property
    def valid(self) -> bool:
        """The game could read the reply."""
        return bool(self.info.get("valid", True))

    @property
    def success(self) -> bool:
        """The goal of the game is reached."""
        return bool(self.info.get("success", False))

    @property
    def was_cut(self) -> bool:
        """A limit of the game, or its failure, has ended the episode."""
        return self.truncated or self.failure is not None

    def in_text(self) -> "WorkerResponse":
        """The answer for a player that reads text alone: images are a failure."""
        return WorkerResponse(failure=_HAS_IMAGES) if self.images else self


_HAS_IMAGES = (
    "it shows an image, and this player is shown text alone; set host.image_grid for "
    "a model that sees, evaluate one behind an API, or leave images out with the "
    "wrapper ('images', 0) in host.wrappers"
)


class Pool:
    """The games of some rows, in worker processes that start with the first reset.

    All players of a host game use it: training, models behind an API, sessions of a
    server, people, solvers and demonstrators.

    Args:
      spec: the game.
      split: of its problems.
      num_rows: episodes that are played side by side.
      reads_images: the player is shown images; else a game that shows one has failed.
    """

    def __init__(
        self,
        spec: GameSpec,
        split: str,
        num_rows: int = 1,
        *,
        reads_images: bool = False,
    ):
        num_workers = min(spec.num_workers or os.cpu_count() or 1, num_rows)
        rows = [range(i, num_rows, num_workers) for i in range(num_workers)]
        self._workers = [_Worker(spec, split, mine) for mine in rows]
        self._threads = concurrent.futures.ThreadPoolExecutor(num_workers)
        self.num_rows, self._reads_images = num_rows, reads_images
        # Workers end with the pool, however it is left.
        self.close = weakref.finalize(self, _stop_all, self._workers, self._threads)

    def reset(
        self, seeds: Sequence[int], tasks: Sequence[int | None]
    ) -> list[WorkerResponse]:
        """Begin an episode in every row."""
        for worker in self._workers:
            worker.renew()
        given = [[int(seed), task] for seed, task in zip(seeds, tasks, strict=True)]
        answers = self._ask({row: {"reset": x} for row, x in enumerate(given)})
        return [answers[row] for row in range(self.num_rows)]

    def step(self, replies: Mapping[int, str]) -> dict[int, WorkerResponse]:
        """Answers to the replies of some rows."""
        answers = self._ask({row: {"step": reply} for row, reply in replies.items()})
        return {row: answers[row] for row in replies}

    def begin_row(
        self, row: int, seed: int, task: int | None
    ) -> "concurrent.futures.Future[WorkerResponse]":
        """Begin an episode in one row while others play theirs."""
        return self._ask_row(row, {"reset": [int(seed), task]})

    def step_row(
        self, row: int, reply: str
    ) -> "concurrent.futures.Future[WorkerResponse]":
        """The answer to the reply of one row while others play theirs."""
        return self._ask_row(row, {"step": reply})

    def solve_row(self, row: int) -> "concurrent.futures.Future[WorkerResponse]":
        """The answer of one row whose `solution` is what the game says."""
        return self._ask_row(row, {"solution": True})

    def _ask_row(self, row: int, request: dict[str, Any]):
        worker = self._workers[row % len(self._workers)]
        return self._threads.submit(worker.ask, row, request)

    def solve(self, rows: Sequence[int]) -> dict[int, WorkerResponse]:
        """Answers of some rows whose `solution` is what the game says."""
        answers = self._ask({row: {"solution": True} for row in rows})
        return {row: answers[row] for row in rows}

    def _ask(self, requests: Mapping[int, dict[str, Any]]) -> dict[int, WorkerResponse]:
        def ask(worker: "_Worker") -> dict[int, WorkerResponse]:
            mine = {row: requests[row] for row in worker.rows if row in requests}
            return {row: worker.ask(row, request) for row, request in mine.items()}

        answers: dict[int, WorkerResponse] = {}
        for responses in self._threads.map(ask, self._workers):
            answers |= responses
        if self._reads_images:
            return answers
        return {row: answer.in_text() for row, answer in answers.items()}


def _stop_all(
    workers: "Sequence[_Worker]", threads: concurrent.futures.Executor
) -> None:
    threads.shutdown(cancel_futures=True)
    # Games release what they hold.
    for worker in workers:
        worker.close_stdin()
    # One deadline for all: many workers that hang take no longer than one.
    deadline = time.monotonic() + END_SECONDS
    for worker in workers:
        worker.stop(deadline)


class _Worker:
    """A process and the rows it plays; started when first needed."""

    def __init__(self, spec: GameSpec, split: str, rows: Sequence[int]):
        self.rows = rows
        self._spec, self._split = spec, split
        # Per row what it was asked since its reset and what it showed: enough to play
        # it again. Rows whose episode is over have none.
        self._histories: dict[int, list[tuple[dict[str, Any], str]]] = {}
        # Rows whose episode could not be played again, and why.
        self._lost: dict[int, str] = {}
        self._child: child.Child | None = None
        # Of the last request.
        self._number = 0
        # An import has failed in the process.
        self._is_spoiled = False
        # Rows of a worker are asked one after the other.
        self._lock = threading.Lock()

    def ask(self, row: int, request: dict[str, Any]) -> WorkerResponse:
        with self._lock:
            return self._ask(row, request)

    def _ask(self, row: int, request: dict[str, Any]) -> WorkerResponse:
        if "reset" in request:
            self._histories[row] = []
            self._lost.pop(row, None)
        if self._child is None:
            self._start()
        if row in self._lost:
            return WorkerResponse(failure=self._lost[row])
        answer = self._exchange(row, request)
        if answer.spent:
            self.stop()
            self._start()
            answer = self._exchange(row, request)
        self._is_spoiled |= answer.spoiled
        if answer.is_over:
            del self._histories[row]
        elif "solution" not in request:
            self._histories[row].append((request, answer.text))
        return answer

    def renew(self) -> None:
        """Before all rows begin anew: end a process in which an import has failed.

        What made it fail may have passed, such as a lack of memory.
        """
        if self._is_spoiled:
            self._histories.clear()
            self.stop()
            self._is_spoiled = False

    def close_stdin(self) -> None:
        if self._child is not None:
            self._child.close_stdin()

    def stop(self, deadline: float | None = None) -> None:
        """Kill the process and all that it started; see `child.Child.kill`."""
        if self._child is not None:
            self._child.kill(deadline)
            self._child = None

    def _start(self) -> None:
        """Start a process and bring every row back to where it was."""
        while self._child is None:
            self._child = _start_process()
            self._send(self._first_line())
            for row, history in list(self._histories.items()):
                failure = self._replay(row, history)
                if failure is not None:
                    self._lost[row] = f"it failed when it was played again: {failure}"
                    del self._histories[row]
                if self._child is None:
                    break

    def _first_line(self) -> dict[str, Any]:
        return {
            "game": self._spec.game,
            "kwargs": {**self._spec.kwargs, "split": self._split},
            "wrappers": self._spec.wrappers,
            "max_bytes": self._spec.max_bytes,
        }

    def _replay(
        self, row: int, history: Sequence[tuple[dict[str, Any], str]]
    ) -> str | None:
        """Play an episode again; returns the reason if that fails."""
        for request, text in history:
            answer = self._exchange(row, request)
            if answer.failure is not None:
                return answer.failure
            if answer.text != text:
                return f"it showed {answer.text[:80]!r} instead of {text[:80]!r}"
        return None

    def _exchange(self, row: int, request: dict[str, Any]) -> WorkerResponse:
        """Send a request and read its answer; stops a process that has none."""
        is_reset = "reset" in request
        spec = self._spec
        seconds = spec.start_seconds if is_reset else spec.step_seconds
        self._number += 1
        try:
            self._send({"number": self._number, "row": row, **request})
            line = self._child.read_line(time.monotonic() + seconds, MAX_ANSWER)
            return _parse(line, self._number)
        except TimeoutError:
            limit = " while starting (host.start" if is_reset else " (host.step"
            failure = f"no answer within {seconds:g} s{limit}_seconds)"
        except (BrokenPipeError, EOFError):
            failure = "its process ended"
            status = self._wait()
            if status is None:
                failure = "its process closed the pipe of its answers"
            elif status < 0:
                failure += f", killed by {signal.Signals(-status).name}"
            else:
                failure += f" with status {status}"
        except ValueError as error:
            failure = f"an answer that cannot be read: {error}"
        self.stop()
        return WorkerResponse(failure=failure)

    def _wait(self) -> int | None:
        """The exit status; None if the process stays although its pipe is closed."""
        try:
            return self._child.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _send(self, request: dict[str, Any]) -> None:
        self._child.write(json.dumps(request).encode() + b"\n")


def _start_process() -> child.Child:
    # Imports what this process can import, from the folder that this one is in.
    paths = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    return child.Child(
        [sys.executable, "-m", "ragen_jax.host_games.workers.worker"],
        # Sets are in the same order in every process.
        env=os.environ
        | {"PYTHONPATH": paths, "PYTHONHASHSEED": "0", shared.FOLDER: shared.folder()},
    )


def _parse(line: bytes, number: int) -> WorkerResponse:
    """The answer in a line.

    Raises:
      ValueError: the line is not an answer.
    """
    answer = parse_json(line)
    if not isinstance(answer, dict) or answer.get("number") != number:
        raise ValueError(f"{line[:80]!r} is not the answer of request {number}")
    if isinstance(answer.get("error"), str):
        why = {name: answer.get(name) is True for name in ("spoiled", "spent")}
        return WorkerResponse(failure=answer["error"], **why)
    if isinstance(solution := answer.get("solution"), list):
        return WorkerResponse(solution=tuple(map(str, solution)))
    text, info = answer.get("observation"), answer.get("info", {})
    call = answer.get("call")
    reward, images = answer.get("reward", 0.0), answer.get("images", [])
    are_files = isinstance(images, list) and all(isinstance(x, str) for x in images)
    are_good = isinstance(text, str) and isinstance(info, dict) and are_files
    if not are_good or not isinstance(call, dict | None):
        raise ValueError(f"{line[:80]!r} has no observation")
    # A whole number may be too large for a float.
    if not isinstance(reward, int | float) or not abs(reward) <= sys.float_info.max:
        return WorkerResponse(failure=f"its reward is {reward!r}, not a finite number")
    ends = {name: bool(answer.get(name, False)) for name in ("terminated", "truncated")}
    shown = WorkerResponse(text, tuple(images), call, float(reward), info=info)
    return dataclasses.replace(shown, **ends)
