"""Heartbeats of the processes of a run, and messages when one is lost or hangs.

In: the stage of this process. Out: `processes/<number>.json` in the run folder, written
every second; and the end of this process, with a message, when another one is lost or
nothing moves any more, since a collective operation would wait forever. JAX's
coordination service has heartbeats, too, but it ends a process without naming the lost
one and its stage. Files are enough, because all hosts share the folder, and they show
afterwards what happened.
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
from collections.abc import Callable, Sequence

FOLDER = "processes"
# Exit status after another process is lost or hangs: the same command resumes.
EXIT_STATUS = 3
RUNNING, FINISHED, FAILED, CUT_OFF = "running", "finished", "failed", "cut off"
BEAT_SECONDS = 1.0
# A process without a heartbeat for this long is lost. Orderly ends are much faster.
LOST_SECONDS = 20.0
# Variable with the process number of the parent, which may have ended already.
PARENT = "RAGEN_JAX_PARENT"
RESUME = "nothing saved is lost; the same commands on all hosts resume"
# How messages of JAX's runtime begin: with a status such as UNKNOWN or UNAVAILABLE.
_OF_RUNTIME = re.compile(r"[A-Z_]{4,}: ")


@dataclasses.dataclass(frozen=True)
class Heartbeat:
    """The latest heartbeat of a process.

    Attributes:
      attempt: the same for all processes of one start of the run.
      number: of the process, from 0.
      host, pid: where it runs.
      place: what it does, in words.
      since: seconds it has been there.
      state: RUNNING; FINISHED; FAILED by itself; CUT_OFF because another one ended.
      reason: sentence of a failure.
      status: exit status of a failure.
      count: heartbeats so far.
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

    @property
    def process(self) -> str:
        """The process by number, host and pid."""
        return f"process {self.number} ({self.host}, pid {self.pid})"

    def describe(self) -> str:
        """The process and its stage."""
        return f"{self.process}: {self.place}, for {self.since:.0f} s"

    def describe_failure(self) -> str:
        """Sentence about a process that failed by itself."""
        return f"{self.process} failed: {self.reason or self.place}"

    def describe_loss(self, seconds: float) -> str:
        """Sentence about a process without a heartbeat for some seconds."""
        return (
            f"{self.process} has not reported for {seconds:.0f} s; its last "
            f"stage: {self.place}"
        )


def write_heartbeat(workdir: pathlib.Path, beat: Heartbeat) -> None:
    """Replace the file of a process; a warning if it cannot be written.

    The others will consider this process lost: its log has to say why.
    """
    folder = workdir / FOLDER
    temporary = folder / f".{beat.number}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(dataclasses.asdict(beat)), encoding="utf-8")
        os.replace(temporary, folder / f"{beat.number}.json")
    except OSError as error:
        print(f"warning: no heartbeat written: {error}", file=sys.stderr)


