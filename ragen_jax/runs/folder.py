"""A run folder: lock, configuration, record and checkpoints, kept consistent.

In: a configuration, a folder and a model's identity. Out: the files of `runs.writer`
and `runs.checkpoint`. A checkpoint is only made once the record up to its iteration is
durable. Knows no algorithm: `runs.run` is the run folder of reinforcement learning,
`sft` uses this class as it is.
"""

import contextlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from ragen_jax.config import FREE_ON_RESUME, changed_keys, from_json, to_json
from ragen_jax.learner.state import TrainState
from ragen_jax.runs import checkpoint, writer


class RunFolder:
    """One run folder, locked while open. Use it as a context manager.

    Nothing is written before `open_record`.

    Args:
      workdir: the folder.
      config: validated.
      identity: of the model, see `hf_files.identity`.
      keep: newest checkpoints kept.
      free: beginnings of the keys that a resumed run may change.

    Attributes:
      path: the folder.
      start: iterations already done.
      is_resumed: there is a checkpoint.

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
        free: tuple[str, ...] = FREE_ON_RESUME,
    ):
        self.path = pathlib.Path(workdir)
        self._config, self._identity = config, identity
        with contextlib.ExitStack() as files:
            files.callback(os.close, writer.open_workdir(self.path))
            self._refuse_changes(free)
            self._checkpointer = checkpoint.Checkpointer(self.path, keep=keep)
            files.callback(self._checkpointer.close)
            self._files = files.pop_all()
        latest = self._checkpointer.latest
        self.is_resumed = latest is not None
        self.start = latest or 0

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
        tensorboard: bool,
        settings: Mapping[str, Any] | None = None,
        games: Sequence[str] = (),
    ) -> list[dict]:
        """Write config.json and open the record, cut back to the newest checkpoint.

        Args: see `RunWriter`.

        Returns:
          Metrics of the iterations that are kept, oldest first.
        """
        text = to_json(self._config)
        writer.write_text_atomically(self.path / "config.json", text)
        self._writer = writer.RunWriter(
            self.path,
            after=self.start if self.is_resumed else -1,
            tensorboard=tensorboard,
            settings=settings,
            games=games,
        )
        self._files.callback(self._writer.close)
        return writer.read_metrics(self.path)

    def write_metrics(
        self,
        iteration: int,
        metrics: Mapping[str, float],
        distributions: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Append the metrics of an iteration, see `RunWriter.scalars`."""
        self._writer.scalars(iteration, metrics, distributions)

    def write_episodes(self, iteration: int, episodes: Sequence[Mapping]) -> None:
        """Write sample episodes of an iteration."""
        self._writer.episodes(iteration, episodes)

    def save(self, iteration: int, state: TrainState) -> None:
        """Start a checkpoint in the background, after making the record durable."""
        self._writer.sync()
        self._checkpointer.save(iteration, state, self._identity)

    def finish(self) -> None:
        """Return once everything is on disk."""
        self._writer.sync()
        self._checkpointer.wait()

    def _refuse_changes(self, free: tuple[str, ...]) -> None:
        path = self.path / "config.json"
        if not path.exists():
            return
        changes = changed_keys(from_json(path.read_text()), self._config, free)
        if changes:
            listed = "; ".join(f"{k}: {a!r} -> {b!r}" for k, (a, b) in changes.items())
            raise ValueError(
                f"{self.path} holds a run with other settings ({listed}); use those "
                "settings to resume it, or another --workdir"
            )
