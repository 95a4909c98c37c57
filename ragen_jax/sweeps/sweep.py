"""Several runs in one process: a grid of settings, each with several seeds.

In: cells and seeds. Out: a run folder for each pair, bit for bit that of
`ragen_jax.train`, and the results of all. Runs share programs where they can, see
`programs`. On a CPU several small runs train at a time, each on its own thread: one
computes while others wait. Results do not depend on that.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from ragen_jax.devices.heartbeat import watch_processes
from ragen_jax.runs.folder import Diverged
from ragen_jax.runs.progress import working
from ragen_jax.runs.stop import StopRequest
from ragen_jax.sweeps import results
from ragen_jax.sweeps.console import RunDisplay, SweepDisplay
from ragen_jax.sweeps.grid import Cell, check_cells, named
from ragen_jax.sweeps.programs import Programs, check_program, play_key, program_key
from ragen_jax.terminal import say
from ragen_jax.train import run_program


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run that is not finished yet.

    Attributes:
      title: its name on the console: "run 3/10: learning_rate=0.0001 seed 2".
      cell, seed, folder, config: of the run.
    """

    title: str
    cell: Cell
    seed: int
    folder: pathlib.Path
    config: ConfigDict


class Failure(NamedTuple):
    """A run that failed.

    Attributes:
      run: which.
      sentence: why.
      has_diverged: it would fail again; otherwise the machine or another process may
        be the cause.
    """

    run: PlannedRun
    sentence: str
    has_diverged: bool


def sweep(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    workdir: pathlib.Path,
    overrides: Collection[str] = (),
) -> int:
    """Train every cell with every seed, resume what was begun, write the results.

    Args:
      cells, seeds: of the sweep.
      workdir: folder of the run folders.
      overrides: dotted paths that were set for all cells.

    Returns:
      Exit status: 0 when all runs are finished, 1 when some failed, 143 (or 130) when a
      signal stopped them and they were saved.

    Raises:
      ValueError: a cell cannot be trained; nothing has been written.
    """
    results.check_folder(workdir)
    status, failures = train_cells([(c, seeds) for c in cells], workdir, overrides)
    if status in (0, 1):
        with working("reading the runs"):
            text = results.write_results(workdir, results.read_results(workdir))
        say(text)
    report_failures(failures)
    return status


def report_failures(failures: Sequence[Failure]) -> None:
    """Print the failed runs and the reasons on standard error."""
    if failures:
        print(f"runs that failed: {len(failures)}", file=sys.stderr)
    for failure in failures:
        say(f"  {failure.run.title}: {failure.sentence}", sys.stderr)


def train_cells(
    cells: Sequence[tuple[Cell, Sequence[int]]],
    workdir: pathlib.Path,
    overrides: Collection[str] = (),
) -> tuple[int, Sequence[Failure]]:
    """Train every cell with its seeds, and resume what was begun.

    Returns:
      Exit status, see `sweep`, and the runs that failed.

    Raises:
      ValueError: a cell cannot be trained; nothing has been written.
    """
    check_cells([cell for cell, _ in cells], overrides)
    runs, failures = plan(cells, workdir), []
    if runs:
        with working("checking the settings"):
            run_concurrently = _check_programs(runs)
        num_iterations = {run.title: run.config.train.num_iterations for run in runs}
        with (
            SweepDisplay(num_iterations) as display,
            StopRequest(display.say) as stop,
        ):
            session = _Session(display, stop)
            for count, group in itertools.groupby(
                runs, lambda run: run_concurrently[program_key(run.config)]
            ):
                session.train(list(group), count)
        if stop.requested:
            print("run the same command again to continue the sweep")
            return stop.exit_status, []
        failures = session.failures
    return int(bool(failures)), failures


def plan(
    cells: Sequence[tuple[Cell, Sequence[int]]], workdir: pathlib.Path
) -> list[PlannedRun]:
    """The runs that are not finished, grouped by what they share: rollouts, programs.

    Args:
      cells: validated, each with its seeds.
      workdir: of the sweep.
    """
    pairs = [
        (cell, seed, cell.with_seed(seed)) for cell, seeds in cells for seed in seeds
    ]
    groups: dict[str, dict[str, list]] = {}
    for pair in pairs:
        alike = groups.setdefault(play_key(pair[2]), {})
        alike.setdefault(program_key(pair[2]), []).append(pair)
    ordered = [
        p for alike in groups.values() for group in alike.values() for p in group
    ]
    runs = []
    for i, (cell, seed, config) in enumerate(ordered, 1):
        folder = results.run_folder(workdir, cell.name, seed)
        label = f"{cell.label} " if cell.label else ""
        title = f"run {i}/{len(ordered)}: {label}seed {seed}"
        if not results.is_finished(folder, config):
            runs.append(PlannedRun(title, cell, seed, folder, config))
    return runs


