"""Several processes of one command: who they are, and a parent that watches each.

In: `--distributed` and the environment variables of a scheduler. Out: an initialised
`jax.distributed`, or nothing where the command runs alone. Slurm, Open MPI, Kubernetes
or a shell starts the processes; nothing here schedules them.

JAX ends a process whose peers are gone from inside its runtime, without a sentence. So
the command starts itself again as a child, passes signals on, and says what happened.

JAX could read the schedulers' variables itself, but only while it connects: heartbeats
are written before. It also takes Slurm's number of tasks from the job, which is wrong
for one of several steps, and gives each process a single GPU.
"""

import dataclasses
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ragen_jax.devices import heartbeat

HELP = (
    "Several processes, one run: 'auto' (those of srun, mpirun or a JobSet of "
    "Kubernetes, if it started several), 'slurm', 'openmpi', 'kubernetes', 'off', or "
    "HOST:PORT,TOTAL,NUMBER: a free port of the host of process 0, how many processes, "
    "and which one this is, from 0. See docs/cluster.md."
)
# Seconds within which all processes must connect, and their place until then.
_CONNECT_SECONDS = 300
_CONNECTING = "waiting for the other processes"
# Ports that Linux does not use for outgoing connections. The job's number chooses one,
# so that two jobs on a host do not share it.
_FIRST_PORT, _NUM_PORTS = 20000, 10000


class Place(NamedTuple):
    """One of several processes.

    Attributes:
      source: who said so.
      address: HOST:PORT of process 0.
      total: number of processes.
      number: of this one, from 0.
    """

    source: str
    address: str
    total: int
    number: int


def find_place(value: str, environ: Mapping[str, str]) -> Place | None:
    """The place of this process; None: it runs alone.

    Args:
      value: of `--distributed`.
      environ: environment variables.

    Raises:
      ValueError: the value is malformed, or the scheduler it names is not there.
    """
    if value == "off":
        return None
    # Schedulers and shells may set a variable to an empty text.
    environ = {name: text for name, text in environ.items() if text}
    if value == "auto":
        for source in SCHEDULERS:
            if (place := _find(source, environ)) is not None and place.total > 1:
                return place
        return None
    if value in SCHEDULERS:
        place, scheduler = _find(value, environ), SCHEDULERS[value]
        if place is None:
            raise ValueError(
                f"--distributed={value}, but {scheduler.variables} is not set: start "
                f"the command with {scheduler.starter}, or name the processes by "
                "--distributed=HOST:PORT,TOTAL,NUMBER"
            )
        return place if place.total > 1 else None
    match = re.fullmatch(r"(\[[^\]]+\]|[^,:\[\]]+):(\d+),(\d+),(\d+)", value)
    if not match:
        raise ValueError(
            f"--distributed={value!r} is not one of auto, off, {', '.join(SCHEDULERS)} "
            "or HOST:PORT,TOTAL,NUMBER; give e.g. node0:21000,2,1"
        )
    host, port, total, number = match[1], *map(int, match.groups()[1:])
    if not (0 < port < 65536 and number < total):
        raise ValueError(
            f"--distributed={value!r}: the port must be 1 to 65535 and the number of "
            f"this process 0 to {max(total - 1, 0)}, one less than TOTAL"
        )
    place = Place("--distributed", f"{host}:{port}", total, number)
    return place if total > 1 else None


def _find(source: str, environ: Mapping[str, str]) -> Place | None:
    """The place according to a scheduler's variables; None: they are not set.

    Raises:
      ValueError: they are not numbers, or contradict each other.
    """
    scheduler = SCHEDULERS[source]
    try:
        place = scheduler.find(environ)
        if place is not None and not 0 <= place.number < place.total:
            raise ValueError(f"process {place.number} of {place.total}")
    except ValueError as error:
        raise ValueError(
            f"the variables of {source} ({scheduler.variables}) do not name a "
            f"process: {error}; give --distributed=HOST:PORT,TOTAL,NUMBER, or "
            "--distributed=off to run alone"
        ) from error
    return place


def join(value: str, workdir: pathlib.Path, say: Callable[[str], None] = print):
    """Connect to the other processes, if there are any. Call it before JAX computes.

    Returns:
      None where the command continues in this process. Else the exit status of the
      child that did the work.
    """
    place = find_place(value, os.environ)
    if place is None:
        return None
    if heartbeat.PARENT not in os.environ:
        return _watch_child(place, workdir)
    import jax

    # JAX's handler of SIGTERM would keep the signal from `StopRequest`.
    jax.config.update("jax_enable_preemption_service", False)
    watch = heartbeat.announce(workdir, place.number, place.total, place.address)
    watch.at(_CONNECTING)
    # JAX ends the process after the timeout; the parent's `_describe_end` says why.
    jax.distributed.initialize(
        place.address,
        place.total,
        place.number,
        cluster_detection_method="deactivate",
        initialization_timeout=_CONNECT_SECONDS,
    )
    watch.at("loading JAX")
    if place.number == 0:
        say(
            f"{place.total} processes (from {place.source}), {jax.device_count()} "
            f"devices, {jax.local_device_count()} of them here; process 0 is at "
            f"{place.address}"
        )
    return None


