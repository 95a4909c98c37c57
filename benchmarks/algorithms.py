"""PPO and GRPO, with and without StarPO-S, side by side: success before and after.

    python -m benchmarks.algorithms --runs=runs/algorithms --json=FILE

Trains every cell of the table that is not finished yet, one after the other (at most
three minutes each on 2 idle cores), then prints the table. Stop it and start it again
as you like: each cell is a run folder, and runs resume. `--table` only prints. The file
gets every finished run, as it finishes.
"""

import itertools
import json
import math
import pathlib
import statistics
import subprocess
import sys

from absl import flags

from benchmarks import harness
from launch import command

_RUNS = flags.DEFINE_string("runs", "runs/algorithms", "Folder of the run folders.")
_ITERATIONS = flags.DEFINE_integer("iterations", 12, "Iterations of each run.")
_TABLE = flags.DEFINE_bool("table", False, "Print what is there, train nothing.")
harness.define_json()

# Task file -> seeds.
TASKS = {"sokoban": (0, 1, 2), "frozen_lake": (0,), "bandit": (0,)}
VARIANTS = ("starpo", "starpo_s")
ESTIMATORS = ("grpo", "ppo")


def cells() -> list[tuple[str, str, str, int]]:
    """Task, variant, estimator and seed of every run."""
    return [
        (task, variant, estimator, seed)
        for task, seeds in TASKS.items()
        for seed, variant, estimator in itertools.product(seeds, VARIANTS, ESTIMATORS)
    ]


def folder_of(runs: pathlib.Path, cell: tuple[str, str, str, int]) -> pathlib.Path:
    return runs / "-".join(str(part) for part in cell)


def train(runs: pathlib.Path, cell: tuple[str, str, str, int]) -> None:
    """Run or resume one cell; a finished one is left alone."""
    task, variant, estimator, seed = cell
    words = [
        *("-m", "launch.train"),
        f"--config=configs/{task}.py:pocket,{variant},{estimator}",
        f"--workdir={folder_of(runs, cell)}",
        f"--config.seed={seed}",
        f"--config.train.num_iterations={_ITERATIONS.value}",
        f"--config.evaluation.every={_ITERATIONS.value}",
    ]
    status = subprocess.run([sys.executable, *words], check=False).returncode
    if status:
        raise ValueError(f"{' '.join(words)} ended with status {status}; see above")


def outcome(folder: pathlib.Path) -> dict | None:
    """Success before and after, and what an iteration took; None: not finished."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return None
    records = [json.loads(line) for line in path.read_text().splitlines()]
    if not records or records[-1]["iteration"] < _ITERATIONS.value:
        return None
    (name,) = (k for k in records[0] if k.endswith("/success") and "val-env" in k)
    seconds = [r["timing_s/rollout"] + r["timing_s/update"] for r in records[2:]]
    return {
        "before": records[0][name],
        "after": records[-1][name],
        "num_prompts": records[0][name.replace("/success", "/num_prompts")],
        "entropy": records[-1]["actor/entropy"],
        "seconds": statistics.median(seconds),
    }


def standard_error(shares: list[float], num_prompts: float) -> float:
    """Over seeds where there are several, else that of one share of the prompts."""
    if len(shares) > 1:
        return statistics.stdev(shares) / math.sqrt(len(shares))
    return math.sqrt(shares[0] * (1 - shares[0]) / num_prompts)


def table(runs: pathlib.Path) -> str:
    """Markdown: one row per task, variant and estimator that has a finished run."""
    rows = []
    for task, variant, estimator in itertools.product(TASKS, VARIANTS, ESTIMATORS):
        done = [
            result
            for seed in TASKS[task]
            if (result := outcome(folder_of(runs, (task, variant, estimator, seed))))
        ]
        if not done:
            continue
        after = [result["after"] for result in done]
        error = standard_error(after, done[0]["num_prompts"])
        mean = {k: statistics.mean(result[k] for result in done) for k in done[0]}
        rows.append(
            {
                "game": task,
                "variant": variant,
                "estimator": estimator,
                "seeds": len(done),
                "success before": f"{mean['before']:.1%}",
                "after": f"{mean['after']:.1%}",
                "standard error": f"{100 * error:.1f}",
                "entropy after": f"{mean['entropy']:.2f}",
                "median s/iteration": f"{mean['seconds']:.1f}",
            }
        )
    return harness.table(rows)


def main(_: list[str]) -> int:
    runs = pathlib.Path(_RUNS.value)
    for cell in cells():
        if not _TABLE.value and outcome(folder_of(runs, cell)) is None:
            print(f"--- {' '.join(map(str, cell))}", flush=True)
            train(runs, cell)
        folders = (folder_of(runs, cell) for cell in cells())
        finished = {folder.name: outcome(folder) for folder in folders}
        harness.write_json({name: of for name, of in finished.items() if of})
    print(table(runs))
    return 0


if __name__ == "__main__":
    command.run(main)
