"""Programs of users that play an episode: a function, or a command.

In: a task and the address of a model. Out: what the program came to. A program runs in
a thread, or as a process, of its own; it knows nothing of whom it calls.
"""

import asyncio
import contextlib
import dataclasses
import inspect
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ragen_jax.host_games.base import BrokenContract

# Last bytes of a command's output that are kept.
MAX_OUTPUT = 1_000_000


@dataclasses.dataclass(frozen=True)
class Task:
    """What an episode is about.

    Attributes:
      seed: of everything that is drawn, from 0 to 2**31 - 1.
      number: of the problem, from 0 on; None: the seed chooses it.
      split: "training" or "validation".
      options: `env.kwargs.options` of the configuration.
    """

    seed: int
    number: int | None
    split: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ClientSettings:
    """How a program reaches the model: arguments of any OpenAI client.

    Attributes:
      base_url: of the API, ending in "/v1".
      api_key: any text, which clients insist on.
      model: its name.
    """

    base_url: str
    api_key: str
    model: str


@dataclasses.dataclass(frozen=True)
class Result:
    """What an episode came to; a function may return the reward alone.

    Attributes:
      reward: of the episode.
      success: the goal was reached; None: the reward is above 0.
      valid: the model's last reply could be used.
      metrics: further numbers, by the names that the option `metrics` lists.
    """

    reward: float
    success: bool | None = None
    valid: bool = True
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
      returned: by the function; the output of a command.
      error: that it raised; None if it returned.
    """

    returned: Any = None
    error: BaseException | None = None


class Run(Protocol):
    """A program that plays an episode."""

    def end(self, seconds: float) -> bool:
        """Wait for its end, at most so long; whether it came."""


class FunctionRun:
    """A function that plays an episode, in a thread: nobody can end it from outside."""

    def __init__(
        self,
        function: Callable[[Task, ClientSettings], Any],
        task: Task,
        client: ClientSettings,
        when_ended: Callable[[Ended], None],
    ):
        def run() -> None:
            try:
                returned = function(task, client)
                if inspect.isawaitable(returned):
                    returned = asyncio.run(_wait(returned))
                ended = Ended(returned)
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                # Whatever a program of the user raises is how its episode ended.
                ended = Ended(error=error)
            when_ended(ended)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


async def _wait(returned: Any) -> Any:
    return await returned


class CommandRun:
    """A command that plays an episode, as a process with what it starts."""

    def __init__(
        self,
        command: Sequence[str],
        task: Task,
        client: ClientSettings,
        when_ended: Callable[[Ended], None],
    ):
        env = {
            "OPENAI_BASE_URL": client.base_url,
            "OPENAI_API_KEY": client.api_key,
            "OPENAI_MODEL": client.model,
            "AGENT_TASK": json.dumps(dataclasses.asdict(task)),
        }
        try:
            self._process = subprocess.Popen(
                command,
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise ValueError(f"command is {command!r}: {error}") from error

        def run() -> None:
            # All is read, so that the process can write on; its last line counts.
            output = b""
            while part := self._process.stdout.read(MAX_OUTPUT):
                output = (output + part)[-MAX_OUTPUT:]
            status = self._process.wait()
            error = None
            if status:
                error = BrokenContract(f"{command[0]} ended with status {status}")
            when_ended(Ended(output.decode("utf-8", "replace"), error))

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self, seconds: float) -> bool:
        """Kill the process; whether it has ended."""
        self._kill()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
