"""The code of docs/library.md and the game of docs/architecture.md run as printed."""

import pathlib
import re

import jax
import numpy as np
import pytest

from tests import commands
from tests.algo.calls import unchecked
from tests.envs import example

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "library.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# Sizes of a run that is over in seconds.
SMALL = [f"--config.{key}={value}" for key, value in commands.UNTESTED.items()]
THREE = "--config.train.num_iterations=3"


def printed_commands(text, name):
    """The words of the `python -m` lines of the shell block that holds a name."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (block,) = [block for block in blocks if name in block]
    return [line.split()[1:] for line in block.splitlines()]


def run(words, model, tmp_path):
    """A printed command, in a folder of its own and small if it trains."""
    line = [commands.command("x")[0], *words]
    line = [re.sub("=runs/", f"={tmp_path}/", word) for word in line]
    if "launch.train" in line:
        # After --config; what is printed comes last, and counts.
        line[4:4] = [*SMALL, THREE, f"--config.model.path={model}"]
    return commands.call(line)


@pytest.mark.slow
def test_the_game_is_checked_trained_and_played(monkeypatch, tmp_path, model):
    (tmp_path / "walk.py").write_text(example.source())
    monkeypatch.syspath_prepend(tmp_path)
    page = example.PAGE.read_text()
    outputs = [run(x, model, tmp_path) for x in printed_commands(page, "walk:Walk")]
    assert [done.returncode for done in outputs] == [0, 0, 0], outputs
    checked, trained, played = outputs
    assert "walk:Walk keeps the contract" in checked.stdout
    assert re.search(r"^ +3/3 ", trained.stdout, re.MULTILINE)
    end, best = played.stdout.splitlines()[-2:]
    assert end.startswith("won in ")
    assert best.removeprefix("best play: ") == end.split(", return")[0]


@pytest.mark.slow
def test_the_estimator_is_checked_and_trained(monkeypatch, tmp_path, model):
    (tmp_path / "mine.py").write_text(BLOCKS[0])
    monkeypatch.syspath_prepend(tmp_path)
    outputs = [run(x, model, tmp_path) for x in printed_commands(PAGE, "mine:scaled")]
    assert [done.returncode for done in outputs] == [0, 0], outputs


@pytest.mark.slow
def test_the_code_runs_as_printed(capsys):
    names = {}
    as_users = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with as_users[0], as_users[1], unchecked():
        for block in BLOCKS[1:]:
            exec(compile(block, "docs/library.md", "exec"), names)
    assert "######" in capsys.readouterr().out
    assert names["trajectory"].tokens.shape[0] == 32
    assert names["kept"].sum() == 8
    assert np.isfinite(names["loss"])
    assert names["episodes"].turns.num_executed.max() == 2
