"""Programs that try to do harm or to outlive their test."""

import os
import pathlib
import threading
import time

import pytest

from ragen_jax.host_games.coding import judge as code_judge
from ragen_jax.host_games.coding import runner as code_runner
from ragen_jax.host_games.coding.judge import LocalSandbox
from tests.host_games.coding.games import (
    assert_alive_and_clean,
    processes_with,
)


def test_something_can_be_had_here():
    """The tests below are skipped for an isolation that cannot; not for both."""
    sandbox = LocalSandbox(None, memory_mb=256)
    assert sandbox.isolation in code_judge.ISOLATIONS
    assert_alive_and_clean(sandbox)
    folder = sandbox._folder.name
    sandbox.close()
    assert not processes_with(folder)
    assert not pathlib.Path(folder).exists()


def test_the_isolation_is_described(sandbox):
    says_no = sandbox.describe().startswith("NO SANDBOX")
    assert says_no == (sandbox.isolation == "limits")


def test_the_reason_for_no_namespaces_is_told(monkeypatch):
    def refuse(self, isolation):
        return "unshare: Operation not permitted" if isolation == "namespaces" else None

    monkeypatch.setattr(LocalSandbox, "_try", refuse)
    sandbox = LocalSandbox(None, memory_mb=256)
    assert sandbox.describe().startswith("NO SANDBOX")
    assert "unshare: Operation not permitted" in sandbox.describe()
    with pytest.raises(ValueError, match=r"Operation not permitted.*set sandbox_url"):
        LocalSandbox("namespaces", memory_mb=256)


FORKS = """
import os, time
count = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
        count += 1
    except OSError:
        break
print(count)
"""
FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


def test_the_number_of_processes_is_limited(sandbox):
    outcome = sandbox.run(FORKS, "", 10)
    assert 0 <= int(outcome.printed) <= code_runner.MAX_PROCESSES + 2
    assert_alive_and_clean(sandbox)


def test_a_fork_bomb_ends_at_the_deadline(sandbox):
    outcome = sandbox.run(FORK_BOMB, "", 1)
    assert outcome.timed_out
    assert_alive_and_clean(sandbox)


def test_memory_is_limited(sandbox):
    bomb = "x = []\nwhile True: x.append(bytearray(10_000_000)); print(len(x))"
    outcome = sandbox.run(bomb, "", 10)
    assert not outcome.ok
    assert not outcome.timed_out
    assert 5 < len(outcome.printed.split()) < 52
    assert_alive_and_clean(sandbox)


def test_the_size_of_files_is_limited(sandbox):
    code = (
        "try:\n    open('big', 'wb').write(bytes(100_000_000))\n"
        "except OSError as error: print(type(error).__name__)\n"
        "import os; print(os.path.getsize('big'))"
    )
    name, size = sandbox.run(code, "", 10).printed.split()
    assert (name, int(size)) == ("OSError", code_runner.MAX_FILE_BYTES)
    assert_alive_and_clean(sandbox)


def test_all_files_together_are_limited(sandbox):
    if sandbox.isolation == "limits":
        pytest.skip("without namespaces each file is limited alone")
    code = "for i in range(999): open(str(i), 'wb').write(bytes(1 << 20)); print(i)"
    outcome = sandbox.run(code, "", 20)
    assert not outcome.ok
    assert len(outcome.printed.split()) <= code_runner.SCRATCH_BYTES >> 20
    assert_alive_and_clean(sandbox)


def test_folders_that_resist_are_removed(sandbox):
    code = (
        "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\n"
        "os.chmod('.', 0); print(1)"
    )
    outcome = sandbox.run(code, "", 20)
    assert sandbox.isolation == "namespaces" or outcome.printed == "1\n"
    assert_alive_and_clean(sandbox)


def test_endless_output_is_cut(sandbox):
    start = time.monotonic()
    outcome = sandbox.run("while True: print('x' * 10_000)", "", 60)
    assert (outcome.ok, outcome.printed) == (False, "")
    assert time.monotonic() - start < 50
    assert_alive_and_clean(sandbox)


@pytest.mark.parametrize("code", ["import time; time.sleep(1000)", "while True: pass"])
def test_a_deadline_ends_a_program(sandbox, code):
    start = time.monotonic()
    outcome = sandbox.run("print(1, flush=True)\n" + code, "", 0.5)
    assert (outcome.ok, outcome.timed_out, outcome.printed) == (False, True, "1\n")
    assert time.monotonic() - start < 20
    assert_alive_and_clean(sandbox)


