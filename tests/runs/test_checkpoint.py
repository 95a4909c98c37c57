"""Checkpoints: whole or refused, whatever happens to their files."""

import hashlib
import pathlib
import re
import shutil
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from ragen_jax.learner.state import Network, TrainState
from ragen_jax.models.hf.digests import DIGESTS_FILE
from ragen_jax.runs import checkpoint
from ragen_jax.runs.checkpoint import Checkpointer

IDENTITY = {"model_type": "tiny", "tokenizer_sha256": "0" * 64, "eos_token_id": [1]}


def tiny_state(seed: int = 0) -> TrainState:
    """A state with every kind of leaf, and matrices that compress badly."""
    keys = jax.random.split(jax.random.key(seed), 2)
    params = {
        "embed": {"weight": jax.random.normal(keys[0], (40, 16))},
        "head": {"kernel": jax.random.normal(keys[1], (16, 40)), "bias": jnp.ones(40)},
    }
    opt_state = optax.adam(1e-3).init(params)
    # A buffer each: restoring frees them one by one.
    counts = [jnp.asarray(seed, jnp.int32) for _ in range(4)]
    return TrainState(Network(params, opt_state), None, jnp.float32(seed), *counts)


def save(workdir: pathlib.Path, *iterations: int) -> None:
    checkpointer = Checkpointer(workdir, keep=len(iterations))
    for iteration in iterations:
        checkpointer.save(iteration, tiny_state(iteration), IDENTITY)
    checkpointer.wait()
    checkpointer.close()


def restore(workdir: pathlib.Path, iteration: int) -> TrainState:
    return Checkpointer(workdir, keep=None).restore(iteration, tiny_state(), IDENTITY)


def is_equal(state: TrainState, other: TrainState) -> bool:
    leaves, others = jax.tree.leaves(state), jax.tree.leaves(other)
    return all(np.array_equal(x, y) for x, y in zip(leaves, others, strict=True))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("saved")
    save(workdir, 1, 2, 3)
    return workdir


