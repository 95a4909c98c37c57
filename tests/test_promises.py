"""Every promise of the README has a test in the fast half."""

import subprocess
import sys

from tests import commands, pace


def _fast_tests(session) -> set[str]:
    """Fast tests by name, with and without parameters."""
    items = [item for item in session.items if not item.get_closest_marker("slow")]
    return {name for i in items for name in (i.nodeid, i.nodeid.split("[")[0])}


def test_every_promise_has_a_fast_test(request):
    promised = set(pace.promises())
    assert len(promised) > 30
    lacking = promised - _fast_tests(request.session)
    if lacking:
        # This run may have been asked for a part of the tests alone.
        files = sorted({name.split("::")[0] for name in lacking})
        words = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "--no-header"]
        words += ["-o", "addopts=", "-m", "not slow", "-v", *files]
        found = subprocess.run(
            words, cwd=commands.ROOT, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout
        tests = found.stdout.splitlines()
        lacking -= {name for test in tests for name in (test, test.split("[")[0])}
    assert not lacking, (
        f"in tests/promises.txt, but not among the fast tests: {lacking}"
    )


def test_recorded_durations_are_of_files_that_exist():
    names = {name.split("::")[0] for name in pace.durations()}
    absent = [name for name in names if not (commands.ROOT / name).exists()]
    assert not absent, f"{absent}: make test-all ARGS=--record-durations"
