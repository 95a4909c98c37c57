"""A finished run is found again, compared bit for bit, and refused when unfinished."""

import json

import pytest

from ragen_jax.runs import reader
from ragen_jax.runs.reproduce import open_original
from tests.runs.test_checkpoint import tiny_state
from tests.runs.test_folder import open_folder


def finish(path, digest="ab", **changes):
    with open_folder(path, **changes) as folder:
        folder.open_record()
        folder.record_result(7, digest)
    return path


def test_equal_digests_are_equal_bits(tmp_path):
    original = open_original(finish(tmp_path / "a"))
    assert (original.iteration, original.params_sha256) == (7, "ab")
    assert original.describe().endswith("a: 7 iterations, params sha256 ab")
    is_equal, sentence = original.compare(finish(tmp_path / "b"))
    assert is_equal
    assert sentence.startswith("reproduced: ")
    is_equal, sentence = original.compare(finish(tmp_path / "c", "cd"))
    assert not is_equal
    assert sentence.endswith(f"with ab, {tmp_path}/c ends after iteration 7 with cd")


def test_another_machine_is_a_note(tmp_path):
    path = finish(tmp_path / "a") / "config.json"
    config = json.loads(path.read_text())
    (machine,) = config[reader.RECORDED]["machines"]
    # An earlier version has recorded less: that is not a difference.
    del machine["ragen_jax"]
    machine["jax"] = "0.0.1"
    path.write_text(json.dumps(config))
    note = open_original(tmp_path / "a").describe().splitlines()[1]
    assert "jax: 0.0.1 -> " in note
    assert "ragen_jax" not in note


@pytest.mark.parametrize(
    "changes",
    [
        {"algo.advantage": "mine_of_mine:f"},
        {"env.mix": (("sokoban", 8), ("mine_of_mine:f", 8))},
        {"env.host": "agent:mine_of_mine:f"},
        {"logging.sinks": ("tensorboard", "mine_of_mine:f")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_changed_module_of_the_users_is_a_note(tmp_path, monkeypatch, changes):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_of_mine.py").write_text("def f(trajectory, rewards): ...")
    finish(tmp_path / "a", **changes)
    original = open_original(tmp_path / "a")
    assert "note:" not in original.describe()
    (tmp_path / "mine_of_mine.py").write_text("def f(trajectory, rewards): 1 / 0")
    assert "module mine_of_mine: " in original.describe()


def test_an_unfinished_run_is_refused(tmp_path):
    with open_folder(tmp_path / "a") as folder:
        folder.open_record()
    with pytest.raises(ValueError, match=r"no digest.*resume it with --workdir"):
        open_original(tmp_path / "a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"result": {"iteration": "7", "params_sha256": "ab"}}, "recorded.result is"),
        ({"result": 7}, "recorded.result is"),
        ({"command": 7}, "recorded.command is not a text"),
        ({"machines": 7}, "recorded.machines is not a list"),
    ],
)
def test_wrong_types_are_named(tmp_path, changes, message):
    path = finish(tmp_path / "a") / "config.json"
    config = json.loads(path.read_text())
    config[reader.RECORDED] |= changes
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        open_original(tmp_path / "a")


def test_the_command_is_that_of_the_last_start(tmp_path, monkeypatch):
    """It may have more iterations than the first."""
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "first"])
    with open_folder(tmp_path / "a") as folder:
        folder.open_record()
        folder.write_metrics(1, {"a": 1.0})
        folder.save(1, tiny_state(1))
        folder.finish()
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "second word"])
    assert reader.read_recorded(finish(tmp_path / "a")).command == (
        "python -m 'second word'"
    )
