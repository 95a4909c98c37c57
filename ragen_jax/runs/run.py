"""The run folder of reinforcement learning: resuming, recording, judging, saving.

In: a configuration, a folder and a fresh train state. Out: the files of `runs.folder`,
with alarms among the metrics, and reasons to stop early.
"""

import contextlib
import hashlib
import importlib.util
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from ragen_jax.config import VALIDATION_SETTINGS
from ragen_jax.devices.exchange import to_host
from ragen_jax.diagnostics.early_stopping import stop_reason, stuck_note
from ragen_jax.diagnostics.early_warning import EarlyWarning, lead_times
from ragen_jax.learner.state import TrainState
from ragen_jax.registry.settings import flatten
from ragen_jax.runs import best
from ragen_jax.runs.console import command_name
from ragen_jax.runs.folder import Diverged, RunFolder
from ragen_jax.runs.metrics import BEST, TimeShares, tokens_per_second
from ragen_jax.runs.sinks.opened import load_sinks
from ragen_jax.runs.writer import finite_or_none

SAMPLER_DIFFERENCE = "actor/sampler_log_prob_difference"


class Run(RunFolder):
    """Run folder of `ragen_jax.train`: with alarms, and reasons to stop early.

    Use it as a context manager.

    Args:
      config: validated.
      workdir: the run folder.
      state: of a fresh run; its buffers are freed when a checkpoint is restored.
      identity: of the model, see `hf.files.identity`.
      names: of the tasks, as metrics call them.

    Attributes:
      start: iterations already done.
      state: the train state to continue from.
    """

    def __init__(
        self,
        config: ConfigDict,
        workdir: pathlib.Path,
        state: TrainState,
        identity: Mapping[str, Any],
        names: Sequence[str],
    ):
        super().__init__(workdir, config, identity, keep=config.checkpoint.keep)
        self._names = tuple(names)
        self._num_rows = config.rollout.num_groups * config.rollout.group_size
        self._validation = {name: f"val-env/{name}/" for name in names}
        self._training_success = [f"train/{name}/success" for name in names]
        # If a later step fails, what is already open is closed.
        with contextlib.ExitStack() as files:
            files.callback(self._files.close)
            self._check_start()
            # Before anything is written.
            load_sinks(config.logging.sinks or ())
            self.state = self.restore(state)
            self._records: list[Mapping] = self.open_record(
                sinks=config.logging.sinks or (),
                settings=flatten(config),
                games=names,
            )
            self._check_best()
            self._time_shares = TimeShares()
            for record in self._records:
                self._time_shares.add(record)
            self._warning = EarlyWarning(**config.warning)
            self._outlook = self._warning.look(self._records)
            files.pop_all()

    def _check_start(self) -> None:
        train = self._config.train
        if self.start > train.num_iterations:
            raise ValueError(
                f"{self.path} has {self.start} iterations already, more than "
                f"train.num_iterations = {train.num_iterations}; raise it"
            )

    def _check_best(self) -> None:
        """Refuse an unknown metric; forget a best checkpoint whose files are gone."""
        if (metric := self._config.checkpoint.keep_best) is not None:
            best.check(self._records, metric, self._names)
        iteration = best.best_iteration(self._records)
        if iteration is None or self.has_checkpoint(iteration):
            return
        self._records = [{k: r[k] for k in r if k != BEST} for r in self._records]
        self.notes.append(
            f"note: the best checkpoint, of iteration {iteration}, is not in "
            f"{self.path} any more; the next evaluation counts as the best so far"
        )

    @property
    def records(self) -> Sequence[Mapping[str, float | None]]:
        """Metrics of the iterations so far, oldest first."""
        return self._records

    def record(
        self,
        iteration: int,
        metrics: Mapping[str, float],
        distributions: Mapping[str, Sequence[float]] | None = None,
    ) -> list[str]:
        """Append the metrics of an iteration, and the alarms that they raise.

        Args:
          iteration, metrics: what is recorded.
          distributions: lists of numbers behind some of the metrics.

        Returns:
          Lines for the console: metrics that are not finite, new alarms, and what it
          means if nothing succeeds.

        Raises:
          ValueError: evaluations do not measure `checkpoint.keep_best`.
        """
        metrics = metrics | tokens_per_second(metrics, self._num_rows)
        metrics |= self._time_shares.add(metrics)
        # As a resumed run reads it back, so that both judge alike.
        finite = {name: finite_or_none(value) for name, value in metrics.items()}
        self._records.append({"iteration": iteration} | finite)
        self._outlook = self._warning.look(self._records)
        added = dict(self._outlook.metrics)
        if (metric := self._config.checkpoint.keep_best) is not None:
            added |= best.judge(self._records, metric, self._names)
        self._records[-1] |= added
        metrics = metrics | added
        news = self.write_metrics(iteration, metrics, distributions)
        stuck = stuck_note(self._records, self._training_success)
        return news + self._outlook.news + ([stuck] if stuck else [])

    @property
    def is_best(self) -> bool:
        """The policy after the last recorded iteration evaluated best so far."""
        return best.is_best(self._records)

    def save(self, iteration: int, state: TrainState) -> None:
        """See `RunFolder.save`; the best checkpoint so far is kept."""
        super().save(iteration, state, best=best.best_iteration(self._records))

    def scale_learning_rate(self, state: TrainState) -> TrainState:
        """The state with the learning rate that follows from the alarms.

        It depends on the record alone, so that a resumed run has the same.
        """
        if state.rate_scale is None:
            return state
        scale = np.float32(self._outlook.learning_rate_scale)
        return state.replace(
            rate_scale=jax.device_put(scale, state.rate_scale.sharding)
        )

    def check_health(
        self, metrics: Mapping[str, float], state: TrainState
    ) -> str | None:
        """Reason to end the run early; None: it goes on.

        Args:
          metrics: of the last recorded iteration.
          state: after it.

        Raises:
          ValueError: too many non-finite gradients in a row, or a state that is not
            finite.
        """
        if not all(map(math.isfinite, metrics.values())):
            self.check_state(self._records[-1]["iteration"], state)
        train = self._config.train
        skipped = int(metrics["actor/consecutive_skipped"])
        if skipped >= train.max_skipped_updates:
            raise Diverged(
                f"{skipped} updates in a row had a non-finite gradient; export the "
                f"last checkpoint ({command_name('export')} --run={self.path} "
                "--output=FOLDER) and start a new --workdir from it "
                "(--config.model.path=FOLDER) with a lower optimizer.learning_rate"
            )
        self._check_sampler(metrics)
        return self.reason_to_stop()

    def _check_sampler(self, metrics: Mapping[str, float]) -> None:
        """Refuse to go on when learner and sampler are not the same policy."""
        config, difference = self._config, metrics[SAMPLER_DIFFERENCE]
        bound = config.train.max_sampler_difference
        is_measured = config.learner.updates_per_rollout == 1
        is_measured = is_measured and not config.rollout.ahead
        if bound is not None and is_measured and difference > bound:
            raise Diverged(
                f"the learner's log-probabilities differ from the sampler's by "
                f"{difference:.2g} on average, more than train.max_sampler_difference "
                f"= {bound:g}, so that ratios would compare two policies; 1e-6 is "
                "rounding in float32 and 0.02 in bfloat16: raise the bound if it is "
                "tighter than that, else start a new --workdir with "
                "--config.loss.old_log_probs=learner or --config.model.dtype=float32"
            )

    def reason_to_stop(self) -> str | None:
        """Reason in the record to end the run early, or None.

        `train` also asks before the first iteration of a resumed run, so that a run
        that was stopped early stays stopped.
        """
        train = self._config.train
        return self._outlook.stop_reason or stop_reason(
            self._records,
            success_names=[f"{p}success" for p in self._validation.values()],
            max_empty_iterations=train.max_empty_iterations,
            min_spread_fraction=train.min_spread_fraction,
            collapse_window=train.collapse_window,
            min_success=train.min_success,
            failure_window=train.failure_window,
        )

    def conclude(self, state: TrainState) -> str:
        """Put everything on disk, with the digest of the final parameters.

        Returns:
          Text: success before and after, the digest, what to do next.
        """
        self.finish()
        sha256 = digest(state.params)
        self.record_result(self._records[-1]["iteration"], sha256)
        gains = {n: _gain(self._records, p) for n, p in self._validation.items()}
        success = "; ".join(gains.values())
        if len(gains) > 1:
            success = "\n".join(f"{n}: {gain}" for n, gain in gains.items())
        files = ["config.json", "metrics.jsonl", "checkpoints/"]
        if self._config.logging.trajectories_every is not None:
            files.append("trajectories/")
        has_events = "tensorboard" in (self._config.logging.sinks or ())
        if has_events:
            files.append("TensorBoard events")
        warning = self._config.warning
        leads = lead_times(
            self._records,
            success_window=warning.success_window,
            success_low=warning.success_low,
        ).describe()
        return (
            f"{leads}{success}\n{self._describe_best()}"
            f"params sha256 {sha256}\n"
            f"everything is in {self.path}: {', '.join(files)}\n"
            "next: a report, a game to watch"
            f"{', the curves in TensorBoard' * has_events}\n"
            f"  {command_name('report')} {self.path}\n"
            f"  {command_name('play')} --run={self.path} --player=policy"
            f"{_tensorboard_line(self.path) * has_events}"
        )

    def _describe_best(self) -> str:
        """Lines about the best checkpoint; "" where none was looked for."""
        metric = self._config.checkpoint.keep_best
        if metric is None or best.best_iteration(self._records) is None:
            return ""
        return (
            f"{best.describe(self._records, metric, self._names)}\n"
            f"  {command_name('evaluate')} --run={self.path} --checkpoint=best\n"
        )