@pytest.fixture
def run(saved, tmp_path):
    """A copy of it that may be damaged."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    return tmp_path


def refusal(workdir: pathlib.Path) -> str | None:
    """The sentence with which checkpoint 3 is refused; any other error is a defect."""
    try:
        restore(workdir, 3)
    except ValueError as error:
        return str(error)
    return None


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_checkpoint_is_restored_as_saved(saved):
    assert Checkpointer(saved, keep=None).latest == 3
    for iteration in (1, 2, 3):
        assert is_equal(restore(saved, iteration), tiny_state(iteration))


def test_digests_are_in_the_format_of_sha256sum(saved):
    folder = saved / "checkpoints" / "3"
    words = ["sha256sum", "--check", "--strict", "--quiet", DIGESTS_FILE]
    subprocess.run(words, cwd=folder, check=True)
    listed = [
        line.split("  ", 1)[1]
        for line in (folder / DIGESTS_FILE).read_text().splitlines()
    ]
    unlisted = {p.relative_to(folder).as_posix() for p in files_of(folder)} - {*listed}
    assert unlisted <= {DIGESTS_FILE, "_CHECKPOINT_METADATA", "commit_success.txt"}


def test_the_digests_are_written_before_the_checkpoint_exists(tmp_path, monkeypatch):
    """A kill at any instant leaves no checkpoint without its digests."""
    write = checkpoint.write_digests

    def write_slowly(folder, names):
        assert not (tmp_path / "checkpoints" / "5").exists()
        time.sleep(0.2)
        write(folder, names)
        assert not (tmp_path / "checkpoints" / "5").exists()

    monkeypatch.setattr(checkpoint, "write_digests", write_slowly)
    save(tmp_path, 5)
    assert (tmp_path / "checkpoints" / "5" / DIGESTS_FILE).exists()


def test_a_save_whose_digests_fail_is_no_checkpoint(tmp_path, monkeypatch):
    def fail(folder, names):
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint, "write_digests", fail)
    with pytest.raises(OSError, match="no space"):
        save(tmp_path, 5)
    assert Checkpointer(tmp_path, keep=None).latest is None


def test_damage_names_the_file_and_the_newest_whole_checkpoint(run):
    for iteration in (2, 3):
        manifest = run / "checkpoints" / str(iteration) / "state" / "manifest.ocdbt"
        manifest.write_bytes(b"\0" * manifest.stat().st_size)
    with pytest.raises(ValueError, match="does not match its digest") as info:
        restore(run, 3)
    assert "/3 is damaged: state/manifest.ocdbt " in str(info.value)
    whole = re.search(r"--run=(\S+),", str(info.value)).group(1)
    assert whole == str((run / "checkpoints" / "1").resolve())
    assert is_equal(restore(run, 1), tiny_state(1))
    for iteration in (2, 3):
        shutil.rmtree(run / "checkpoints" / str(iteration))
    assert Checkpointer(run, keep=3).latest == 1


def test_without_another_whole_checkpoint_the_sentence_says_so(run):
    for iteration in (1, 2, 3):
        (run / "checkpoints" / str(iteration) / "state" / "_METADATA").unlink()
    with pytest.raises(ValueError, match="no other checkpoint of the run is whole"):
        restore(run, 3)


def test_a_checkpoint_without_digests_still_opens(run, tmp_path):
    """As written before there were digests: by Orbax alone."""
    manager = ocp.CheckpointManager(tmp_path / "checkpoints")
    fields = vars(tiny_state(4)).copy()
    del fields["acting_snapshot"]  # states were without it then
    items = ocp.args.Composite(
        state=ocp.args.StandardSave(fields), model=ocp.args.JsonSave(IDENTITY)
    )
    manager.save(4, args=items)
    manager.wait_until_finished()
    manager.close()
    assert not (tmp_path / "checkpoints" / "4" / DIGESTS_FILE).exists()
    assert is_equal(restore(run, 4), tiny_state(4))
    for path in files_of(run / "checkpoints" / "4" / "state"):
        path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(ValueError, match=r"cannot be read.*whole checkpoint is .*/3:"):
        restore(run, 4)


def test_lost_digests_are_noticed(run):
    (run / "checkpoints" / "3" / DIGESTS_FILE).unlink()
    with pytest.raises(ValueError, match=f"{DIGESTS_FILE} is missing"):
        restore(run, 3)


def test_a_state_of_other_shapes_is_not_called_damaged(saved):
    state = tiny_state()
    other = state.replace(policy=Network({"embed": jnp.ones(3)}, ()))
    with pytest.raises(ValueError, match="not a state of this program"):
        Checkpointer(saved, keep=None).restore(3, other, IDENTITY)


def test_reading_logs_no_warning(saved, caplog):
    with caplog.at_level("WARNING"):
        restore(saved, 3)
    assert not caplog.records


@pytest.mark.slow
def test_no_damage_is_silent(saved, tmp_path):
    """Flipped bits, zeroed blocks, files cut short, swapped, emptied and removed."""
    draw = np.random.default_rng(0)
    source = saved / "checkpoints" / "3"
    expected = tiny_state(3)
    harmless = []
    for trial in range(360):
        run = tmp_path / str(trial)
        shutil.copytree(source, run / "checkpoints" / "3")
        names = damage(draw, run / "checkpoints" / "3", kind=trial % 6)
        sentence = refusal(run)
        if sentence is None:
            assert is_equal(restore(run, 3), expected), names
            harmless += names
        else:
            assert "\n" not in sentence
            assert any(name in sentence for name in (*names, DIGESTS_FILE))
        shutil.rmtree(run)
    # Orbax's own notes of when it was done, from which nothing is restored.
    assert {*harmless} <= {"_CHECKPOINT_METADATA", "commit_success.txt"}
    assert len(harmless) < 100


def damage(draw, folder: pathlib.Path, kind: int) -> list[str]:
    """Damage one file, or two of another content; returns their names."""
    files = [path for path in files_of(folder) if path.stat().st_size > 0]
    path = files[draw.integers(len(files))]
    data = bytearray(path.read_bytes())
    name = path.relative_to(folder).as_posix()
    if kind == 0:
        data[draw.integers(len(data))] ^= 1 << draw.integers(8)
        path.write_bytes(data)
    elif kind == 1:
        start = draw.integers(len(data))
        size = min(1 + draw.integers(512), len(data) - start)
        if any(data[start : start + size]):
            data[start : start + size] = bytes(size)
        else:
            data[start] = 1
        path.write_bytes(data)
    elif kind == 2:
        path.write_bytes(data[: draw.integers(len(data))])
    elif kind == 3:
        own = hashlib.sha256(data).digest()
        others = [
            other
            for other in files
            if hashlib.sha256(other.read_bytes()).digest() != own
        ]
        other = others[draw.integers(len(others))]
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
        return [name, other.relative_to(folder).as_posix()]
    elif kind == 4:
        path.write_bytes(data + bytes(draw.integers(256, size=8, dtype=np.uint8)))
    else:
        path.unlink()
    return [name]


def test_a_run_that_is_not_ahead_saves_what_it_always_did(saved):
    """Runs of before `rollout.ahead` resume, and its field is not in their files."""
    item = saved / "checkpoints" / "3"
    assert not (item / "behind").exists()
    written = (item / "state" / "_METADATA").read_text()
    assert "rate_scale" in written
    assert "behind" not in written
