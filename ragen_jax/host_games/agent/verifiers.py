"""Environments of verifiers 0.4 as agents.

In: the name of a taskset. Out: an `AgentGame` whose program is the environment: its
harness calls the policy through the API, its tasks give the reward. verifiers needs
other versions of packages than ragen_jax, so that it lives in a Python environment of
its own, where `verifiers_program` plays.

That program takes seconds to import verifiers. Each worker process therefore starts it
once, for all of its episodes.
"""

import importlib.util
import json
import math
import os
import pathlib
import sys
import sysconfig
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragen_jax.host_games.agent.api import ApiServer
from ragen_jax.host_games.agent.episode import Episode
from ragen_jax.host_games.agent.game import COMMAND, MODEL, AgentGame
from ragen_jax.host_games.agent.program import ClientSettings, Ended, Task
from ragen_jax.host_games.base import TRAINING, VALIDATION, BrokenContract, Observation
from ragen_jax.host_games.common.child import Child
from ragen_jax.host_games.common.files import parse_json
from ragen_jax.host_games.common.options import check_number, check_whole

PROGRAM = pathlib.Path(__file__).with_name("verifiers_program.py")
VERSION = "0.4.0"
# Of a line of the program.
MAX_LINE = 1_000_000
_ROUNDING = 1e-9


class VerifiersGame(AgentGame):
    """An environment of verifiers.

    Contract: the same task and the same answers lead to the same calls. An environment
    that draws from Python's or NumPy's global generators after its first call keeps it
    where a worker plays one episode at a time, as in training.
    """

    def __init__(
        self,
        split: str = TRAINING,
        *,
        taskset: str,
        python: str | None = None,
        config: Mapping[str, Any] | None = None,
        validation: Mapping[str, Any] | None = None,
        limit: int | None = None,
        success_reward: float = 1.0,
        reward: str | None = None,
        expert: str | None = None,
        is_parallel: bool = False,
        metrics: Sequence[str] = (),
    ):
        """Starts the program, which finds the tasks.

        Args:
          split: one of `SPLITS`.
          taskset: id of a taskset that verifiers can import: the name of a package or
            file, or of one of its own.
          python: that has verifiers; None: the running one.
          config: of the environment, as in the section `env` of verifiers: "taskset",
            "agent" or other roles, "id" of an environment that plays the taskset.
          validation: what its section `taskset` has in validation besides; training
            and validation then play all tasks of their own. None: one different task
            in ten is held out.
          limit: tasks that are read; None: all.
          success_reward: from this reward on an episode is a success.
          reward, expert, is_parallel: see `AgentGame`.
          metrics: names of metrics, or of rewards before their weight.

        Raises:
          ValueError: an option is wrong, or verifiers is missing or refuses it.
        """
        python = _find_python() if python is None else python
        if not isinstance(python, str):
            raise ValueError(f"python is {python!r}; use the path of a Python, or None")
        check_number("success_reward", success_reward)
        if limit is not None:
            check_whole("limit", limit)
        for name, given in (("config", config), ("validation", validation)):
            if not isinstance(given, Mapping | None):
                raise ValueError(f"{name} is {given!r}; use a mapping, or None")
        super().__init__(
            split,
            function=COMMAND,
            command=(sys.executable,),
            reward=reward,
            expert=expert,
            is_parallel=is_parallel,
            metrics=metrics,
        )
        self._name = taskset.rpartition("/")[2].partition("@")[0]
        self.instruction = f"A task of verifiers: {self._name}."
        self._success_reward = success_reward
        self._document = {
            "env": _environment(taskset, config or {}, validation or {}, split),
            "split": split if validation is None else None,
            "limit": limit,
            "metrics": list(metrics),
        }
        self._python = python
        self._program = _start(self._python, self._document)
        self.num_tasks = self._program.num_tasks
        self._start, self._port = self._begin, 0

    def reset(self, seed: int, task: int | None = None) -> Observation:
        if self._program.why is not None:
            self._program = _start(self._python, self._document)
        return super().reset(seed, task)

    def _listen(self, episode: Episode) -> ApiServer:
        # verifiers keeps a client for each address, a megabyte of memory, to its end.
        # So the next episode has the same one, if nobody else has taken it meanwhile.
        try:
            server = ApiServer(episode.ask, model=MODEL, port=self._port)
        except OSError:
            server = ApiServer(episode.ask, model=MODEL)
        self._port = urllib.parse.urlsplit(server.url).port
        return server

    def close(self) -> None:
        super().close()
        self._program.leave()

    def _begin(
        self, task: Task, client: ClientSettings, when_ended: Callable[[Ended], None]
    ) -> "_Run":
        def end(ended: Ended) -> None:
            if ended.error is None:
                result = ended.returned
                # Weights such as 0.7 + 0.2 + 0.1 add up to a little less than 1.
                short_by = self._success_reward - result["reward"]
                result["success"] = short_by <= _ROUNDING
                ended = Ended(json.dumps(result))
            when_ended(ended)

        return _Run(self._program, task, client, end)


