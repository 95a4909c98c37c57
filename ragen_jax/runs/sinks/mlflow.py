"""MLflow: a run of theirs for each run folder, found again by a tag.

Their environment variables hold (`MLFLOW_TRACKING_URI`, a server or a local store such
as sqlite:///mlflow.db, and `MLFLOW_EXPERIMENT_NAME`).
"""

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from ragen_jax.runs.sinks.base import OpenedRun, Record, Sink, numbers

_TAG = "ragen_jax_run_id"
# Most parameters of one request, and most metrics.
_PARAMS, _METRICS = 100, 1000
# Most characters of a parameter, for every store.
_LONGEST = 500
# Runs of a sweep open in threads; the experiment is made once.
_OPENING = threading.Lock()


class MlflowRun(Sink):
    """Scalars by iteration, settings as parameters of the start.

    A resumed run goes on in its run of theirs. Points that were sent before a kill
    stand twice.
    """

    def __init__(self, run: OpenedRun):
        self._client = MlflowClient()
        with _OPENING:
            experiment = self._experiment()
        found = self._client.search_runs(
            [experiment], f"tags.{_TAG} = '{run.run_id}'", max_results=1
        )
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        made = self._client.create_run(
            experiment, run_name=run.workdir.resolve().name, tags={_TAG: run.run_id}
        )
        self._id = made.info.run_id
        params = [Param(k, str(v)[:_LONGEST]) for k, v in run.settings.items()]
        for batch in _batches(params, _PARAMS):
            self._client.log_batch(self._id, params=batch)
        for record in run.records:
            self.write(record)

    def write(self, record: Record) -> None:
        when = record.get("time") or time.time()
        metrics = [
            Metric(_allowed(name), value, int(1000 * when), record["iteration"])
            for name, value in numbers(record).items()
        ]
        for batch in _batches(metrics, _METRICS):
            self._client.log_batch(self._id, metrics=batch)

    def close(self) -> None:
        self._client.set_terminated(self._id)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ragen_jax")
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        return self._client.create_experiment(name)


def _batches(values: Sequence, size: int) -> Iterator[Sequence]:
    return (values[i : i + size] for i in range(0, len(values), size))


def _allowed(name: str) -> str:
    """A metric's name in the characters that MLflow takes: pass@8 is pass_8."""
    return re.sub(r"[^\w\-. :/]", "_", name)
