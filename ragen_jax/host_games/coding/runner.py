"""The program that runs others; `judge.LocalSandbox` starts it.

In, on stdin: `REQUEST_HEAD` and JSON with `code`, `stdin`, `seconds` and `memory_mb`.
Out, on stdout: the line `ready` once; per request `ANSWER_HEAD` and the bytes printed.
It does not know what should have been printed.

Three processes per request. This one forks a warden and never reads a request, so that
nothing of one program is in the memory that the next is forked from. The warden reads
the request, starts the program, collects what it prints until it ends, prints too much
or the deadline comes, kills what is left and answers. The program runs after a fork
without an exec, which takes a few milliseconds instead of a start of Python. It is a
separate program, for Linux, and imports nothing of ragen_jax.

Source of the calls: the manual pages namespaces(7), pivot_root(2), mount_setattr(2),
prctl(2) and capset(2).
"""

import builtins
import ctypes
import glob
import importlib
import json
import os
import random
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import types

# What solutions import most, and `tasks.IMPORTED`; loaded once here instead of in every
# process.
LOADED = ("bisect", "collections", "copy", "datetime", "fractions", "functools")
LOADED += ("heapq", "io", "itertools", "json", "math", "operator", "random", "re")
LOADED += ("statistics", "string", "sys", "typing")
for module_name in LOADED:
    importlib.import_module(module_name)

REQUEST_HEAD = struct.Struct("<I")
# How it ended, its exit status, and the number of bytes that follow.
ANSWER_HEAD = struct.Struct("<iiI")
ENDED, DEADLINE, OUTPUT, NO_PROCESS = range(4)

MAX_OUTPUT_BYTES = 8 << 20
MAX_FILE_BYTES = 8 << 20
SCRATCH_BYTES = 32 << 20
MAX_FILES = 32
# Threads count, too; recursive solutions run in one with a large stack.
MAX_PROCESSES = 8
# Pure Python recursion needs little of it, recursion through C a lot.
STACK_BYTES = 64 << 20
# First of the user ids that runners of the superuser take, one each: limits are
# counted per user.
FIRST_UID = 1_900_000_000
JAIL, SCRATCH = "/jail", "/scratch"

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE, MNT_DETACH = -100, 0x8000, 2
SYS_MOUNT_SETATTR = 442
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unshare(flags: int, what: str) -> None:
    check(libc.unshare(ctypes.c_int(flags)), f"unshare of {what}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode())
    result = libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() or None)
    check(result, f"mount of {target}")