CHILDREN = {
    "a child": "import os, time\nif os.fork() == 0: time.sleep(1000)",
    "a child that writes on": (
        "import os, time\nif os.fork() == 0:\n"
        "    while True: print('x', flush=True); time.sleep(0.01)"
    ),
    "a daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n        os.setsid(); time.sleep(1000)\n"
        "    os._exit(0)\ntime.sleep(0.1)"
    ),
    "a deaf child": (
        "import os, signal, time\nif os.fork() == 0:\n"
        "    for s in (1, 2, 3, 15): signal.signal(s, signal.SIG_IGN)\n"
        "    time.sleep(1000)"
    ),
    "another program": (
        "import os\nif os.fork() == 0: os.execv('/bin/sleep', ['ragen-sleeper', '999'])"
    ),
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_no_child_survives_its_program(sandbox, kind):
    code = CHILDREN[kind] + "\nprint('done', flush=True)"
    start = time.monotonic()
    outcome = sandbox.run(code, "", 20)
    # The child that may not run another program says so, too.
    assert outcome.ok
    assert "done" in outcome.printed
    assert time.monotonic() - start < 15
    assert not processes_with("ragen-sleeper")
    assert_alive_and_clean(sandbox)


def test_limits_cannot_be_raised(sandbox):
    code = (
        "import resource\nfor name in ('AS', 'NPROC', 'CPU', 'FSIZE'):\n"
        "    try: resource.setrlimit(getattr(resource, 'RLIMIT_' + name), (-1, -1))\n"
        "    except (ValueError, OSError): print(name)"
    )
    assert sandbox.run(code, "", 10).printed.split() == ["AS", "NPROC", "CPU", "FSIZE"]


def test_the_network_is_not_there(sandbox):
    if sandbox.isolation == "limits":
        pytest.skip("without namespaces it is, as the description says")
    code = (
        "import socket\nprint([name for _, name in socket.if_nameindex()])\n"
        "try: socket.create_connection(('127.0.0.1', 22), 1)\n"
        "except OSError as error: print(error.errno)"
    )
    # Unreachable, not refused: even the loopback device is down.
    assert sandbox.run(code, "", 10).printed == "['lo']\n101\n"


def test_no_namespaces_of_its_own(sandbox):
    """In a user namespace of its own a program could mount, and so use up memory."""
    if sandbox.isolation == "limits":
        pytest.skip("without namespaces the kernel decides")
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print(libc.unshare(0x10000000), libc.unshare(0x20000), libc.chroot(b'/'))"
    )
    assert sandbox.run(code, "", 10).printed == "-1 -1 -1\n"


def test_nothing_outside_the_scratch_folder_can_be_written(sandbox):
    code = (
        "import os\nfor path in ('/x', '/usr/lib/x', '/dev/x', os.__file__):\n"
        "    try: open(path, 'a'); print('written', path)\n"
        "    except OSError: pass\n"
    )
    if sandbox.isolation == "limits" and os.access(os.__file__, os.W_OK):
        pytest.skip("this user may write Python's own files")
    assert sandbox.run(code, "", 10).printed == ""


def test_a_program_that_kills_all_it_can_has_failed_and_the_next_runs(sandbox):
    if sandbox.isolation == "limits" and os.geteuid() != 0:
        pytest.skip("without namespaces it would kill this user's processes")
    code = (
        "import os\nfor process in (os.getppid(), -1):\n"
        "    if process:\n"
        "        try: os.kill(process, 9)\n"
        "        except OSError: pass\n"
        "os.kill(os.getpid(), 9)\nos.abort()"
    )
    runner = sandbox._child.process.pid
    assert not sandbox.run(code, "", 10).ok
    assert sandbox._child.process.pid == runner
    assert_alive_and_clean(sandbox)


def test_a_runner_that_has_died_is_started_again(sandbox):
    sandbox._child.process.kill()
    sandbox._child.process.wait()
    assert_alive_and_clean(sandbox)


def test_killing_the_runner_ends_what_it_runs(sandbox):
    """As when the worker process of the game is killed."""
    results = []

    def run():
        try:
            results.append(sandbox.run("import time; time.sleep(1000)", "", 500))
        except ChildProcessError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    folder = sandbox._folder.name
    deadline = time.monotonic() + 60
    # It is run again, once.
    for _ in range(2):
        while len(before := processes_with(folder)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(sandbox._child.process.pid, 9)
        while set(before) & set(processes_with(folder)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    thread.join(20)
    (result,) = results
    if sandbox.isolation == "namespaces":
        # No program can have done it, so none is said to have failed.
        assert isinstance(result, ChildProcessError)
    else:
        assert not result.ok
    assert not processes_with(folder)
    for left in pathlib.Path(folder).iterdir():
        left.rmdir()
    assert_alive_and_clean(sandbox)