def read_heartbeat(workdir: pathlib.Path, number: int) -> Heartbeat | None:
    """The latest heartbeat of a process; None if there is no readable file.

    A file system of many hosts may fail for a moment while a file is replaced.
    """
    path = workdir / FOLDER / f"{number}.json"
    try:
        return Heartbeat(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _read_all(workdir: pathlib.Path) -> list[Heartbeat]:
    numbers = sorted(int(p.stem) for p in (workdir / FOLDER).glob("*.json"))
    return list(filter(None, (read_heartbeat(workdir, n) for n in numbers)))


class Watch:
    """Writes this process's heartbeats and reads the others'. Use it as a context.

    It runs on another thread, so that it can end the process while the main thread
    waits inside a collective operation that will never return.

    Args:
      workdir: the run folder; made if there are several processes.
      number, total: of this process, and of all.
      attempt, address: see `Heartbeat`.
      stall_seconds: a process that stands still for longer has hung; None: never.
      is_starting: some processes have not sent a heartbeat yet. A process that stopped
        beating is lost; one never seen may still be starting.
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
        is_starting: bool = False,
        end: Callable[[int], None] = os._exit,
    ):
        self._workdir, self._total, self._end = workdir, total, end
        here = (socket.gethostname(), os.getpid())
        self._beat = Heartbeat(attempt, number, *here, "start", address=address)
        self._moved_at = time.monotonic()
        self._stall_seconds, self._is_starting = stall_seconds, is_starting
        self._parent = int(os.environ.get(PARENT, os.getppid()))
        # Number of another process -> its latest heartbeat, and when that was read.
        self._latest: dict[int, tuple[Heartbeat, float]] = {}
        # Processes with a heartbeat since this watch began.
        self._alive: set[int] = set()
        # The first reads all, the others read the first: n files in all, not n^2.
        others = range(1, total) if number == 0 else [0]
        self._others: Sequence[int] = others if total > 1 else ()
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> str:
        """See `Heartbeat`."""
        return self._beat.address

    def at(self, place: str) -> None:
        """Set what this process does from now on, in words."""
        with self._lock:
            self._beat = dataclasses.replace(self._beat, place=place)
            self._moved_at = time.monotonic()

    def __enter__(self) -> "Watch":
        now = time.monotonic()
        for other in self._others:
            # A file of an earlier start must not count as a heartbeat of this one.
            beat = read_heartbeat(self._workdir, other) if self._is_starting else None
            self._latest[other] = (beat or self._never_seen(other), now)
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind, error, _) -> None:
        is_sentence = isinstance(error, ValueError | OSError)
        # JAX's runtime may raise these, too, for a connection that is gone.
        is_sentence = is_sentence and not _OF_RUNTIME.match(str(error))
        if self._others and isinstance(error, Exception) and not is_sentence:
            # Often another process was lost, which shows after `LOST_SECONDS`.
            self._write(state=CUT_OFF, reason=str(error))
            self._is_over.wait(LOST_SECONDS + 5 * BEAT_SECONDS)
        self.stop()
        if error is None:
            self._write(state=FINISHED)
            return
        is_stop = isinstance(error, KeyboardInterrupt)
        status = 2 if is_sentence else 130 if is_stop else 1
        reason = str(error) if is_sentence else f"{kind.__name__}: {error}"
        self._write(state=FAILED, reason=reason, status=status)
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
            # JAX's coordinator ends with process 0: leave the others time to report.
            time.sleep(3 * BEAT_SECONDS)
        self._end(status)

    def stop(self) -> None:
        """Stop watching and writing."""
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
            if self._stall_seconds is not None:
                self._check_stall()

    def _write(self, **changes: object) -> None:
        """Write a heartbeat, with other values from now on."""
        with self._lock:
            since = time.monotonic() - self._moved_at
            count = self._beat.count + 1
            changes |= {"since": since, "count": count}
            self._beat = beat = dataclasses.replace(self._beat, **changes)
        if self._others:
            write_heartbeat(self._workdir, beat)

    def _never_seen(self, number: int) -> Heartbeat:
        place = "not heard of in this --workdir, which all processes have to share"
        return Heartbeat(self._beat.attempt, number, "unknown host", 0, place)

    def _find_loss(self) -> tuple[str, int] | None:
        """What happened to another process, and the status; None if all are well."""
        now = time.monotonic()
        for number, (latest, read_at) in self._latest.items():
            beat = read_heartbeat(self._workdir, number)
            is_new = beat is not None and beat != latest
            if is_new and (self._is_starting or beat.attempt == self._beat.attempt):
                self._latest[number] = latest, read_at = beat, now
                self._alive.add(number)
            if number in self._alive and latest.state == FAILED:
                return latest.describe_failure(), latest.status
            if number in self._alive and latest.state == FINISHED:
                continue
            is_expected = number in self._alive or not self._is_starting
            if is_expected and now - read_at > LOST_SECONDS:
                return latest.describe_loss(now - read_at), EXIT_STATUS
        return None

    def _check_stall(self) -> None:
        with self._lock:
            since = time.monotonic() - self._moved_at
            mine = dataclasses.replace(self._beat, since=since)
        if since <= self._stall_seconds:
            return
        beats = {beat.number: beat for beat in _read_all(self._workdir)}
        beats[mine.number] = mine
        lines = "\n".join(
            f"  {beats[n].describe()}" for n in range(self._total) if n in beats
        )
        faulthandler.dump_traceback(all_threads=True)
        self._leave(
            CUT_OFF,
            f"nothing has moved for train.stall_seconds = {self._stall_seconds:g} "
            f"seconds; the processes stand here:\n{lines}\nthe stacks of process "
            f"{mine.number} are above; raise the key if a stage may take longer",
        )

    def _leave(self, state: str, sentence: str, status: int = EXIT_STATUS) -> None:
        self._write(state=state, reason=sentence, status=status)
        advice = f"; {RESUME}" if status == EXIT_STATUS else ""
        print(f"error: {sentence}{advice}", file=sys.stderr, flush=True)
        self._end(status)


# The watch of a process that is starting, until that of its run takes over.
_STARTING: list[Watch] = []


def announce(workdir: pathlib.Path, number: int, total: int, address: str) -> Watch:
    """Begin the watch of a process that waits for the others.

    Raises:
      ValueError: another start of the run is at work.
    """
    refuse_another_start(workdir, number, address)
    watch = Watch(
        workdir, number=number, total=total, address=address, is_starting=True
    )
    _STARTING.append(watch.__enter__())
    return watch


def refuse_another_start(
    workdir: pathlib.Path,
    number: int,
    address: str,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Refuse a start beside another one, whose heartbeats it would overwrite.

    Takes seconds if there are files of processes that may be at work still.

    Raises:
      ValueError: processes that meet elsewhere, or one with this number, are alive.
    """

    def others() -> dict[int, Heartbeat]:
        return {
            beat.number: beat
            for beat in _read_all(workdir)
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
    # The parents of the processes read this module's files without loading JAX.
    import jax

    from ragen_jax.devices import exchange

    exchange.check_devices()
    attempt, address = exchange.gather(uuid.uuid4().hex)[0], ""
    while _STARTING:
        starting = _STARTING.pop()
        starting.stop()
        address = starting.address
    return Watch(
        workdir,
        number=jax.process_index(),
        total=jax.process_count(),
        attempt=attempt,
        address=address,
        stall_seconds=stall_seconds,
    )


def find_lost(
    workdir: pathlib.Path, number: int, wait: Callable[[float], None] = time.sleep
) -> list[str]:
    """Sentences about the processes of this start that failed or are lost.

    Takes seconds: a process is lost if it sends no heartbeat meanwhile.

    Args:
      workdir: the run folder.
      number: of this process, which has a heartbeat there.
      wait: sleeps.
    """
    mine = read_heartbeat(workdir, number)
    if mine is None:
        return []

    def others() -> dict[int, Heartbeat]:
        return {
            beat.number: beat
            for beat in _read_all(workdir)
            if beat.attempt == mine.attempt and beat.number != number
        }

    before, seconds = others(), 5 * BEAT_SECONDS
    wait(seconds)
    now = others()
    failed = [beat for beat in now.values() if beat.state == FAILED]
    lost = [
        beat
        for beat in now.values()
        if beat.state == RUNNING and beat == before.get(beat.number)
    ]
    return [
        *(beat.describe_failure() for beat in failed),
        *(beat.describe_loss(seconds) for beat in lost),
    ]