def make_read_only(path: str, flags: int) -> None:
    attributes = struct.pack("<QQQQ", ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, 0, 0, 0)
    result = libc.syscall(
        ctypes.c_long(SYS_MOUNT_SETATTR),
        ctypes.c_int(AT_FDCWD),
        path.encode(),
        ctypes.c_uint(flags),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    check(result, f"mount_setattr of {path}")


def prctl(option: int, value: int, what: str) -> None:
    unsigned = [ctypes.c_ulong(number) for number in (value, 0, 0, 0)]
    check(libc.prctl(ctypes.c_int(option), *unsigned), what)


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends, also if it just has."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, "signal of the parent's death")
    if os.getppid() != parent:
        os._exit(1)


# --- What is done once. ---


def enter_namespaces(folder: str) -> None:
    """No network, and a new root: Python's library, read-only, and a scratch."""
    others = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        unshare(others, "namespaces")
    else:
        unshare(CLONE_NEWUSER | others, "user namespace")
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    jail = folder + JAIL
    os.mkdir(jail)
    # Shared libraries and Python's own; nothing that has been installed.
    folders = {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"}
    for prefix in (sys.base_prefix, sys.base_exec_prefix):
        folders |= {f"{prefix}/lib", f"{prefix}/lib64"}
    for path in sorted(folders):
        show(path, jail)
    os.mkdir(f"{jail}/dev")
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        os.close(os.open(jail + device, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(device, jail + device, "", MS_BIND)
    os.mkdir(jail + SCRATCH)
    os.chdir(folder)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", ctypes.c_int(MNT_DETACH)), "umount")
    make_read_only("/", 0)
    # The kernel refuses user namespaces, in which a program could mount, to processes
    # whose root is not their mount namespace's.
    os.chroot(JAIL)
    os.chdir("/")


def show(path: str, folder: str) -> None:
    """Make a folder visible under a new root, less the packages installed there."""
    target = folder + path
    if not os.path.isdir(path) or os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    os.mkdir(target)
    mount(path, target, "", MS_BIND | MS_REC)
    make_read_only(target, AT_RECURSIVE)
    for packages in glob.glob(f"{target}/python*/*-packages"):
        mount("tmpfs", packages, "tmpfs", 0, "size=4k,mode=0755")
        make_read_only(packages, 0)


def user_processes() -> int:
    """Threads of all processes of this user, which RLIMIT_NPROC counts."""
    count = 0
    for path in glob.glob("/proc/[0-9]*/status"):
        try:
            with open(path, "rb") as file:
                lines = dict(line.split(b":", 1) for line in file if b":" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended meanwhile.
        # The owner of the folder does not tell: processes like this one hide it.
        if int(lines[b"Uid"].split()[0]) == os.getuid():
            count += int(lines[b"Threads"])
    return count


# --- What is done per request. ---


def read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(1)
        data += piece
    return data


def limit(request: dict, max_processes: int) -> None:
    cpu_seconds = int(request["seconds"]) + 1
    memory_bytes = int(request["memory_mb"]) << 20
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_FILES),
        (resource.RLIMIT_STACK, STACK_BYTES),
        (resource.RLIMIT_NPROC, max_processes),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        hard = resource.getrlimit(name)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (allowed, allowed))


def drop_privileges(uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    head = struct.pack("<Ii", CAPABILITY_VERSION_3, 0)
    check(libc.capset(head, bytes(24)), "capset")
    prctl(PR_SET_NO_NEW_PRIVS, 1, "no new privileges")


def become_program(
    request: dict, output: int, uid: int | None, max_processes: int
) -> None:
    """The rest of the process is the program's."""
    os.setsid()
    given = os.memfd_create("stdin")
    data = request["stdin"].encode("utf-8", "surrogatepass")
    while data:
        data = data[os.write(given, data) :]
    os.lseek(given, 0, os.SEEK_SET)
    os.dup2(given, 0)
    os.dup2(output, 1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    drop_privileges(uid)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, "signal of the warden's death")
    # It may have died before that; then the other end of the pipe is closed.
    poll = select.poll()
    poll.register(1, 0)
    if poll.poll(0):
        os._exit(1)
    limit(request, max_processes)
    os.environ.clear()
    # Those who draw random numbers print the same in every process; a fork reseeds.
    random.seed(0)


def collect(process: int, stream: int, seconds: float) -> tuple[int, bytes]:
    """What a program prints until it ends; its children do not matter."""
    deadline = time.monotonic() + seconds
    ended = os.pidfd_open(process)
    os.set_blocking(stream, False)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(stream, select.POLLIN)
    printed, status = bytearray(), None
    while status is None:
        left = deadline - time.monotonic()
        ready = dict(poll.poll(max(left, 0) * 1000))
        if ended in ready:
            status = ENDED
        elif left <= 0:
            status = DEADLINE
        if not read_waiting(stream, printed) and stream in ready:
            poll.unregister(stream)
        if len(printed) > MAX_OUTPUT_BYTES:
            return OUTPUT, b""
    return status, bytes(printed)


def read_waiting(stream: int, printed: bytearray) -> bool:
    """Append what can be read now, until it is too much; False at the end."""
    while len(printed) <= MAX_OUTPUT_BYTES:
        try:
            chunk = os.read(stream, 1 << 16)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        printed += chunk
    return True


def kill_all(process: int, mode: str) -> int:
    """Kill a program and all that it started; its exit status.

    In a PID namespace the kernel does it when the first process ends. Otherwise a
    process that has left the group becomes a child of the warden, a subreaper.
    """
    os.kill(process, signal.SIGKILL)
    _, wait_status = os.waitpid(process, 0)
    if mode == "limits":
        kill_orphans()
    return os.waitstatus_to_exitcode(wait_status)


def kill_orphans() -> None:
    """Kill all child processes, including orphans that become children of this one."""
    children = f"/proc/self/task/{os.getpid()}/children"
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return
        # The list may lack some while others end: ask until none can be waited for.
        with open(children) as file:
            for word in file.read().split():
                os.kill(int(word), signal.SIGKILL)


def guard(runner: int, mode: str, folder: str, uid: int | None) -> str:
    """The warden: returns the code in the program's process and never in its own."""
    die_with(runner)
    request = json.loads(read_exactly(*REQUEST_HEAD.unpack(read_exactly(4))))
    if mode == "namespaces":
        unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC, "process namespace")
        size = f"size={SCRATCH_BYTES},nr_inodes=1000,mode=0777"
        mount("tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, size)
        scratch = SCRATCH
    else:
        prctl(PR_SET_CHILD_SUBREAPER, 1, "subreaper")
        scratch = tempfile.mkdtemp(dir=folder)
        os.chmod(scratch, 0o777)
    os.chdir(scratch)
    # In a namespace or under a separate user, the runner and the warden count, too.
    others = user_processes() if mode == "limits" and uid is None else 2
    stream, output = os.pipe()
    try:
        process = os.fork()
    except OSError:
        process = None
    if process == 0:
        become_program(request, output, uid, others + MAX_PROCESSES)
        return request["code"]
    os.close(output)
    if process is None:
        status, code, printed = NO_PROCESS, 0, b""
    else:
        status, printed = collect(process, stream, request["seconds"])
        code = kill_all(process, mode)
    if mode == "limits":
        os.chdir("/")
        subprocess.run(["chmod", "-R", "u+rwx", scratch], stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", scratch], check=True)
    answer = ANSWER_HEAD.pack(status, code, len(printed)) + printed
    while answer:
        answer = answer[os.write(1, answer) :]
    os._exit(0)


def serve(mode: str, folder: str, parent: int) -> str:
    """Answer requests; returns, in a separate process, the code to be run."""
    die_with(parent)
    uid = FIRST_UID + os.getpid() if os.geteuid() == 0 else None
    if mode == "namespaces":
        enter_namespaces(folder)
    else:
        prctl(PR_SET_CHILD_SUBREAPER, 1, "subreaper")
        os.chmod(folder, 0o711)
    # Programs of the same user may not look into this process.
    prctl(PR_SET_DUMPABLE, 0, "not dumpable")
    die_with(parent)
    os.environ.clear()
    os.write(1, b"ready\n")
    runner = os.getpid()
    while select.select([0], [], [])[0]:
        warden = os.fork()
        if warden == 0:
            return guard(runner, mode, folder, uid)
        if os.waitpid(warden, 0)[1] != 0:
            break
    # The end of the requests, or a program has killed its warden.
    if mode == "limits":
        kill_orphans()
    os._exit(0)


def run_program(code: str) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["solution.py"]
    # Names that the module `site` adds, which is not loaded.
    builtins.exit = builtins.quit = sys.exit
    exec(compile(code, "solution.py", "exec"), module.__dict__)


if __name__ == "__main__":
    this_module = sys.modules["__main__"]
    run_program(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
