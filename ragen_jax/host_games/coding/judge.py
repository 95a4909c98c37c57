"""Runs programs apart from their judge, and compares what they print.

In: code, input and limits. Out: an `Outcome`, which is data: what was printed, never a
verdict. Expected outputs stay in this process. Does not know about tasks and rewards.
Sources: the isolation is `runner`'s; the service is SandboxFusion's `POST
/run_code` (github.com/bytedance/SandboxFusion).
"""

import dataclasses
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import time

from ragen_jax.host_games.base import MissingRequirement
from ragen_jax.host_games.coding import runner as code_runner
from ragen_jax.host_games.coding.runner import ANSWER_HEAD, REQUEST_HEAD
from ragen_jax.host_games.common import child
from ragen_jax.host_games.common.http import check_url, post_json

ISOLATIONS = ("namespaces", "limits")
RUNNER = pathlib.Path(code_runner.__file__)
# For starting the runner, and beyond a program's deadline until it is judged hung.
START_SECONDS, GRACE_SECONDS = 60.0, 30.0
# Needs a module that the runner has not loaded, a thread, and a file.
PROBE = """
import colorsys, threading
thread = threading.Thread(target=print, args=(colorsys.__name__ + input(),))
thread.start()
thread.join()
with open("file", "w") as file:
    file.write("x")
"""
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-6, 1e-9
DECIMAL = re.compile(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
NAMESPACES = (
    "Programs run in separate processes with namespaces for processes, files and "
    "network: they see Python's standard library, read-only, and a scratch folder of "
    "32 MB that is dropped, no other process and no network; processes, memory, time "
    "and output are limited. The kernel is shared with them."
)
LIMITS = (
    "NO SANDBOX: programs run in separate processes with limits on processes, "
    "memory, time, file size and output alone. They can use the network and read{who}. "
    "Namespaces are not possible here: {reason}"
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
      printed: to standard output.
      ok: it ended by itself, in time, with exit status 0.
      timed_out: it was stopped at its deadline.
    """

    printed: str
    ok: bool
    timed_out: bool


class LocalSandbox:
    """Runs programs in processes on this machine, one after the other.

    The runner dies with the thread that started it; the next call starts another.

    Attributes:
      isolation: "namespaces" or "limits".
    """

    def __init__(self, isolation: str | None, memory_mb: int):
        """
        Args:
          isolation: what is needed; None: namespaces if they can be had, else limits.
          memory_mb: of address space per process.

        Raises:
          MissingRequirement: programs cannot be run here with what is needed.
        """
        if sys.platform != "linux":
            raise MissingRequirement(
                f"programs are judged on Linux, this is {sys.platform}; set "
                "sandbox_url to the address of a SandboxFusion server."
            )
        self._memory_mb = memory_mb
        self._child: child.Child | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="ragen-jax-code-")
        reasons = {}
        for candidate in ISOLATIONS if isolation is None else (isolation,):
            reasons[candidate] = self._try(candidate)
            if reasons[candidate] is None:
                self.isolation = candidate
                self._reason = reasons.get("namespaces")
                return
        self.close()
        raise MissingRequirement(
            f"isolation={isolation} is not possible here: {reasons}; allow namespaces "
            "(or, as the superuser, run as another user), or set sandbox_url."
        )

    def describe(self) -> str:
        if self.isolation == "namespaces":
            return NAMESPACES
        who = " what everybody can read" if os.geteuid() == 0 else " this user's files"
        return LIMITS.format(who=who, reason=self._reason or "they were not asked for.")

    def run(self, code: str, given: str, seconds: float) -> Outcome:
        """Run a program to its end; a second time if the runner was lost.

        Args:
          code: Python.
          given: its standard input.
          seconds: until it is killed.

        Raises:
          ChildProcessError: it was lost twice in namespaces, where no program can reach
            it, so that the program has not failed.
          OSError: no process could be started.
        """
        for _ in range(2):
            outcome = self._ask(code, given, seconds)
            if outcome is not None:
                return outcome
            self._kill()
        if self.isolation == "namespaces":
            raise ChildProcessError(
                "the process that runs programs ended or hung twice; is memory full?"
            )
        return Outcome("", ok=False, timed_out=False)

    def _ask(self, code: str, given: str, seconds: float) -> Outcome | None:
        """Have the runner run a program; None if it ended or hung."""
        if self._child is None or self._child.process.poll() is not None:
            self._start(self.isolation)
        request = {"code": code, "stdin": given, "seconds": seconds}
        body = json.dumps(request | {"memory_mb": self._memory_mb}).encode()
        deadline = time.monotonic() + seconds + GRACE_SECONDS
        try:
            self._child.write(REQUEST_HEAD.pack(len(body)) + body)
            head = self._child.read(ANSWER_HEAD.size, deadline)
            status, exit_status, size = ANSWER_HEAD.unpack(head)
            if size > code_runner.MAX_OUTPUT_BYTES:
                return None
            printed = self._child.read(size, deadline)
        except (BrokenPipeError, EOFError, TimeoutError):
            return None
        if status == code_runner.NO_PROCESS:
            raise OSError("no process could be started for a program")
        return Outcome(
            printed.decode(errors="replace"),
            ok=status == code_runner.ENDED and exit_status == 0,
            timed_out=status == code_runner.DEADLINE,
        )

    def close(self) -> None:
        """Kill what runs and remove the folder."""
        self._kill()
        self._folder.cleanup()

    def _try(self, isolation: str) -> str | None:
        """Start with this isolation and run a program; the reason if that fails."""
        self.isolation = isolation
        try:
            self._start(isolation)
        except ChildProcessError as error:
            return str(error)
        outcome = self._ask(PROBE, "1\n", START_SECONDS)
        if outcome is not None and outcome.ok and outcome.printed == "colorsys1\n":
            return None
        self._kill()
        return "a program could not start a thread, import or write there"

    def _start(self, isolation: str) -> None:
        self._kill()
        # As -I, which would take the seed of hashes, too: sets are to be in the same
        # order in every process. One arena, since each reserves address space.
        options = ["-P", "-s", "-S"]
        arguments = [isolation, self._folder.name, str(os.getpid())]
        with tempfile.TemporaryFile() as errors:
            self._child = child.Child(
                [sys.executable, *options, str(RUNNER), *arguments],
                stderr=errors,
                env={"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"},
                cwd="/",
            )
            try:
                ready = self._child.read(6, time.monotonic() + START_SECONDS)
            except (EOFError, TimeoutError):
                ready = b""
            if ready == b"ready\n":
                return
            self._kill()
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        raise ChildProcessError(lines[-1] if lines else "the runner did not start")

    def _kill(self) -> None:
        """End the runner: those it started die with it."""
        if self._child is not None:
            self._child.kill()
            self._child = None


class FusionSandbox:
    """Runs programs on a SandboxFusion server, by `POST /run_code`."""

    def __init__(self, url: str, memory_mb: int):
        """
        Args:
          url: of the server, without the path.
          memory_mb: that the server is asked to grant.

        Raises:
          ValueError: not the address of a server.
        """
        check_url("sandbox_url", url)
        self._url, self._memory_mb = url.rstrip("/"), memory_mb

    def describe(self) -> str:
        return f"Programs run on the SandboxFusion server {self._url}, isolated there."

    def run(self, code: str, given: str, seconds: float) -> Outcome:
        """As `LocalSandbox.run`; a second time after an error of the server's own.

        Raises:
          ConnectionError: the server does not answer, or something else, or says twice
            that it failed itself, so that the program has not.
        """
        body = {
            "code": code,
            "language": "python",
            "stdin": given,
            "compile_timeout": seconds,
            "run_timeout": seconds,
            "memory_limit_MB": self._memory_mb,
            "files": {},
        }
        url = f"{self._url}/run_code"
        try:
            for _ in range(2):
                answer = post_json(url, body, timeout_seconds=seconds + GRACE_SECONDS)
                if answer["status"] != "SandboxError":
                    break
            else:
                # It quotes the program; what went wrong is said at the end.
                message = str(answer.get("message"))[-200:]
                raise ConnectionError(
                    f"{url} answered twice with an error of its own (SandboxError: "
                    f"{message!r}); see the server's log"
                )
            # A limit that was hit has no result, or one without a status.
            result = answer["run_result"] or {}
            finished = result.get("status") == "Finished"
            return Outcome(
                result.get("stdout") or "",
                ok=answer["status"] == "Success"
                and finished
                and result["return_code"] == 0,
                timed_out=result.get("status") == "TimeLimitExceeded",
            )
        except (LookupError, TypeError, AttributeError) as error:
            raise ConnectionError(
                f"{url} does not answer as a SandboxFusion server "
                f"({type(error).__name__}: {error}); check sandbox_url"
            ) from error

    def close(self) -> None:
        """There is nothing to release."""


def texts_agree(expected: str, printed: str) -> bool:
    """True for the same words in the same lines.

    Blank lines at the ends do not count, nor how many blanks part words; a decimal
    number that is expected may differ by a millionth of it.
    """
    pairs = [text.strip().splitlines() for text in (expected, printed)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    return all(
        len(ours := line.split()) == len(theirs := other.split())
        and all(map(_words_agree, ours, theirs))
        for line, other in zip(*pairs, strict=True)
    )


def _words_agree(expected: str, word: str) -> bool:
    if expected == word:
        return True
    if not DECIMAL.fullmatch(expected) or not NUMBER.fullmatch(word):
        return False
    return _close(float(expected), float(word))


def values_agree(expected: object, value: object) -> bool:
    """True for equal JSON values; truth values are not numbers.

    Where either number is not whole, they may differ by a millionth.
    """
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, int | float) and isinstance(value, int | float):
        if isinstance(expected, int) and isinstance(value, int):
            return expected == value
        return _close(expected, value)
    if isinstance(expected, list) and isinstance(value, list):
        return len(expected) == len(value) and all(map(values_agree, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(
            values_agree(expected[key], value[key]) for key in expected
        )
    return type(expected) is type(value) and expected == value


def _close(expected: float, value: float) -> bool:
    try:
        return math.isclose(
            expected, value, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE
        )
    except OverflowError:  # A whole number that no float can hold.
        return False