def _tensorboard_line(path: pathlib.Path) -> str:
    is_there = importlib.util.find_spec("tensorboard") is not None
    hint = "" if is_there else "  (pip install tensorboard)"
    return f"\n  tensorboard --logdir={path}{hint}"


def _gain(records: Sequence[Mapping], prefix: str) -> str:
    """Text with the success of the first and the last evaluation.

    Evaluation settings may change when a run resumes. The text then says that the two
    measurements cannot be compared.
    """
    measured = [r for r in records if r.get(f"{prefix}success") is not None]
    if not measured:
        return "done (no evaluation asked for)"
    before, after = (
        f"{r[f'{prefix}success']:.1%}" for r in (measured[0], measured[-1])
    )
    settings = [
        ", ".join(
            f"{name} {record[prefix + name]:g}"
            for name in VALIDATION_SETTINGS
            if prefix + name in record
        )
        for record in (measured[0], measured[-1])
    ]
    what = "held-out success"
    if measured[-1].get(f"{prefix}held_out") == 0:
        what = "success on validation levels (training may play them, too)"
    if settings[0] == settings[1]:
        return f"{what} {before} -> {after}"
    return (
        f"{what} {before} ({settings[0]}) before, {after} ({settings[1]}) "
        "after: different measurements, do not compare them"
    )


def digest(tree) -> str:
    """SHA-256 over the bytes of every leaf, in the tree's order; together."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        sha.update(np.ascontiguousarray(to_host(leaf)).tobytes())
    return sha.hexdigest()