class _Run:
    """An episode of a program."""

    def __init__(
        self,
        program: "_Program",
        task: Task,
        client: ClientSettings,
        when_ended: Callable[[Ended], None],
    ):
        self._program, self._has_ended = program, threading.Event()

        def end(ended: Ended) -> None:
            when_ended(ended)
            self._has_ended.set()

        asked = {
            "task": {"seed": task.seed, "number": task.number},
            "client": vars(client),
        }
        self._number = program.ask(asked, end)

    def end(self, seconds: float) -> bool:
        """Have it cancelled; whether it has ended."""
        if not self._has_ended.is_set():
            self._program.cancel(self._number)
        return self._has_ended.wait(seconds)


class _Program:
    """A process that plays episodes, for the games of this process.

    Attributes:
      num_tasks: that it plays.
      why: it has ended; None while it runs.
      num_games: that use it.
    """

    def __init__(self, python: str, document: Mapping[str, Any]):
        words = [python, "-P", str(PROGRAM), json.dumps(document)]
        try:
            self._child = Child(words, env=os.environ | {"PYTHONPATH": _own_folders()})
        except OSError as error:
            raise ValueError(f"python is {python!r}: {error}; {_CURE}") from error
        self.why: str | None = None
        self.num_games = 0
        try:
            said = parse_json(self._child.read_line(math.inf, MAX_LINE))
        except EOFError:
            status = self._child.process.wait()
            self._child.kill()
            raise ValueError(
                f"python is {python!r}, which cannot play environments of verifiers: "
                f"it ended with status {status}, and printed why; {_CURE}"
            ) from None
        if "refused" in said:
            self._child.kill()
            raise ValueError(f"verifiers refuses the environment: {said['refused']}")
        self.num_tasks: int = said["num_tasks"]
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[Ended], None]] = {}
        self._last_number = 0
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, request: dict[str, Any], when_ended: Callable[[Ended], None]) -> int:
        """Begin an episode; its number."""
        with self._lock:
            self._last_number += 1
            number = self._last_number
            self._waiting[number] = when_ended
            if self.why is None:
                self._write({"number": number, **request})
        if self.why is not None:
            self._end_all()
        return number

    def cancel(self, number: int) -> None:
        with self._lock:
            if self.why is None:
                self._write({"number": number})

    def leave(self) -> None:
        """A game needs it no more; without games it ends."""
        self.num_games -= 1
        if self.num_games == 0:
            self._child.process.kill()

    def _write(self, request: dict[str, Any]) -> None:
        try:
            self._child.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            """The thread that reads says why."""

    def _read(self) -> None:
        """Hand on results until the process ends."""
        try:
            while True:
                answer = parse_json(self._child.read_line(math.inf, MAX_LINE))
                with self._lock:
                    when_ended = self._waiting.pop(answer["number"])
                if "error" in answer:
                    when_ended(Ended(error=BrokenContract(answer["error"])))
                else:
                    when_ended(Ended(answer["result"]))
        except EOFError:
            why = f"ended with status {self._child.process.wait()}"
        except ValueError as error:
            why = f"gave an answer that cannot be read: {error}"
        with self._lock:
            self.why = f"the program of verifiers {why}"
            self._child.kill()
        self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for when_ended in waiting.values():
            when_ended(Ended(error=BrokenContract(self.why)))


# Those of this process, by what they play.
_PROGRAMS: dict[str, _Program] = {}
_CURE = (
    f"make an environment: `python3.12 -m venv FOLDER`, `FOLDER/bin/pip install "
    f"verifiers=={VERSION}`, and set env.kwargs.python=FOLDER/bin/python"
)


def _start(python: str, document: Mapping[str, Any]) -> _Program:
    """The program that plays, started if it does not run."""
    key = json.dumps([python, document])
    program = _PROGRAMS.get(key)
    if program is None or program.why is not None or program.num_games == 0:
        program = _PROGRAMS[key] = _Program(python, document)
    program.num_games += 1
    return program


def _find_python() -> str:
    if importlib.util.find_spec("verifiers") is None:
        raise ValueError(
            f"python is None, and {sys.executable} has no verifiers; {_CURE}"
        )
    return sys.executable


def _environment(
    taskset: str,
    config: Mapping[str, Any],
    validation: Mapping[str, Any],
    split: str,
) -> dict[str, Any]:
    """The environment's configuration in a split."""
    mine = dict(config.get("taskset", {})) | {"id": taskset}
    if split == VALIDATION:
        mine |= validation
    return dict(config) | {"taskset": mine}


def _own_folders() -> str:
    """Where users' files are imported from, for another Python: not our packages."""
    standard = pathlib.Path(sysconfig.get_path("stdlib"))
    folders = []
    for folder in map(pathlib.Path, map(os.path.abspath, sys.path)):
        is_installed = {"site-packages", "dist-packages"} & set(folder.parts)
        is_standard = standard in (folder, *folder.parents)
        if folder.is_dir() and not is_installed and not is_standard:
            folders.append(str(folder))
    return os.pathsep.join(folders)
