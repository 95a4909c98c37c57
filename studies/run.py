"""Runs the arms of studies and keeps what came of them.

In: arms with their configurations. Out: `runs/ARM.json` in the folder of the results,
for every arm whose seeds are all done. Arms are trained as a sweep, several runs at a
time; run the command again to resume an interrupted study.
"""

import itertools
import json
import pathlib
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from ragen_jax.config import changed_keys, renew
from ragen_jax.evaluation.harness import policy_evaluations
from ragen_jax.evaluation.load import open_trained, restore_policy
from ragen_jax.runs import reader
from ragen_jax.runs.progress import working
from ragen_jax.runs.writer import write_text_atomically
from ragen_jax.sft.train import train as fine_tune
from ragen_jax.sweeps.grid import Cell
from ragen_jax.sweeps.results import is_finished, run_folder
from ragen_jax.sweeps.sweep import report_failures, train_cells
from studies.arms import GAMES, Arm
from studies.measures import SUCCESS
from studies.records import (
    ArmRecord,
    RunRecord,
    arm_file,
    read_arm,
    read_run,
    write_arm,
)

# The scores of `launch.sft`, and ours: success by entry of a suite.
_SCORES, _SUITE = "scores.json", "suite.json"


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
    due = [(arm, config) for arm, config in arms if not is_kept(output, arm, config)]
    trained = [(arm, config) for arm, config in due if not arm.is_sft]
    cells = [
        (Cell(arm.name, arm.label, {}, config), arm.seeds) for arm, config in trained
    ]
    status, failures = train_cells(cells, workdir)
    if status > 1:
        return status
    report_failures(failures)
    # Others may succeed when the command is run again.
    failed = {f.run.folder: f.sentence for f in failures if f.has_diverged}
    for arm, config in trained:
        folders = _folders(arm, workdir)
        done = {
            seed: folder
            for seed, folder in folders.items()
            if is_finished(folder, Cell("", "", {}, config).with_seed(seed))
        }
        lost = {s: failed[f] for s, f in folders.items() if f in failed}
        if done.keys() | lost.keys() == folders.keys():
            _keep(arm, config, _read_trained(arm, done), lost, folders, output)
    for arm, config in due:
        if arm.is_sft:
            folders = _folders(arm, workdir)
            if stopped := _fine_tune(arm, config, folders):
                return stopped
            runs = [_read_fine_tuned(arm, *pair) for pair in folders.items()]
            _keep(arm, config, runs, {}, folders, output)
    return status


def is_kept(output: pathlib.Path, arm: Arm, config: ConfigDict) -> bool:
    """Whether an arm has a record of all its seeds under these settings.

    Raises:
      ValueError: it has one under others.
    """
    record = read_arm(output, arm.name)
    if record is None:
        return False
    old = renew(ConfigDict(dict(record.settings) | {"seed": config.seed}))
    for key, (before, now) in changed_keys(old, config, free=()).items():
        raise ValueError(
            f"{arm_file(output, arm.name)} was made with {key} = {before}, now it is "
            f"{now}. Settings change for all studies together: delete the folder to "
            "run them again, or use another --output"
        )
    return record.seeds >= set(arm.seeds)


def _folders(arm: Arm, workdir: pathlib.Path) -> dict[int, pathlib.Path]:
    return {seed: run_folder(workdir, arm.name, seed) for seed in arm.seeds}


def _keep(
    arm: Arm,
    config: ConfigDict,
    runs: Sequence[RunRecord],
    failed: Mapping[int, str],
    folders: Mapping[int, pathlib.Path],
    output: pathlib.Path,
) -> None:
    """Write the record of an arm; its checkpoints are not needed any more."""
    settings = {k: v for k, v in config.to_dict().items() if k != "seed"}
    write_arm(output, arm.name, ArmRecord(settings, runs, failed))
    for folder in folders.values():
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _read_trained(arm: Arm, folders: Mapping[int, pathlib.Path]) -> list[RunRecord]:
    _play_suite(arm, folders.values())
    return [
        read_run(
            folder, GAMES[arm.game], _read_json(folder / _SUITE) if arm.suite else {}
        )
        for folder in folders.values()
    ]


def _play_suite(arm: Arm, folders: Iterable[pathlib.Path]) -> None:
    """Write success by entry of the suite beside every run that lacks it."""
    due = [folder for folder in folders if not (folder / _SUITE).is_file()]
    if not arm.suite or not due:
        return
    with working(f"{arm.label}: playing {', '.join(arm.suite)}"):
        trained = open_trained(due[0], None)
        # Compiled once for all runs.
        evaluations = policy_evaluations(trained, arm.game)
        for folder in due:
            _, policy = restore_policy(trained.program, folder)
            params = trained.program.play_params(policy)
            scores = {
                evaluation.name: evaluation.play(params).metrics["success"]
                for evaluation in evaluations
                if evaluation.name in arm.suite
            }
            write_text_atomically(folder / _SUITE, json.dumps(scores) + "\n")


def _fine_tune(
    arm: Arm, config: ConfigDict, folders: Mapping[int, pathlib.Path]
) -> int:
    """Fine-tune every seed that has no scores yet; returns the exit status."""
    for seed, folder in folders.items():
        path = folder / _SCORES
        whole = Cell("", "", {}, config).with_seed(seed)
        is_scored = path.is_file() and "after" in _read_json(path)
        # One of other settings is refused there.
        if is_scored and not changed_keys(reader.read_config(folder), whole, free=()):
            continue
        print(f"{arm.label}, seed {seed}")
        if status := fine_tune(whole, folder):
            return status
    return 0


def _read_fine_tuned(arm: Arm, seed: int, folder: pathlib.Path) -> RunRecord:
    scores, records = _read_json(folder / _SCORES), reader.read_metrics(folder)
    success = {
        iteration: scores[when][arm.game]["success"]
        for iteration, when in ((0, "before"), (records[-1]["iteration"], "after"))
    }
    # The first step compiles, and the run may have rested in between.
    times = [record["time"] for record in records]
    per_step = statistics.median(b - a for a, b in itertools.pairwise(times))
    return RunRecord(
        seed=seed, seconds=round(per_step * len(times), 1), curves={SUCCESS: success}
    )


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))
