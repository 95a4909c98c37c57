"""The run folder: refused when a part is lost, never saved when a number is."""

import json
import shutil

import jax
import jax.numpy as jnp
import pytest

import ragen_jax
from configs import base
from ragen_jax.runs import folder as folder_module
from ragen_jax.runs import reader
from ragen_jax.runs.folder import RunFolder, non_finite_leaves
from tests.runs.test_checkpoint import IDENTITY, is_equal, tiny_state


def open_folder(workdir, **changes) -> RunFolder:
    config = base.get_config()
    config.update_from_flattened_dict(changes)
    return RunFolder(workdir, config, IDENTITY, keep=2)


@pytest.fixture
def workdir(tmp_path):
    """A run folder of two iterations, each with a checkpoint."""
    with open_folder(tmp_path / "run") as folder:
        folder.open_record()
        for iteration in (1, 2):
            assert folder.write_metrics(iteration, {"a": 1.0}) == []
            folder.save(iteration, tiny_state(iteration))
        folder.finish()
    return tmp_path / "run"


def test_it_continues_where_it_stopped(workdir):
    with open_folder(workdir) as folder:
        assert (folder.start, folder.is_resumed) == (2, True)
        assert [r["iteration"] for r in folder.open_record()] == [1, 2]
        assert is_equal(folder.restore(tiny_state()), tiny_state(2))


def test_a_damaged_checkpoint_is_deleted_and_the_one_before_continues(workdir):
    newest = workdir / "checkpoints" / "2"
    (newest / "state" / "manifest.ocdbt").write_bytes(b"\0")
    with (
        open_folder(workdir) as folder,
        pytest.raises(ValueError, match=r"2 is damaged: .*checkpoint is \S*/1: "),
    ):
        folder.restore(tiny_state())
    shutil.rmtree(newest)
    with open_folder(workdir) as folder:
        assert [r["iteration"] for r in folder.open_record()] == [1]
        assert is_equal(folder.restore(tiny_state()), tiny_state(1))


def test_other_settings_are_refused_and_the_lock_is_released(workdir):
    with pytest.raises(ValueError, match="seed: 0 -> 1"):
        open_folder(workdir, seed=1)
    with open_folder(workdir):
        pass


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", None, "has no config.json"),
        ("metrics.jsonl", None, "metrics.jsonl has none of its iterations"),
        ("metrics.jsonl", "", "metrics.jsonl has none of its iterations"),
        ("metrics.jsonl", '{"iteration": 1}\n', "iteration 2, but .* ends at 1"),
    ],
)
def test_a_lost_part_is_refused_and_nothing_is_changed(workdir, name, text, message):
    (workdir / name).unlink()
    if text is not None:
        (workdir / name).write_text(text)
    before = {p: p.read_bytes() for p in workdir.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=message):
        open_folder(workdir)
    assert {p: p.read_bytes() for p in workdir.rglob("*") if p.is_file()} == before


def test_a_folder_without_checkpoints_starts_again(workdir):
    for iteration in (1, 2):
        checkpoint = workdir / "checkpoints" / str(iteration)
        checkpoint.rename(workdir / f"saved{iteration}")
    (workdir / "metrics.jsonl").unlink()
    with open_folder(workdir) as folder:
        assert not folder.is_resumed
        assert folder.open_record() == []


def test_a_finished_run_without_checkpoints_is_not_begun_anew(workdir):
    with open_folder(workdir) as folder:
        folder.open_record()
        folder.record_result(2, "ab")
    shutil.rmtree(workdir / "checkpoints")
    before = (workdir / "metrics.jsonl").read_text()
    with pytest.raises(ValueError, match="a finished run whose checkpoints are gone"):
        open_folder(workdir)
    assert (workdir / "metrics.jsonl").read_text() == before


def test_the_machine_is_recorded_and_a_change_is_a_note(workdir, monkeypatch):
    (first,) = reader.read_recorded(workdir).machines
    assert first["from_iteration"] == 0
    assert first["cpu_threads"] >= 1
    assert first["ragen_jax"] == ragen_jax.__version__
    with open_folder(workdir) as folder:
        folder.open_record()
        assert folder.notes == []
    monkeypatch.setenv("NPROC", "77")
    with open_folder(workdir) as folder:
        folder.open_record()
        (note,) = folder.notes
        assert f"cpu_threads: {first['cpu_threads']} -> 77" in note
    assert reader.read_recorded(workdir).machines[1] == first | {
        "from_iteration": 2,
        "cpu_threads": 77,
    }
    assert reader.RECORDED not in reader.read_config(workdir)


def test_a_run_of_an_earlier_version_has_recorded_no_machine(workdir):
    config = json.loads((workdir / "config.json").read_text())
    del config[reader.RECORDED]
    (workdir / "config.json").write_text(json.dumps(config))
    with open_folder(workdir) as folder:
        folder.open_record()
        assert folder.notes == []
    assert len(reader.read_recorded(workdir).machines) == 1


@pytest.mark.parametrize("is_in_memory", [True, False])
@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_state_that_is_not_finite_is_never_saved(
    workdir, value, is_in_memory, monkeypatch
):
    # An accelerator's arrays are looked at where they are.
    if not is_in_memory:
        monkeypatch.setattr(folder_module, "_is_in_memory", lambda leaf: False)
    state = tiny_state(3)
    broken = jax.tree.map(lambda x: x, state)
    broken.policy.params["head"]["bias"] = state.params["head"]["bias"].at[7].set(value)
    assert non_finite_leaves(state) == []
    assert non_finite_leaves(broken) == [".policy.params['head']['bias']"]
    with open_folder(workdir) as folder:
        folder.open_record()
        folder.write_metrics(3, {"a": 1.0})
        with pytest.raises(ValueError, match=r"iteration 3 .*bias.*checkpoints/2"):
            folder.save(3, broken)
    assert sorted(p.name for p in (workdir / "checkpoints").iterdir()) == ["1", "2"]


def test_metrics_that_are_not_finite_are_named(workdir):
    with open_folder(workdir) as folder:
        folder.open_record()
        metrics = dict.fromkeys("abcdef", float("nan")) | {"a": 1.0}
        (line,) = folder.write_metrics(3, metrics)
        assert line == (
            "iteration 3: not finite, recorded as null: b, c, d, e and 1 more"
        )
