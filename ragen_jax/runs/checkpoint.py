"""Checkpoints: the train state, written by Orbax in the background, atomically.

In: a train state on the device. Out: a folder per saved iteration under `checkpoints/`,
complete or absent, never half-written. Everything else a resumed run needs is derived
from the seed and the iteration number, so the state is all there is to save. With it
goes its identity: the model and the tokenizer without which the numbers mean nothing.
"""

import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from ragen_jax.learner.state import TrainState, describe
from ragen_jax.models.hf_files import BASE_DIGEST, TOKENIZER_DIGEST


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

    def save(self, iteration: int, state: TrainState, owner: dict[str, Any]) -> None:
        """Start saving; the state is copied before this returns.

        Args:
          iteration: updates made so far, the checkpoint's name.
          state: the train state.
          owner: the `identity` of its model, checked when restoring.
        """
        if iteration == self.latest:
            return
        self._manager.save(
            iteration,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state), model=ocp.args.JsonSave(owner)
            ),
        )

    def restore(
        self, iteration: int, state: TrainState, owner: dict[str, Any]
    ) -> TrainState:
        """Read a checkpoint in place of a state, whose buffers are freed.

        Args:
          iteration: the checkpoint's name.
          state: gives shapes, dtypes and shardings. Two states may not fit in memory:
            it is gone afterwards.
          owner: the `identity` of its model.

        Raises:
          ValueError: it is another model's, or its files are damaged.
        """
        where = self._folder / str(iteration)
        saved = self._read(where, iteration, model=ocp.args.JsonRestore())["model"]
        _refuse_another(where, saved, owner)
        restore = ocp.args.StandardRestore(describe(state))
        jax.tree.map(lambda x: x.delete(), state)
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


def _refuse_another(
    where: pathlib.Path, saved: dict[str, Any], owner: dict[str, Any]
) -> None:
    different = {
        key: f"{key}: {saved.get(key)} there, {owner.get(key)} here"
        for key in sorted(saved.keys() | owner.keys())
        if saved.get(key) != owner.get(key)
    }
    if different:
        parts = {TOKENIZER_DIGEST: "tokenizer", BASE_DIGEST: "frozen model"}
        what = parts.get(*different, "model") if len(different) == 1 else "model"
        raise ValueError(
            f"{where} was trained with another {what} ({'; '.join(different.values())})"
            "; put back what model.path held then, or use another --workdir"
        )
