"""How long the suite takes: which tests are slow, how far a run is, how it ended.

`tests/durations.txt` holds recorded seconds; `--record-durations` writes it anew. A
test that took SLOW_SECONDS or more is `slow`, unless `tests/promises.txt` names it;
shorter ones are recorded as the mean of their file.
"""

import collections
import os
import pathlib
import re
import time

import hypothesis
import pytest

HERE = pathlib.Path(__file__).parent
DURATIONS = HERE / "durations.txt"
PROMISES = HERE / "promises.txt"
SLOW_SECONDS = 0.5
LONG_SECONDS = 20.0
# Of hypothesis, in the fast half and with the slow tests.
FAST_EXAMPLES = 40
ALL_EXAMPLES = 100
_UNKNOWN_SECONDS = 0.1
_REPORT_EVERY_SECONDS = 30.0
_HEADER = """\
# Seconds on two cores: of each test that takes half of one, and of the mean of the
# other tests of a file. Written by `make test-all ARGS=--record-durations`.
"""


def durations() -> dict[str, float]:
    """Seconds by test, and by file for its other tests."""
    lines = DURATIONS.read_text().splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if not line.startswith("#"))
    return {name: float(seconds) for seconds, name in pairs}


def promises() -> dict[str, str]:
    """What is promised, by the test that holds it; see the head of the file."""
    lines = PROMISES.read_text().splitlines()
    pairs = (line.split(": ", 1) for line in lines if line and line[0] != "#")
    return {test: promise for promise, test in pairs}


def expected_seconds(tests: list[str], known: dict[str, float]) -> list[float]:
    return [
        known.get(test, known.get(test.split("::")[0], _UNKNOWN_SECONDS))
        for test in tests
    ]


def examples(number: int) -> int:
    """At most so many examples of hypothesis, for tests where each takes long."""
    return min(number, hypothesis.settings().max_examples)


def pytest_addoption(parser):
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write {DURATIONS.name} anew from this run; files not run are kept",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    known, promised = durations(), promises()
    for item in items:
        seconds = known.get(item.nodeid, 0.0)
        is_promised = {item.nodeid, item.nodeid.split("[")[0]} & promised.keys()
        if seconds >= SLOW_SECONDS and not is_promised:
            item.add_marker(pytest.mark.slow)
    # Files of the longest tests come first: at the end one worker would wait for them.
    longest = collections.Counter()
    for name, seconds in known.items():
        if "::" in name and seconds >= LONG_SECONDS:
            file = name.split("::")[0]
            longest[file] = max(longest[file], seconds)
    items.sort(key=lambda item: -longest[item.nodeid.split("::")[0]])


def pytest_configure(config):
    hypothesis.settings.register_profile("fast", max_examples=FAST_EXAMPLES)
    hypothesis.settings.register_profile("all", max_examples=ALL_EXAMPLES)
    hypothesis.settings.load_profile("fast" if config.option.markexpr else "all")
    # A worker of pytest-xdist reports to another process.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Progress(config), "pace-progress")


class Progress:
    """Says how long a run takes, what was skipped and whether a worker died."""

    def __init__(self, config):
        self._config = config
        self._expected: dict[str, float] = {}
        self._done = 0.0
        self._started = self._reported = time.monotonic()
        self._seconds = collections.Counter()
        self._shared_seconds = collections.Counter()
        self._skipped = collections.Counter()
        self._lost: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self._begin(ids, self._config.getoption("numprocesses", 1) or 1)

    def pytest_collection_finish(self, session):
        # With workers, this process collects nothing itself.
        if session.items:
            self._begin([item.nodeid for item in session.items], 1)

    def _begin(self, tests: list[str], workers: int):
        if self._expected or self._config.option.collectonly:
            return
        self._expected = dict(
            zip(tests, expected_seconds(tests, durations()), strict=True)
        )
        self._started = self._reported = time.monotonic()
        total = sum(self._expected.values()) / workers
        self._say(
            f"{len(tests)} tests, about {_minutes(total)} by {DURATIONS.name} "
            f"({workers} {'process' if workers == 1 else 'processes'})"
        )

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            self._seconds[report.nodeid] += report.duration
        else:
            # Most is for fixtures that the tests of a file share.
            self._shared_seconds[report.nodeid.split("::")[0]] += report.duration
        if report.skipped:
            self._skipped[_reason(report)] += 1
        if report.when != "teardown":
            return
        self._done += self._expected.get(report.nodeid, 0.0)
        now, total = time.monotonic(), sum(self._expected.values())
        # Before, the pace of this machine is not known.
        is_known = self._done >= total / 10
        if is_known and now - self._reported >= _REPORT_EVERY_SECONDS:
            self._reported, elapsed = now, now - self._started
            left = elapsed * (total - self._done) / self._done
            self._say(
                f"{self._done / total:.0%} of the time, about {_minutes(left)} left"
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        if error:
            self._lost.append(f"{node.gateway.id}: {error}")

    def pytest_sessionfinish(self, session, exitstatus):
        if self._lost:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._config.getoption("record_durations"):
            options = self._config.option
            by_name = any("::" in word for word in self._config.args)
            is_whole = not (options.markexpr or options.keyword or by_name)
            record(self._seconds, self._shared_seconds, is_whole=is_whole)

    def pytest_terminal_summary(self, terminalreporter, exitstatus):
        say = terminalreporter.write_line
        for reason, number in self._skipped.most_common():
            say(f"skipped, {number} {'test' if number == 1 else 'tests'}: {reason}")
        for worker in self._lost:
            say(f"a worker of the tests died: {worker}", red=True)
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            say(
                "no test ran: every worker died, or no test has the given name and "
                "mark; `python -m pytest tests/test_imports.py` runs one file alone",
                red=True,
            )

    def _say(self, line: str):
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(line)


def record(
    seconds: dict[str, float], shared: dict[str, float], *, is_whole: bool
) -> None:
    """Write the durations of a run; those of files that it has not run are kept.

    Args:
      seconds: seconds by test.
      shared: seconds by file, of what its tests share.
      is_whole: no test of these files was left out, so others are there no more.
    """
    files = collections.defaultdict(dict)
    for test, taken in seconds.items():
        files[test.split("::")[0]][test] = taken
    lines = {}
    for name, taken in durations().items():
        file = name.split("::")[0]
        was_run = file in files and (is_whole or name in seconds)
        if not was_run and (HERE.parent / file).exists():
            lines[name] = taken
    for file, tests in files.items():
        lines |= {t: s for t, s in tests.items() if s >= SLOW_SECONDS}
        short = [s for s in tests.values() if s < SLOW_SECONDS]
        if short:
            lines[file] = (sum(short) + shared.get(file, 0.0)) / len(short)
    DURATIONS.write_text(
        _HEADER + "".join(f"{s:.2f} {name}\n" for name, s in sorted(lines.items()))
    )


def _reason(report) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected"
    return re.sub(r"\s+", " ", reason.removeprefix("Skipped: "))


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