def _pipelined(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Runs grouped by program, but the first run of the next program comes early.

    It compiles on one core while the runs of the compiled program train.
    """
    first, *others = _by_program(runs).values()
    ordered, waiting = first[:1], first[1:]
    for group in others:
        ordered += [group[0], *waiting]
        waiting = group[1:]
    return ordered + waiting


def _by_program(runs: Sequence[PlannedRun]) -> dict[str, list[PlannedRun]]:
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(program_key(run.config), []).append(run)
    return groups


def _check_programs(runs: Sequence[PlannedRun]) -> dict[str, int]:
    """Runs to train at a time, by program.

    Raises:
      ValueError: names the first cell whose program cannot be built.
    """
    run_concurrently = {}
    for key, group in _by_program(runs).items():
        try:
            run_concurrently[key] = check_program(group[0].config)
        except ValueError as error:
            raise named(group[0].cell, error) from error
    return run_concurrently


class _Session:
    """The runs of one process.

    Args:
      display: of the sweep.
      stop: request to stop it.

    Attributes:
      failures: runs that failed.
      requested, agree, exit_status: of `stop`; also after a defect in a run.
    """

    def __init__(self, display: SweepDisplay, stop: StopRequest):
        self._display, self._stop = display, stop
        self._programs, self._has_defect = Programs(), False
        self.failures: list[Failure] = []

    @property
    def requested(self) -> bool:
        return self._stop.requested or self._has_defect

    def agree(self) -> bool:
        return self.requested

    @property
    def exit_status(self) -> int:
        return self._stop.exit_status

    def train(self, runs: Sequence[PlannedRun], run_concurrently: int) -> None:
        """Train runs in their order, `run_concurrently` at a time."""
        if run_concurrently == 1 or len(runs) == 1:
            for run in runs:
                self._train(run)
            return
        # The program in use, and the next one, which is compiled meanwhile.
        self._programs = Programs(num_kept=2)
        runs, is_compiled = _pipelined(runs), {}
        with concurrent.futures.ThreadPoolExecutor(run_concurrently) as threads:
            futures, last = [], None
            for run in runs:
                key = program_key(run.config)
                # The first run of a program compiles it for the others. It waits for
                # the program before it, with which it may share compiled parts.
                before = is_compiled.get(key, last)
                if key not in is_compiled:
                    last = is_compiled[key] = threading.Event()
                wait = None if before is None else before.wait
                futures.append(
                    threads.submit(self._train, run, is_compiled[key].set, wait)
                )
            for future in concurrent.futures.as_completed(futures):
                future.result()

    def _train(
        self,
        run: PlannedRun,
        on_iteration: Callable[[], object] = lambda: None,
        wait: Callable[[], object] | None = None,
    ) -> None:
        """Train one run; a failure is recorded."""
        try:
            if wait is not None:
                wait()
            if self.requested:
                return
            self._display.say(run.title)
            with watch_processes(run.folder, run.config.train.stall_seconds) as watch:
                watch.at(f"{run.title}, loading the model and the games")
                program = self._programs.start(run.config)
                watch.at(f"{run.title}, opening the run folder")
                make_display = functools.partial(
                    self._run_display, run.title, on_iteration, watch.at
                )
                status = run_program(
                    run.config,
                    program,
                    run.folder,
                    make_display=make_display,
                    make_stop=lambda _: contextlib.nullcontext(self),
                )
        except (ValueError, OSError) as error:
            # The failed run may have left processes of host games in its program.
            self._programs.forget()
            failure = Failure(run, str(error), isinstance(error, Diverged))
            self.failures.append(failure)
            self._end(run, f"failed: {error}")
        except BaseException:
            self._has_defect = True
            raise
        else:
            if status == 0:
                result = results.read_result(run.folder, run.cell.name)
                self._end(run, f"{results.describe(result)}")
        finally:
            on_iteration()

    def _run_display(
        self, title: str, on_iteration, on_stage, _names, *, start, total, **_
    ) -> RunDisplay:
        return RunDisplay(
            self._display, title, on_iteration, on_stage, start=start, total=total
        )

    def _end(self, run: PlannedRun, text: str) -> None:
        self._display.expect(run.title, 0)
        self._display.say(f"{run.title}: {text}{self._display.time_left()}")
