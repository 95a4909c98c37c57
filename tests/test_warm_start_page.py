"""The games and commands of docs/warm-start.md run as printed."""

import pathlib
import re

import pytest

from tests import commands
from tests.envs import example

PAGE = (pathlib.Path(__file__).parents[1] / "docs" / "warm-start.md").read_text()
ZOO, RECORD = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ARRAY, PYTHON = (
    [line.split() for line in block.replace("\\\n", " ").splitlines()]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
)
SMALL = {
    "launch.check": [],
    "launch.sft": [
        *("--config.games.{task}.episodes=8", "--config.train.num_epochs=None"),
        *("--config.games.{task}.num_demonstrations=8", "--config.train.num_steps=1"),
        *("--config.evaluation.num_prompts=4", "--config.optimizer.warmup_steps=0"),
    ],
    "launch.train": [
        *(f"--config.{key}={value}" for key, value in commands.UNTESTED.items()),
        *("--config.train.num_iterations=1", "--config.evaluation.every=None"),
    ],
}


def play(lines, task, folder):
    """Run the commands of a block, small, with their runs in a folder."""
    for _, _, module, *words in lines:
        words = [re.sub("=runs/", f"={folder}/", word) for word in words]
        small = [word.format(task=task) for word in SMALL[module]]
        done = commands.call(commands.command(module.split(".")[1], *words, *small))
        assert done.returncode == 0, (module, done.stdout, done.stderr)
        yield done


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_game_in_arrays(folder):
    (folder / "walk.py").write_text(example.source())
    checked, tuned, trained = play(ARRAY, "game", folder)
    assert "walk:Walk keeps the contract" in checked.stdout
    assert f"wrote the model to {folder}/walk-sft/model" in tuned.stdout
    assert "params sha256" in trained.stdout


@pytest.mark.slow
def test_the_game_in_python(folder):
    # Commands run in the folder of the package here.
    file = folder / "zoo.jsonl"
    (folder / "zoo.py").write_text(ZOO.replace("zoo.jsonl", str(file)))
    (program, *lines) = PYTHON
    assert program == ["python", "record.py"]
    exec(compile(RECORD.replace("zoo.jsonl", str(file)), "record.py", "exec"), {})
    assert len(file.read_text().splitlines()) == 152
    checked, tuned, trained = play(lines, "world", folder)
    assert "zoo:Zoo keeps the contract" in checked.stdout
    assert "the first texts of Zoo have words" in tuned.stderr
    assert "params sha256" in trained.stdout
