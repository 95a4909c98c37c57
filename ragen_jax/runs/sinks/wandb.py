"""Weights & Biases: a run of theirs for each run folder.

Their environment variables hold (`WANDB_MODE=offline`, `WANDB_PROJECT`, `WANDB_NAME`,
`WANDB_API_KEY`). Their local files are in `wandb/` of the run folder.
"""

import os

import wandb

from ragen_jax.runs.sinks.base import OpenedRun, Record, Sink, numbers


class WandbRun(Sink):
    """Scalars by iteration, lists as histograms, settings as their config.

    A resumed run goes on under its id. Steps that were sent before a kill are kept as
    they were: theirs only grow.
    """

    def __init__(self, run: OpenedRun):
        is_known = any(run.workdir.glob(f"wandb/*run-*-{run.run_id}"))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "ragen_jax"),
            name=os.environ.get("WANDB_NAME", run.workdir.resolve().name),
            id=run.run_id,
            resume="allow",
            dir=str(run.workdir),
            config=dict(run.settings),
            # A sweep has several runs in a process.
            reinit="create_new",
            # The console is the run's.
            settings=wandb.Settings(console="off"),
        )
        if not is_known:
            for record in run.records:
                self.write(record)

    def write(self, record: Record) -> None:
        lists = {
            name: wandb.Histogram(value)
            for name, value in record.items()
            if isinstance(value, list) and value
        }
        self._run.log(numbers(record) | lists, step=record["iteration"])

    def close(self) -> None:
        self._run.finish()
