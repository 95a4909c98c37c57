"""Signs of life of the processes of a run, and what they say when one is gone or hangs.

In: where this process stands. Out: `processes/<number>.json` in the run folder, written
anew every second, and an end of this process, with a sentence, when another one is gone
or nothing moves any more: a collective operation would wait forever. Files, since the
folder is shared by all hosts anyway and tells what happened afterwards, too.
"""

import dataclasses
import faulthandler
import json
import os
import pathlib
import re
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence

import jax

from ragen_jax.multihost import exchange

FOLDER = "processes"
# Exit status after another process is gone or hangs: the same command resumes.
EXIT_STATUS = 3
RUNNING, FINISHED, FAILED, CUT_OFF = "running", "finished", "failed", "cut off"


@dataclasses.dataclass(frozen=True)
class Heartbeat:
    """The last sign of life of a process.

    Attributes:
      attempt: the same for all processes of one start of the run.
      number: of the process, from 0.
      host, pid: where it runs.
      place: what it does, in words.
      since: seconds it has been there.
      state: RUNNING; FINISHED; FAILED of its own; CUT_OFF by another's end.
      reason: sentence of a failure.
      status: exit status of a failure.
      count: beats so far.
      address: where the processes of this start meet; "" for one alone.
    """

    attempt: str
    number: int
    host: str
    pid: int
    place: str
    since: float = 0.0
    state: str = RUNNING
    reason: str = ""
    status: int = EXIT_STATUS
    count: int = 0
    address: str = ""

    def describe(self) -> str:
        """Who it is and where it stands."""
        who = f"process {self.number} ({self.host}, pid {self.pid})"
        return f"{who}: {self.place}, for {self.since:.0f} s"


def write_heartbeat(workdir: pathlib.Path, beat: Heartbeat) -> None:
    """Write a beat in place of the last one."""
    folder = workdir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{beat.number}.tmp"
    temporary.write_text(json.dumps(dataclasses.asdict(beat)), encoding="utf-8")
    os.replace(temporary, folder / f"{beat.number}.json")