def _watch_child(place: Place, workdir: pathlib.Path) -> int:
    """Run the command in a child; returns its status, with a sentence if it died."""
    # Signals are passed on to the child; meanwhile the pipe of the thread that answers
    # them for a command is off, or it would end this process.
    pipe = signal.set_wakeup_fd(-1)
    # A terminal sends Ctrl-C to the child, too; `StopRequest` counts both as one.
    words = [sys.executable, *sys.orig_argv[1:]]
    environ = os.environ | {heartbeat.PARENT: str(os.getpid())}
    children: list[subprocess.Popen] = []
    received: list[int] = []

    def pass_on(number: int, _) -> None:
        received.append(number)
        for child in children:
            child.send_signal(number)

    previous = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        child = subprocess.Popen(words, env=environ)
        children.append(child)
        for number in received:
            child.send_signal(number)
        status = child.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    if status >= 0:
        return status
    if -status in received:
        return 128 - status
    print(f"error: {_describe_end(place, workdir, -status)}", file=sys.stderr)
    return heartbeat.EXIT_STATUS


def _describe_end(place: Place, workdir: pathlib.Path, number: int) -> str:
    """Why a child was ended by a signal, as far as can be known."""
    mine = heartbeat.read_heartbeat(workdir, place.number)
    where = "before the run began" if mine is None else f"at: {mine.place}"
    name = signal.Signals(number).name
    if number != signal.SIGABRT:
        hint = ", often out of memory" if number == signal.SIGKILL else ""
        reason = f"it was ended by {name}{hint}; it stood {where}"
        # Written so that the others need not wait for a heartbeat that never comes.
        mine = mine or heartbeat.Heartbeat(
            "", place.number, socket.gethostname(), 0, "start"
        )
        failed = dataclasses.replace(mine, state=heartbeat.FAILED, reason=reason)
        heartbeat.write_heartbeat(workdir, failed)
        return f"process {place.number} failed: {reason}; {heartbeat.RESUME}"
    if mine is not None:
        cut_off = dataclasses.replace(mine, state=heartbeat.CUT_OFF)
        heartbeat.write_heartbeat(workdir, cut_off)
    lost = heartbeat.find_lost(workdir, place.number)
    reason = "; ".join(lost) or (
        "JAX ended it, see above: another process is gone or cannot be reached"
    )
    if not lost and mine is not None and mine.place == _CONNECTING:
        reason = (
            f"not all {place.total} processes have reached process 0 at "
            f"{place.address} in {_CONNECT_SECONDS} s: start all of them, and check "
            "that the name resolves and the port is open between the hosts"
        )
    return f"{reason}; so process {place.number} ends, too, {where}; {heartbeat.RESUME}"


def _from_slurm(environ: Mapping[str, str]) -> Place | None:
    """A task of `srun`. A batch script outside of it has no variables of a step."""
    if any(name not in environ for name in _SLURM):
        return None
    job, hosts, total, number = (environ[name] for name in _SLURM)
    # Steps of one job may run at the same time, so each needs another port.
    port = _port(int(job) + 97 * int(environ.get("SLURM_STEP_ID", "0")))
    return Place("slurm", f"{_first_host(hosts)}:{port}", int(total), int(number))


def _first_host(hosts: str) -> str:
    """The first of a list of hosts as Slurm writes it: `a[03-07,9],b` -> `a03`."""
    return re.sub(r"^([^\[,]*)(?:\[([^\-,\]]*)[^\]]*\]([^,\[]*))?.*$", r"\1\2\3", hosts)


def _from_openmpi(environ: Mapping[str, str]) -> Place | None:
    """A process of `mpirun`, whose own address is taken for that of process 0."""
    if "OMPI_COMM_WORLD_SIZE" not in environ:
        return None
    total = int(environ["OMPI_COMM_WORLD_SIZE"])
    if total == 1:
        return Place("openmpi", "", 1, 0)
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    match = re.match(r"(\d+)\.\d+;tcp://([^,:]+)", uri)
    if match is None:
        raise ValueError(
            f"OMPI_MCA_orte_hnp_uri = {uri!r} does not name an IPv4 address for "
            f"{total} processes"
        )
    if "OMPI_COMM_WORLD_RANK" not in environ:
        raise ValueError("OMPI_COMM_WORLD_RANK is not set")
    # The numbers of Open MPI's jobs are multiples of 2^12.
    address = f"{match[2]}:{_port(int(match[1]) >> 12)}"
    return Place("openmpi", address, total, int(environ["OMPI_COMM_WORLD_RANK"]))


def _from_kubernetes(environ: Mapping[str, str]) -> Place | None:
    """A pod of an indexed Job in a JobSet; its file sets the number of processes."""
    # Pods of any indexed Job have an index, so the index alone does not name a run.
    if not any(name in environ for name in _JOBSET[:2]):
        return None
    for name in _JOBSET:
        if name not in environ:
            raise ValueError(f"{name} is not set, and others are")
    host, total, number = (environ[name] for name in _JOBSET)
    return Place("kubernetes", f"{host}:{_FIRST_PORT}", int(total), int(number))


def _port(job: str | int) -> int:
    return _FIRST_PORT + int(job) % _NUM_PORTS


_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
_JOBSET = ("RAGEN_JAX_FIRST_HOST", "RAGEN_JAX_NUM_PROCESSES", "JOB_COMPLETION_INDEX")


class Scheduler(NamedTuple):
    """A scheduler whose environment variables name a process.

    Attributes:
      find: environment variables -> the place of the process; None: it started none.
      variables: those it reads, for error messages.
      starter: what starts processes with these variables.
    """

    find: Callable[[Mapping[str, str]], Place | None]
    variables: str
    starter: str


# In this order: processes of `mpirun` within a job of Slurm have the variables of both.
SCHEDULERS = {
    "openmpi": Scheduler(_from_openmpi, "OMPI_COMM_WORLD_SIZE", "mpirun"),
    "slurm": Scheduler(_from_slurm, " or ".join(_SLURM), "srun"),
    "kubernetes": Scheduler(
        _from_kubernetes, " or ".join(_JOBSET), "the JobSet of docs/cluster.md"
    ),
}
