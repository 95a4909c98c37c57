"""Checkpoints: the train state, written by Orbax in the background, atomically.

In: a train state on the device. Out: a folder per saved iteration under `checkpoints/`,
complete or absent, never half-written, with the SHA-256 digest of each of its files.
Everything else a resumed run needs is derived from the seed and the iteration number,
so the state is all there is to save. With it goes its identity: the model and the
tokenizer without which the numbers mean nothing.
"""

import dataclasses
import json
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp

from ragen_jax.devices.exchange import is_first
from ragen_jax.learner.state import Snapshot, TrainState, describe
from ragen_jax.models.hf.digests import (
    DIGESTS_FILE,
    find_damage,
    has_digests,
    write_digests,
)
from ragen_jax.models.hf.files import BASE_DIGEST, TOKENIZER_DIGEST

# Orbax finishes these two after the digests are written; nothing is restored from them.
_COMMIT_FILES = ("_CHECKPOINT_METADATA", "commit_success.txt")
# Item of a checkpoint that holds `TrainState.acting_snapshot`; part of the format.
_ACTING = "behind"
# Says that a checkpoint was written with digests, so that their loss is noticed.
_DIGESTS_MARK = {"digests": DIGESTS_FILE}
# Orbax keeps the work of a save in its modules: one save at a time in a process.
_ORBAX = threading.RLock()


class Checkpointer:
    """Saves and restores train states of one run.

    In the main thread a save goes on in the background. In another thread, beside which
    other runs may save, it is complete when `save` returns.

    Args:
      workdir: the run folder.
      keep: newest checkpoints kept; older ones are deleted, except the best one. None:
        only read, and leave the folder alone, which another process may be training in.
    """

    def __init__(self, workdir: pathlib.Path, *, keep: int | None):
        self._folder = (pathlib.Path(workdir) / "checkpoints").resolve()
        # Iteration of the last save; of an older run's, before the first.
        self._started = self.latest
        self._manager = None
        if keep is not None:
            # The callback runs when all files are complete, before Orbax renames the
            # folder: a checkpoint that exists has its digests.
            after_files = ocp.options.AsyncOptions(
                post_finalization_callback=self._write_digests
            )
            self._kept = _NewestAndBest(keep)
            options = ocp.CheckpointManagerOptions(
                preservation_policy=self._kept,
                create=True,
                cleanup_tmp_directories=True,
                async_options=after_files,
            )
            with _ORBAX:
                self._manager = ocp.CheckpointManager(self._folder, options=options)

    @property
    def latest(self) -> int | None:
        """Iteration of the newest complete checkpoint, None when there is none."""
        return max(self.iterations, default=None)

    @property
    def iterations(self) -> list[int]:
        """Iterations with a complete checkpoint; incomplete ones have other names."""
        if not self._folder.is_dir():
            return []
        names = [path.name for path in self._folder.iterdir() if path.is_dir()]
        return [int(name) for name in names if name.isdecimal() and name.isascii()]

    def save(
        self,
        iteration: int,
        state: TrainState,
        identity: Mapping[str, Any],
        *,
        best: int | None = None,
    ) -> None:
        """Start saving; the state is copied before this returns.

        Args:
          iteration: updates made so far, the checkpoint's name.
          state: the train state.
          identity: of its model (`hf.files.identity`), checked when restoring.
          best: iteration of the best checkpoint, which may be this one. The one before
            it is deleted when this one is complete.
        """
        if iteration == self._started:
            return
        saved = {k: ocp.args.StandardSave(x) for k, x in _items(state).items()}
        args = ocp.args.Composite(model=ocp.args.JsonSave(identity), **saved)
        with _ORBAX:
            self._manager.wait_until_finished()
            self._started = iteration
            self._kept.best = best
            self._manager.save(iteration, args=args, custom_metadata=_DIGESTS_MARK)
            if threading.current_thread() is not threading.main_thread():
                self._manager.wait_until_finished()

    def restore(
        self, iteration: int, state: TrainState, identity: Mapping[str, Any]
    ) -> TrainState:
        """Read a checkpoint in place of a state, whose buffers are freed.

        Args:
          iteration: the checkpoint's name.
          state: gives shapes, dtypes and shardings. Two states may not fit in memory:
            it is gone afterwards.
          identity: of its model.

        Raises:
          ValueError: it is another model's, or its files are damaged.
        """
        folder = self._checked(iteration, identity)
        restore = {
            name: ocp.args.StandardRestore(describe(item))
            for name, item in _items(state).items()
        }
        jax.tree.map(lambda x: x.delete(), state)
        read = self._read(folder, **restore)
        return TrainState(**read["state"], acting_snapshot=read.get(_ACTING))

    def restore_policy(
        self, iteration: int, state: TrainState, identity: Mapping[str, Any]
    ) -> Snapshot:
        """Read a checkpoint's policy alone.

        Args:
          iteration, identity: see `restore`.
          state: description of a train state.

        Raises:
          ValueError: see `restore`.
        """
        folder = self._checked(iteration, identity)
        fields = jax.tree.map(lambda _: ocp.PLACEHOLDER, _items(state)["state"])
        fields["policy"] = fields["policy"].replace(params=state.params)
        fields["iteration"] = state.iteration
        args = ocp.checkpoint_utils.construct_restore_args(fields)
        read = self._read(folder, state=ocp.args.PyTreeRestore(fields, args))["state"]
        return Snapshot(read["policy"].params, read["iteration"])

    def _checked(self, iteration: int, identity: Mapping[str, Any]) -> pathlib.Path:
        """Folder of a whole checkpoint of this model."""
        folder = self._folder / str(iteration)
        if not folder.is_dir():
            there = ", ".join(map(str, sorted(self.iterations))) or "none"
            raise ValueError(
                f"there is no checkpoint {folder}; those of the run: {there}"
            )
        if damage := _find_damage(folder):
            raise ValueError(
                f"the checkpoint {folder} is damaged: {damage}; {self._advice(folder)}"
            )
        saved = self._read(folder, model=ocp.args.JsonRestore())["model"]
        _refuse_another(folder, saved, identity)
        return folder

    def wait(self) -> None:
        """Return once every started save is complete on disk."""
        if self._manager is not None:
            with _ORBAX:
                self._manager.wait_until_finished()

    def close(self) -> None:
        if self._manager is not None:
            with _ORBAX:
                self._manager.close()

    def _write_digests(self) -> None:
        if not is_first():
            return
        (folder,) = self._folder.glob(f"{self._started}.*")
        write_digests(folder, _files(folder))

    def _read(self, folder: pathlib.Path, **items):
        args = ocp.args.Composite(**items)
        with _ORBAX:
            return self._read_alone(folder, args)

    def _read_alone(self, folder: pathlib.Path, args: ocp.args.Composite):
        reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
        try:
            return reader.restore(folder, args=args)
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            if has_digests(folder):
                # Orbax's sentence for a state of other shapes; all else is a defect.
                if not isinstance(error, ValueError | KeyError | TypeError):
                    raise
                raise ValueError(
                    f"the checkpoint {folder} is whole, but is not a state of this "
                    f"program ({first}); use the version and the settings that "
                    "wrote it"
                ) from error
            # Of a checkpoint without digests nothing is known: damage can surface as
            # any exception of Orbax and of what it is built on.
            raise ValueError(
                f"the checkpoint {folder} cannot be read ({first}); "
                f"{self._advice(folder)}"
            ) from error
        finally:
            reader.close()

    def _advice(self, damaged: pathlib.Path) -> str:
        others = sorted(self.iterations, reverse=True)
        folders = [self._folder / str(i) for i in others if str(i) != damaged.name]
        whole = [folder for folder in folders if not _find_damage(folder)]
        # Those that could be verified first; a stable sort keeps the newest first.
        whole.sort(key=lambda folder: not has_digests(folder))
        if not whole:
            return "no other checkpoint of the run is whole: train in a new --workdir"
        kind = "whole" if has_digests(whole[0]) else "other (unverified, no digests)"
        return (
            f"the newest {kind} checkpoint is {whole[0]}: evaluate, export or play it "
            f"with --run={whole[0]}, or resume training from it after deleting "
            f"{damaged} and all others that are newer"
        )