def read_heartbeat(workdir: pathlib.Path, number: int) -> Heartbeat | None:
    """The last beat of a process; None without a file of one.

    A file system of many hosts may fail for a moment while a file is replaced.
    """
    path = workdir / FOLDER / f"{number}.json"
    try:
        return Heartbeat(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


BEAT_SECONDS = 1.0
# Without a new beat for so long a process is gone. Others end well within a minute.
LOST_SECONDS = 20.0
# Variable with the process number of the parent, which may be gone already.
PARENT = "RAGEN_JAX_PARENT"
RESUME = "nothing saved is lost; the same commands on all hosts resume"

# How messages of JAX's runtime begin: with a status such as UNKNOWN or UNAVAILABLE.
_OF_RUNTIME = re.compile(r"[A-Z_]{4,}: ")


class Watch:
    """Writes this process's beats and reads the others'. Use it as a context manager.

    A thread of its own: it also ends the process while the main thread waits inside a
    collective operation that will never return.

    Args:
      workdir: the run folder; made if there are several processes.
      number, total: of this process, and of all.
      attempt, address: see `Beat`.
      stall_seconds: after which a process that stands still has hung; None: never.
      is_arriving: not all processes are known to be there. One that was seen to beat
        and stops is gone; one that was not seen may still come.
      end: ends the process with a status.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        *,
        number: int = 0,
        total: int = 1,
        attempt: str = "",
        address: str = "",
        stall_seconds: float | None = None,
        is_arriving: bool = False,
        end: Callable[[int], None] = os._exit,
    ):
        self._workdir, self._total, self._end = workdir, total, end
        here = (socket.gethostname(), os.getpid())
        self._beat = Heartbeat(attempt, number, *here, "start", address=address)
        self._moved_at = time.monotonic()
        self._stall_seconds, self._is_arriving = stall_seconds, is_arriving
        self._parent = int(os.environ.get(PARENT, os.getppid()))
        # Number of another process -> its last beat, and when it came.
        self._seen: dict[int, tuple[Heartbeat, float]] = {}
        # Those that have beaten since this watch began.
        self._alive: set[int] = set()
        # The first sees all, the others see the first: n files are read, not n^2.
        others = range(1, total) if number == 0 else [0]
        self._others: Sequence[int] = others if total > 1 else ()
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> str:
        """See `Beat`."""
        return self._beat.address

    def at(self, place: str) -> None:
        """Say what this process does from now on."""
        with self._lock:
            self._beat = dataclasses.replace(self._beat, place=place)
            self._moved_at = time.monotonic()

    def __enter__(self) -> "Watch":
        now = time.monotonic()
        for other in self._others:
            beat = read_heartbeat(self._workdir, other) if self._is_arriving else None
            self._seen[other] = (beat or self._unheard(other), now)
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind, error, _) -> None:
        is_sentence = isinstance(error, ValueError | OSError)
        # JAX's runtime may raise these, too, for a connection that is gone.
        is_sentence = is_sentence and not _OF_RUNTIME.match(str(error))
        if self._others and isinstance(error, Exception) and not is_sentence:
            # Often the loss of another process, which shows after `LOST_SECONDS`.
            self._note(CUT_OFF, str(error))
            self._is_over.wait(LOST_SECONDS + 5 * BEAT_SECONDS)
        self.stop()
        if error is None:
            self._note(FINISHED)
            self._write()
            return
        is_stop = isinstance(error, KeyboardInterrupt)
        status = 2 if is_sentence else 130 if is_stop else 1
        reason = str(error) if is_sentence else f"{kind.__name__}: {error}"
        self._note(FAILED, reason, status)
        self._write()
        if not self._others:
            return
        # An orderly end would wait for the others, which wait for this process.
        if is_sentence and not os.environ.get("RAGEN_JAX_TRACEBACK"):
            print(f"error: {error}", file=sys.stderr, flush=True)
        elif is_stop:
            print("stopped", file=sys.stderr, flush=True)
        else:
            traceback.print_exception(error)
        if is_sentence and self._beat.number == 0:
            # With it ends JAX's coordinator: others may be about to say the same.
            time.sleep(3 * BEAT_SECONDS)
        self._end(status)

    def stop(self) -> None:
        """Watch and beat no more."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(BEAT_SECONDS):
            self._write()
            if self._others and os.getppid() != self._parent:
                self._leave(FAILED, "the process that started this one was killed")
            if loss := self._find_loss():
                reason, status = loss
                self._leave(CUT_OFF, f"{reason}; this process ends, too", status)
            if self._find_stall():
                self._say_stall()

    def _write(self) -> None:
        if not self._others:
            return
        with self._lock:
            since = time.monotonic() - self._moved_at
            count = self._beat.count + 1
            self._beat = dataclasses.replace(self._beat, since=since, count=count)
            beat = self._beat
        try:
            write_heartbeat(self._workdir, beat)
        except OSError as error:
            # The others will take this process for lost: its log has to say why.
            print(f"warning: no sign of life written: {error}", file=sys.stderr)

    def _note(self, state: str, reason: str = "", status: int = EXIT_STATUS) -> None:
        with self._lock:
            self._beat = dataclasses.replace(
                self._beat, state=state, reason=reason, status=status
            )

    def _unheard(self, number: int) -> Heartbeat:
        place = "not heard of in this --workdir, which all processes have to share"
        return Heartbeat(self._beat.attempt, number, "unknown host", 0, place)

    def _find_loss(self) -> tuple[str, int] | None:
        """What happened to another process, and the status; None if all are well."""
        now = time.monotonic()
        for number, (before, heard_at) in self._seen.items():
            beat = read_heartbeat(self._workdir, number)
            is_new = beat is not None and beat != before
            if is_new and (self._is_arriving or beat.attempt == self._beat.attempt):
                self._seen[number] = before, heard_at = beat, now
                self._alive.add(number)
            if number in self._alive and before.state == FAILED:
                return _describe_failure(before), before.status
            if number in self._alive and before.state == FINISHED:
                continue
            is_expected = number in self._alive or not self._is_arriving
            if is_expected and now - heard_at > LOST_SECONDS:
                return describe_loss(before, now - heard_at), EXIT_STATUS
        return None

    def _find_stall(self) -> bool:
        with self._lock:
            since = time.monotonic() - self._moved_at
        return self._stall_seconds is not None and since > self._stall_seconds

    def _say_stall(self) -> None:
        with self._lock:
            mine = self._beat
        since = time.monotonic() - self._moved_at
        beats = {mine.number: dataclasses.replace(mine, since=since)}
        for number in range(self._total):
            if number not in beats and (beat := read_heartbeat(self._workdir, number)):
                beats[number] = beat
        lines = "\n".join(f"  {beats[n].describe()}" for n in sorted(beats))
        faulthandler.dump_traceback(all_threads=True)
        self._leave(
            CUT_OFF,
            f"nothing has moved for train.stall_seconds = {self._stall_seconds:g} "
            f"seconds; the processes stand here:\n{lines}\nthe stacks of process "
            f"{mine.number} are above; raise the key if a stage may take longer",
        )

    def _leave(self, state: str, sentence: str, status: int = EXIT_STATUS) -> None:
        self._note(state, sentence, status)
        self._write()
        advice = f"; {RESUME}" if status == EXIT_STATUS else ""
        print(f"error: {sentence}{advice}", file=sys.stderr, flush=True)
        self._end(status)


# The watch of a process that has arrived, until that of its run takes over.
_ARRIVAL: list[Watch] = []


def announce(workdir: pathlib.Path, number: int, total: int, address: str) -> Watch:
    """Begin the watch of a process that waits for the others.

    Raises:
      ValueError: another start of the run is at work.
    """
    refuse_another_start(workdir, number, address)
    watch = Watch(
        workdir, number=number, total=total, address=address, is_arriving=True
    )
    _ARRIVAL.append(watch.__enter__())
    return watch


def refuse_another_start(
    workdir: pathlib.Path,
    number: int,
    address: str,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Refuse a start beside another one, whose signs of life it would overwrite.

    Where files tell of processes that may be at work still, this takes seconds.

    Raises:
      ValueError: processes that meet elsewhere, or one with this number, are alive.
    """

    def others() -> dict[int, Heartbeat]:
        numbers = (int(p.stem) for p in (workdir / FOLDER).glob("*.json"))
        beats = filter(None, (read_heartbeat(workdir, n) for n in numbers))
        return {
            beat.number: beat
            for beat in beats
            if beat.state == RUNNING
            and (beat.address != address or beat.number == number)
        }

    if not (before := others()):
        return
    wait(3 * BEAT_SECONDS)
    for beat in others().values():
        if beat != before.get(beat.number):
            raise ValueError(
                f"another start of this run is at work in {workdir}: "
                f"{beat.describe()}; stop it, or use another --workdir; each process "
                "of a start has its own number"
            )


def watch_processes(workdir: pathlib.Path, stall_seconds: float | None) -> Watch:
    """The watch of this process; all processes together.

    Raises:
      ValueError: processes have different numbers of devices.
    """
    exchange.check_devices()
    attempt, address = exchange.gather(uuid.uuid4().hex)[0], ""
    while _ARRIVAL:
        arrival = _ARRIVAL.pop()
        arrival.stop()
        address = arrival.address
    return Watch(
        workdir,
        number=jax.process_index(),
        total=jax.process_count(),
        attempt=attempt,
        address=address,
        stall_seconds=stall_seconds,
    )


def describe_loss(beat: Heartbeat, seconds: float) -> str:
    """Sentence about a process that is gone."""
    return (
        f"{_who(beat)} has given no sign of life for {seconds:.0f} s; it last stood "
        f"at: {beat.place}"
    )


def find_lost(
    workdir: pathlib.Path, number: int, wait: Callable[[float], None] = time.sleep
) -> list[str]:
    """Sentences about the processes of this start that failed or are gone.

    The latter takes seconds.

    Args:
      workdir: the run folder.
      number: of this process, which has a beat there.
      wait: sleeps.
    """
    mine = read_heartbeat(workdir, number)
    if mine is None:
        return []
    before, seconds = _others(workdir, mine), 5 * BEAT_SECONDS
    wait(seconds)
    now = _others(workdir, mine)
    failed = [beat for beat in now.values() if beat.state == FAILED]
    gone = [
        beat
        for number, beat in now.items()
        if beat.state == RUNNING and beat == before.get(number)
    ]
    return [
        *map(_describe_failure, failed),
        *(describe_loss(beat, seconds) for beat in gone),
    ]


def _describe_failure(beat: Heartbeat) -> str:
    return f"{_who(beat)} failed: {beat.reason or beat.place}"


def _others(workdir: pathlib.Path, mine: Heartbeat) -> Mapping[int, Heartbeat]:
    """Beats of the other processes of this start."""
    numbers = (int(p.stem) for p in (workdir / FOLDER).glob("*.json"))
    beats = (read_heartbeat(workdir, number) for number in numbers)
    return {
        beat.number: beat
        for beat in beats
        if beat is not None
        and beat.attempt == mine.attempt
        and beat.number != mine.number
    }


def _who(beat: Heartbeat) -> str:
    return f"process {beat.number} ({beat.host}, pid {beat.pid})"
