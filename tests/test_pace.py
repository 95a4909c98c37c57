"""XLA's flags are known; a run that loses a worker or collects nothing says so."""

import re
import subprocess
import sys

import pytest

from tests import FAST_XLA_FLAGS, commands, is_known_to_xla, pace


def test_flags_that_are_set_or_advised_are_known_to_xla():
    named = set(FAST_XLA_FLAGS.split())
    for folder in ("benchmarks", "docs", "launch", "ragen_jax", "tests"):
        for path in (commands.ROOT / folder).rglob("*.*"):
            if path.suffix in (".md", ".py") and path.name != "test_pace.py":
                found = re.findall(r"--xla_(?:force|gpu)_\w+", path.read_text())
                named |= {f"{flag}=1" for flag in found}
    assert "--xla_force_host_platform_device_count=1" in named
    assert is_known_to_xla(*named), [f for f in named if not is_known_to_xla(f)]
    assert not is_known_to_xla("--xla_a_flag_of_nobody=1")


def test_durations_are_expected_by_test_then_by_file():
    known = {"tests/test_a.py::test_b[1]": 3.0, "tests/test_a.py": 0.5}
    tests = [
        "tests/test_a.py::test_b[1]",
        "tests/test_a.py::test_b[2]",
        "tests/c.py::d",
    ]
    assert pace.expected_seconds(tests, known) == [3.0, 0.5, 0.1]


@pytest.fixture
def pytester_run(tmp_path):
    """Runs pytest on a file of tests with this suite's report: `(text, *words)`."""

    def run(text, *words):
        (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.pace"]\n')
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
        (tmp_path / "test_it.py").write_text(text)
        options = ["-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *words, str(tmp_path)],
            cwd=commands.ROOT,
            # As in a run of its own, also where a worker runs this test.
            env={
                key: value
                for key, value in commands.environment().items()
                if not key.startswith("PYTEST_")
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_a_run_that_collects_nothing_says_so(pytester_run):
    done = pytester_run("", "-n", "1")
    assert done.returncode == 5
    assert "no test ran: " in done.stdout


def test_a_worker_that_dies_ends_the_run_with_a_sentence(pytester_run):
    text = "import os\n\ndef test_a():\n    os._exit(1)\n\ndef test_b():\n    pass\n"
    done = pytester_run(text, "-n", "1")
    assert done.returncode == 1
    assert "a worker of the tests died: gw0: " in done.stdout
    # Before it has collected anything: what an unknown flag of XLA does.
    done = pytester_run("import os\nos._exit(1)\n", "-n", "1")
    assert done.returncode == 1
    assert "a worker of the tests died: gw0: " in done.stdout


def test_skips_are_counted_by_their_reasons(pytester_run):
    text = "import pytest\n\n@pytest.mark.skip(reason='no cat')\ndef test_{}(): pass\n"
    done = pytester_run(text.format("a") + text.format("b"))
    assert "2 tests, about 0 s by durations.txt (1 process)" in done.stdout
    assert "skipped, 2 tests: no cat" in done.stdout