@dataclasses.dataclass
class _NewestAndBest:
    """Orbax's question which checkpoints to preserve, asked at every save.

    Attributes:
      keep: newest checkpoints preserved.
      best: iteration of a further one, or None.
    """

    keep: int
    best: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context) -> list[bool]:
        """An answer for each checkpoint, the oldest first, that of the save last."""
        num_older = len(checkpoints) - self.keep
        return [
            i >= num_older or checkpoint.step == self.best
            for i, checkpoint in enumerate(checkpoints)
        ]


def _items(state: TrainState) -> dict[str, Any]:
    """What a checkpoint holds of a state, by item; fields by their names.

    What only a resumed run reads is a separate item.
    """
    names = (field.name for field in dataclasses.fields(state))
    fields = {name: getattr(state, name) for name in names}
    snapshot = fields.pop("acting_snapshot")
    return {"state": fields} | ({} if snapshot is None else {_ACTING: snapshot})


def _files(folder: pathlib.Path) -> list[str]:
    """Files of a checkpoint that have a digest, relative to its folder."""
    names = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir()
    ]
    return [name for name in names if name not in (*_COMMIT_FILES, DIGESTS_FILE)]


def _find_damage(folder: pathlib.Path) -> str | None:
    """What is damaged in a checkpoint; None if no damage is known."""
    if not has_digests(folder) and _should_have_digests(folder):
        return f"{DIGESTS_FILE} is missing"
    return find_damage(folder, _files(folder))


def _should_have_digests(folder: pathlib.Path) -> bool:
    """Whether Orbax's metadata promise digests; True if they cannot be read."""
    try:
        text = (folder / _COMMIT_FILES[0]).read_text(encoding="utf-8")
        metadata = json.loads(text)
    except (OSError, ValueError):
        return True
    if not isinstance(metadata, dict):
        return True
    return metadata.get("custom_metadata") == _DIGESTS_MARK


def _refuse_another(
    folder: pathlib.Path, saved: object, identity: Mapping[str, Any]
) -> None:
    """Raise ValueError if a checkpoint's identity is not the program's."""
    if not isinstance(saved, dict):
        raise ValueError(
            f"the checkpoint {folder} is damaged: model/metadata describes no model"
        )
    different = {
        key: f"{key}: {saved.get(key)} there, {identity.get(key)} here"
        for key in sorted(saved.keys() | identity.keys())
        if saved.get(key) != identity.get(key)
    }
    if different:
        parts = {TOKENIZER_DIGEST: "tokenizer", BASE_DIGEST: "frozen model"}
        what = parts.get(*different, "model") if len(different) == 1 else "model"
        raise ValueError(
            f"{folder} was trained with another {what} "
            f"({'; '.join(different.values())}); restore what model.path held then, "
            "or use another --workdir"
        )
