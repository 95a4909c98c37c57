"""Checkpoints: the train state, written by Orbax in the background, atomically.

In: a train state on the device. Out: a folder per saved iteration under `checkpoints/`,
complete or absent, never half-written. Everything else a resumed run needs is derived
from the seed and the iteration number, so the state is all there is to save.
"""

import pathlib

import jax
import orbax.checkpoint as ocp

from ragen_jax.learner.state import TrainState


class Checkpointer:
    """Saves and restores train states of one run.

    Args:
      workdir: the run folder.
      keep: newest checkpoints kept, older ones are deleted. None: only read, and leave
        the folder alone, which another process may be training in.
    """

    def __init__(self, workdir: pathlib.Path, *, keep: int | None):
        self._folder = (workdir / "checkpoints").resolve()
        if keep is None:
            options = ocp.CheckpointManagerOptions(
                read_only=True, create=False, save_interval_steps=0
            )
        else:
            options = ocp.CheckpointManagerOptions(
                max_to_keep=keep, create=True, cleanup_tmp_directories=True
            )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    @property
    def latest(self) -> int | None:
        """Iteration of the newest complete checkpoint, None when there is none."""
        return self._manager.latest_step()

    def save(self, iteration: int, state: TrainState, model: dict) -> None:
        """Start saving; the state is copied before this returns.

        Args:
          iteration: updates made so far, the checkpoint's name.
          state: the train state.
          model: the model's `config.json` content, checked when restoring.
        """
        if iteration == self.latest:
            return
        self._manager.save(
            iteration,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state), model=ocp.args.JsonSave(model)
            ),
        )

    def restore(self, iteration: int, abstract: TrainState, model: dict) -> TrainState:
        """Read a checkpoint into the shapes, dtypes and shardings of `abstract`.

        Raises:
          ValueError: it is another model's, or its files are damaged.
        """
        where = self._folder / str(iteration)
        saved = self._read(where, iteration, model=ocp.args.JsonRestore())["model"]
        different = [
            f"{key}: {saved.get(key)} there, {model.get(key)} here"
            for key in sorted(saved.keys() | model.keys())
            if saved.get(key) != model.get(key)
        ]
        if different:
            raise ValueError(
                f"{where} holds another model ({'; '.join(different)}); use the "
                "model.path it was trained from or another --workdir"
            )
        restore = ocp.args.StandardRestore(abstract)
        return self._read(where, iteration, state=restore)["state"]

    def wait(self) -> None:
        """Return once every started save is complete on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

    def _read(self, where: pathlib.Path, iteration: int, **items):
        try:
            return self._manager.restore(iteration, args=ocp.args.Composite(**items))
        except (ValueError, KeyError, TypeError, OSError) as error:
            first = str(error).strip().split("\n")[0]
            raise ValueError(
                f"the checkpoint {where} cannot be read ({first}); delete that folder "
                "to go back to the one before"
            ) from error


def abstract_state(state: TrainState) -> TrainState:
    """Shapes, dtypes and shardings of a train state, without its numbers."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
