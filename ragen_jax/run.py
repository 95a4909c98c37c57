"""A run folder: opening, resuming, recording, saving.

In: a configuration, a folder and a built program. Out: the files of `ragen_jax.writer`
and `ragen_jax.checkpoint`, kept consistent with each other: a checkpoint is only made
once the record up to its iteration is durable.
"""

import hashlib
import os
import pathlib
import signal
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from ragen_jax import checkpoint, writer
from ragen_jax.config import changed_keys, from_json, to_json
from ragen_jax.learner.state import TrainState
from ragen_jax.program import Program


class Run:
    """One run folder, locked while open. Use it as a context manager.

    Attributes:
      start: iterations already done.
      state: the train state to continue from.
    """

    def __init__(self, config: ConfigDict, workdir: pathlib.Path, program: Program):
        self._config, self._workdir = config, pathlib.Path(workdir)
        self._model = program.model.to_hf()
        self._lock = writer.open_workdir(self._workdir)
        self._refuse_changes()
        self._checkpointer = checkpoint.Checkpointer(
            self._workdir, keep=config.checkpoint.keep
        )
        latest = self._checkpointer.latest
        self.start = 0 if latest is None else latest
        if self.start > config.train.num_iterations:
            raise ValueError(
                f"{self._workdir} has {self.start} iterations already, more than "
                f"train.num_iterations = {config.train.num_iterations}; raise it"
            )
        self.state = program.state
        if latest is not None:
            abstract = checkpoint.abstract_state(program.state)
            self.state = self._checkpointer.restore(latest, abstract, self._model)
        writer.write_text_atomically(self._workdir / "config.json", to_json(config))
        self._writer = writer.RunWriter(
            self._workdir,
            after=-1 if latest is None else latest,
            tensorboard=config.logging.tensorboard,
        )

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_) -> None:
        self._writer.close()
        self._checkpointer.close()
        os.close(self._lock)

    def record(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of an iteration."""
        self._writer.scalars(iteration, metrics)

    def write_episodes(self, iteration: int, episodes: Sequence[Mapping]) -> None:
        """Write sample episodes of an iteration."""
        self._writer.episodes(iteration, episodes)

    def save(self, iteration: int, state: TrainState) -> None:
        """Start a checkpoint in the background, after making the record durable."""
        self._writer.sync()
        self._checkpointer.save(iteration, state, self._model)

    def finish(self) -> None:
        """Return once everything is on disk."""
        self._writer.sync()
        self._checkpointer.wait()

    def check_health(self, metrics: Mapping[str, float]) -> None:
        """Stop a run whose updates are all being skipped.

        Raises:
          ValueError: too many non-finite gradients in a row.
        """
        skipped, limit = (
            int(metrics["actor/consecutive_skipped"]),
            self._config.train.max_skipped_updates,
        )
        if skipped >= limit:
            raise ValueError(
                f"{skipped} updates in a row had a non-finite gradient; export the "
                f"last checkpoint (python -m launch.export --run={self._workdir} "
                "--output=FOLDER) and start a new --workdir from it "
                "(--config.model.path=FOLDER) with a lower optimizer.learning_rate"
            )

    def summary(self, env_name: str, state: TrainState) -> str:
        """Success before and after, the parameters' fingerprint, where all of it is."""
        name = f"val-env/{env_name}/success"
        measured = [
            r[name]
            for r in writer.read_metrics(self._workdir)
            if r.get(name) is not None
        ]
        head = (
            f"held-out success {measured[0]:.1%} -> {measured[-1]:.1%}"
            if measured
            else "done (no evaluation asked for)"
        )
        return (
            f"{head}; parameters sha256 {digest(state.params)}\n"
            f"everything is in {self._workdir}: metrics.jsonl, trajectories/, "
            "checkpoints/, TensorBoard events"
        )

    def _refuse_changes(self) -> None:
        path = self._workdir / "config.json"
        if not path.exists():
            return
        changes = changed_keys(from_json(path.read_text()), self._config)
        if changes:
            listed = "; ".join(f"{k}: {a!r} -> {b!r}" for k, (a, b) in changes.items())
            raise ValueError(
                f"{self._workdir} holds a run with other settings ({listed}); use "
                "those settings to resume it, or another --workdir"
            )


def digest(tree) -> str:
    """SHA-256 over the bytes of every leaf, in the tree's order."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        sha.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return sha.hexdigest()


class StopRequest:
    """Turns SIGTERM and SIGINT into a request that the loop reads between iterations.

    A second signal of the same kind takes effect at once. Use it as a context manager.
    """

    def __init__(self):
        self._signal: int | None = None
        self._previous: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        return self._signal is not None

    @property
    def exit_status(self) -> int:
        """128 plus the signal's number, as shells report it."""
        return 128 + (self._signal or 0)

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number, frame) -> None:
        del frame
        self._signal = number
        signal.signal(number, signal.SIG_DFL)
