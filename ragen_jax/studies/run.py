"""Runs the arms of studies and keeps what came of them.

In: arms with their configurations. Out: `runs/ARM.json` in the folder of the results,
for every arm whose seeds are all done. Arms are trained as a sweep, several runs at a
time; an interrupted study goes on where it was.
"""

import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from ragen_jax.evaluation.harness import policy_evaluations
from ragen_jax.evaluation.load import open_trained, restore_state
from ragen_jax.runs import reader
from ragen_jax.runs.progress import working
from ragen_jax.sft.train import train as fine_tune
from ragen_jax.studies.arms import GAMES, Arm
from ragen_jax.studies.measures import SUCCESS
from ragen_jax.studies.records import (
    ArmRecord,
    RunRecord,
    arm_file,
    read_arm,
    read_run,
    write_arm,
)
from ragen_jax.sweeps.grid import Cell
from ragen_jax.sweeps.results import is_finished, run_folder
from ragen_jax.sweeps.sweep import say_failures, train_cells
from ragen_jax.tables.rules import flatten

_SCORES = "scores.json"


def run_arms(
    arms: Sequence[tuple[Arm, ConfigDict]], workdir: pathlib.Path, output: pathlib.Path
) -> int:
    """Run what has no record yet, and write the records.

    Args:
      arms: each with its configuration, of `launch.train` or of `launch.sft`.
      workdir: folder of the run folders.
      output: folder of the results.

    Returns:
      Exit status: 0 when all arms have their records, 1 when runs failed, 143 (or 130)
      when a signal stopped them and they were saved.

    Raises:
      ValueError: a configuration is not valid, or the record of an arm was made under
        other settings.
    """
    due = [pair for pair in arms if not _is_done(output, *pair)]
    cells = [
        (Cell(arm.name, arm.label, {}, config), arm.seeds)
        for arm, config in due
        if not arm.is_sft
    ]
    status, failures = train_cells(cells, workdir)
    for arm, config in due:
        folders = [run_folder(workdir, arm.name, seed) for seed in arm.seeds]
        if arm.is_sft:
            status = status or _fine_tune(arm, config, folders)
            is_complete = all((folder / _SCORES).is_file() for folder in folders)
        else:
            is_complete = all(
                is_finished(folder, _with_seed(config, seed))
                for seed, folder in zip(arm.seeds, folders, strict=True)
            )
        if status in (0, 1) and is_complete:
            _keep(arm, config, folders, output)
    say_failures(failures)
    return status


def _is_done(output: pathlib.Path, arm: Arm, config: ConfigDict) -> bool:
    """Whether an arm has a record of all its seeds under these settings.

    Raises:
      ValueError: it has one under others.
    """
    record = read_arm(output, arm.name)
    if record is None:
        return False
    old, new = record.settings, _settings(config)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            raise ValueError(
                f"{arm_file(output, arm.name)} was made with {key} = {old.get(key)}, "
                f"now it is {new.get(key)}. Settings change for all studies together: "
                "delete the folder to run them again, or use another --output"
            )
    return {run.seed for run in record.runs} >= set(arm.seeds)


def _settings(config: ConfigDict) -> dict[str, Any]:
    """The configuration by dotted key, as JSON reads it back, without the seed."""
    leaves = json.loads(json.dumps(flatten(config)))
    return {key: value for key, value in leaves.items() if key != "seed"}


def _with_seed(config: ConfigDict, seed: int) -> ConfigDict:
    return Cell("", "", {}, config).with_seed(seed)


def _keep(
    arm: Arm, config: ConfigDict, folders: Sequence[pathlib.Path], output: pathlib.Path
) -> None:
    """Write the record of an arm; its checkpoints are not needed any more."""
    if arm.is_sft:
        runs = [
            _read_fine_tuned(arm, *pair)
            for pair in zip(arm.seeds, folders, strict=True)
        ]
    else:
        suites = _play_suite(arm, folders)
        game = GAMES[arm.game]
        runs = [
            read_run(folder, game, scores)
            for folder, scores in zip(folders, suites, strict=True)
        ]
    write_arm(output, arm.name, ArmRecord(_settings(config), runs))
    for folder in folders:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _play_suite(arm: Arm, folders: Sequence[pathlib.Path]) -> list[dict[str, float]]:
    """Success of every run by entry of the suite; the programs are compiled once."""
    scores: list[dict[str, float]] = [{} for _ in folders]
    if not arm.suite:
        return scores
    with working(f"{arm.label}: playing {', '.join(arm.suite)}"):
        trained = open_trained(folders[0], None)
        evaluations = policy_evaluations(trained, arm.game)
        for folder, own in zip(folders, scores, strict=True):
            _, state = restore_state(trained.program, folder)
            params = trained.program.play_params(state)
            for evaluation in evaluations:
                if evaluation.name in arm.suite:
                    own[evaluation.name] = evaluation.play(params).metrics["success"]
    return scores


def _fine_tune(arm: Arm, config: ConfigDict, folders: Sequence[pathlib.Path]) -> int:
    """Fine-tune every seed that has no scores yet; returns the exit status."""
    for seed, folder in zip(arm.seeds, folders, strict=True):
        if (folder / _SCORES).is_file() and "after" in _read_scores(folder):
            continue
        print(f"{arm.label} seed {seed}")
        if status := fine_tune(_with_seed(config, seed), folder):
            return status
    return 0


def _read_scores(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / _SCORES).read_text("utf-8"))


def _read_fine_tuned(arm: Arm, seed: int, folder: pathlib.Path) -> RunRecord:
    scores, records = _read_scores(folder), reader.read_metrics(folder)
    success = {
        iteration: scores[when][arm.game]["success"]
        for iteration, when in ((0, "before"), (records[-1]["iteration"], "after"))
    }
    # The first step compiles.
    steps = [record["time"] for record in records]
    per_step = (steps[-1] - steps[0]) / (len(steps) - 1)
    return RunRecord(
        seed=seed, seconds=round(per_step * len(steps), 1), curves={SUCCESS: success}
    )
