"""A run folder: lock, configuration, record and checkpoints, kept consistent.

In: a configuration, a folder and a model's identity. Out: the files of `runs.writer`
and `runs.checkpoint`. A checkpoint is only made once the record up to its iteration is
durable. Knows no algorithm: `runs.run` is the run folder of reinforcement learning,
`sft` uses this class as it is.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool
from ml_collections import ConfigDict

from ragen_jax.config import changed_keys, to_json
from ragen_jax.devices import exchange
from ragen_jax.learner.state import TrainState
from ragen_jax.runs import checkpoint, machine, reader, writer
from ragen_jax.runs.console import command_name

# Names of metrics on a line of the console.
_MAX_NAMES = 4


class RunFolder:
    """One run folder, locked while open. Use it as a context manager.

    Nothing is written before `open_record`.

    Args:
      workdir: the folder.
      config: validated.
      identity: of the model, see `hf.files.identity`.
      keep: newest checkpoints kept, see `Checkpointer`.
      free: beginnings of the keys that a resumed run may change; None: those of
        training.

    Attributes:
      path: the folder.
      start: iterations already done.
      is_resumed: there is a checkpoint.
      notes: lines for the console.

    Raises:
      ValueError: another process works in the folder, or it belongs to another
        configuration.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        config: ConfigDict,
        identity: Mapping[str, Any],
        *,
        keep: int,
        free: tuple[str, ...] | None = None,
    ):
        self.path = pathlib.Path(workdir)
        self._config, self._identity = config, identity
        self.notes: list[str] = []
        with contextlib.ExitStack() as files:
            lock = exchange.first_does(lambda: writer.open_workdir(self.path))
            if lock is not None:
                files.callback(os.close, lock)
            # A shared folder may show other hosts what it was a minute ago.
            latest = checkpoint.Checkpointer(self.path, keep=None).latest
            latest = exchange.gather(latest)[0]
            self.is_resumed = latest is not None
            self.start = latest or 0
            exchange.first_does(lambda: self._refuse_changes(free))
            exchange.first_does(self._refuse_lost_record)
            self._checkpointer = checkpoint.Checkpointer(self.path, keep=keep)
            files.callback(self._checkpointer.close)
            self._files = files.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._files.close()

    def restore(self, state: TrainState) -> TrainState:
        """The state to continue from: that of the newest checkpoint, else `state`.

        Args:
          state: of a fresh run; its buffers are freed if there is a checkpoint.
        """
        if not self.is_resumed:
            return state
        return self._checkpointer.restore(self.start, state, self._identity)

    def open_record(
        self,
        *,
        sinks: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        games: Sequence[str] = (),
    ) -> list[dict]:
        """Write config.json and open the record, cut back to the newest checkpoint.

        Args: see `RunWriter`.

        Returns:
          Metrics of the iterations that are kept, oldest first.
        """
        opened = exchange.first_does(lambda: self._open_record(sinks, settings, games))
        self._writer = opened or writer.NoWriter()
        self._files.callback(self._writer.close)
        records = reader.read_metrics(self.path) if opened else None
        return exchange.gather(records)[0]

    def _open_record(
        self,
        sinks: Sequence[str],
        settings: Mapping[str, Any] | None,
        games: Sequence[str],
    ) -> writer.RunWriter:
        before = reader.Recorded()
        if self.is_resumed:
            before = reader.read_recorded(self.path)
        self._recorded = reader.Recorded(
            machines=self._machines(before.machines),
            command=shlex.join(sys.orig_argv),
            run_id=before.run_id or uuid.uuid4().hex,
        )
        self._write_config()
        return writer.RunWriter(
            self.path,
            after=self.start if self.is_resumed else -1,
            sinks=sinks,
            run_id=self._recorded.run_id,
            settings=settings,
            games=games,
        )

    def write_metrics(
        self,
        iteration: int,
        metrics: Mapping[str, float],
        distributions: Mapping[str, Sequence[float]] | None = None,
    ) -> list[str]:
        """Append the metrics of an iteration, see `RunWriter.scalars`.

        Returns:
          At most one line for the console: the metrics that are not finite.
        """
        names = self._writer.scalars(iteration, metrics, distributions)
        if not names:
            return []
        more = len(names) - _MAX_NAMES
        listed = ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" * (more > 0))
        return [f"iteration {iteration}: not finite, recorded as null: {listed}"]

    def write_episodes(self, iteration: int, episodes: Sequence[Mapping]) -> None:
        """Write sample episodes of an iteration."""
        self._writer.episodes(iteration, episodes)

    def save(
        self, iteration: int, state: TrainState, *, best: int | None = None
    ) -> None:
        """Start a checkpoint in the background, after making the record durable.

        Args: see `Checkpointer.save`.

        Raises:
          ValueError: see `check_state`; nothing is saved.
        """
        self.check_state(iteration, state)
        self._writer.sync()
        self._checkpointer.save(iteration, state, self._identity, best=best)

    def has_checkpoint(self, iteration: int) -> bool:
        """There is a complete checkpoint of an iteration."""
        return exchange.gather(iteration in self._checkpointer.iterations)[0]

    def check_state(self, iteration: int, state: TrainState) -> None:
        """Refuse to go on from a state that is not finite.

        Raises:
          ValueError: a parameter or a moment of the optimizer is infinite or
            not-a-number.
        """
        names = non_finite_leaves(state)
        if not names:
            return
        self._checkpointer.wait()
        good = self._checkpointer.latest
        if good is None:
            way_out = "there is no checkpoint"
        else:
            folder = self.path / "checkpoints" / str(good)
            way_out = f"the newest good checkpoint is {folder}"
        raise Diverged(
            f"the train state is not finite after iteration {iteration} ({names[0]}, "
            f"{len(names)} arrays in all); nothing of it was saved, and {way_out}: "
            "start a new --workdir with a lower optimizer.learning_rate, from that "
            f"checkpoint's export ({command_name('export')} --run=FOLDER) or from the "
            "beginning"
        )

    def finish(self) -> None:
        """Return once everything is on disk."""
        self._writer.sync()
        self._checkpointer.wait()

    def record_result(self, iteration: int, params_sha256: str) -> None:
        """Add the digest of the final parameters to config.json."""
        if not exchange.is_first():
            return
        result = {"iteration": iteration, "params_sha256": params_sha256}
        self._recorded = dataclasses.replace(self._recorded, result=result)
        self._write_config()

    def _write_config(self) -> None:
        parts = dataclasses.asdict(self._recorded)
        recorded = {k: v for k, v in parts.items() if v is not None}
        content = json.loads(to_json(self._config)) | {reader.RECORDED: recorded}
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        writer.write_text_atomically(self.path / "config.json", text)

    def _refuse_changes(self, free: tuple[str, ...] | None) -> None:
        if not self.is_resumed and not (self.path / "config.json").exists():
            return
        changes = changed_keys(reader.read_config(self.path), self._config, free)
        if changes:
            listed = "; ".join(f"{k}: {a!r} -> {b!r}" for k, (a, b) in changes.items())
            raise ValueError(
                f"{self.path} holds a run with other settings ({listed}); use those "
                "settings to resume it, or another --workdir"
            )

    def _machines(
        self, machines: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Machines of the run so far and this one, each from its first iteration."""
        now = machine.describe_machine(machine.references(self._config))
        if machines:
            changes = machine.describe_difference(machines[-1], now)
            if not changes:
                return list(machines)
            self.notes.append(
                f"note: the run continues with other code or on another machine "
                f"({changes}), so its numbers may round differently than without the "
                "interruption"
            )
        return [*machines, {"from_iteration": self.start, **now}]

    def _refuse_lost_record(self) -> None:
        """A checkpoint is only made after the metrics of its iteration.

        And a run without checkpoints is begun anew, unless it has finished.
        """
        if not self.is_resumed and (self.path / "config.json").exists():
            if reader.read_recorded(self.path).result is not None:
                raise ValueError(
                    f"{self.path} holds a finished run whose checkpoints are gone; "
                    "use another --workdir, or delete the folder to train again"
                )
            return
        records = reader.read_metrics(self.path)
        iterations = [r["iteration"] for r in records if r["iteration"] <= self.start]
        if self.is_resumed and (not iterations or iterations[-1] != self.start):
            path = self.path / "metrics.jsonl"
            state = "has none of its iterations"
            if iterations:
                state = f"ends at {iterations[-1]}"
            raise ValueError(
                f"the newest checkpoint is of iteration {self.start}, but {path} "
                f"{state}; restore the file from a copy, or use another --workdir "
                "(the checkpoint itself can be evaluated and exported)"
            )


class Diverged(ValueError):
    """A run cannot go on, by what has been learned; the message says why."""


def non_finite_leaves(state: TrainState) -> list[str]:
    """Paths of the arrays of a state that hold a number that is not finite."""
    # The acting snapshot was checked as a state, or has led to this one.
    leaves, _ = jax.tree.flatten_with_path(state.replace(acting_snapshot=None))
    arrays = [leaf for _, leaf in leaves]
    if all(map(_is_in_memory, arrays)):
        are_finite = [np.isfinite(leaf).all() for leaf in jax.device_get(arrays)]
    else:
        are_finite = jax.device_get(_are_finite(arrays))
    pairs = zip(leaves, are_finite, strict=True)
    return [
        jax.tree_util.keystr(path) for (path, _), is_finite in pairs if not is_finite
    ]


def _is_in_memory(leaf: jax.Array) -> bool:
    """NumPy can read it as it is: no program to compile, nothing to copy."""
    is_on_cpu = all(device.platform == "cpu" for device in leaf.devices())
    return is_on_cpu and leaf.is_fully_addressable


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> Bool[Array, " n"]:
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])
