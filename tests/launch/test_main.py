"""The console command, in a folder whose own folders have the names of ours."""

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from launch import main
from tests import commands

CALL = "import sys; sys.argv[0] = 'ragen-jax'; from launch.main import main; main()"


@pytest.fixture
def hostile(tmp_path):
    """A user's folder with packages called like ours, and a module of functions."""
    for name in ("envs", "configs", "launch", "ragen_jax"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')")
    (tmp_path / "mine.py").write_text("def none(trajectory):\n    return {}\n")
    (tmp_path / "own.py").write_text(
        "from configs import sokoban\n\n\ndef get_config():\n"
        "    config = sokoban.get_config()\n    config.env.name = 'mine:none'\n"
        "    return config\n"
    )
    return tmp_path


def call(folder, *words) -> subprocess.CompletedProcess:
    """As installed: the user's folder is not on Python's path."""
    return subprocess.run(
        [sys.executable, "-P", "-c", CALL, *words],
        cwd=folder,
        env=commands.environment() | {"PYTHONPATH": os.fspath(commands.ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_commands_are_listed_and_misspelt_ones_refused(hostile):
    listed = call(hostile, "--help")
    assert listed.returncode == 0
    assert "  train       Train an agent" in listed.stdout
    assert "Measure a policy" in call(hostile, "evaluate", "--help").stdout
    wrong = call(hostile, "trian")
    assert wrong.returncode == 2
    assert "'trian' is not a command; choose one of train" in wrong.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config=sokoban:nope"], "no preset 'nope'; presets are size: pocket"),
        (["--config=configs/sokoban.py:nope"], "no preset 'nope'"),
        (["--config=own.py"], "is not an environment"),
        (["--config=missing.py"], "there is no configuration file missing.py"),
        (["--config=sokoban", "--config.env.name=mine:none"], "is not an environment"),
    ],
)
def test_our_configurations_and_theirs_are_found(hostile, words, message):
    done = call(hostile, "train", *words, "--workdir=run")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_functions_of_the_folder_are_found(hostile):
    done = call(hostile, "check", "mine:none", "--kind=metrics")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("mine:none keeps the contract\n")


@pytest.mark.parametrize("name", ["train", "sweep", "evaluate"])
def test_a_file_runs_without_an_installation(name):
    """`python launch/train.py`, with the packages of others but without ours."""
    packages = pathlib.Path(np.__file__).parents[1]
    words = [sys.executable, "-S", f"launch/{name}.py", "--gpus=8"]
    environment = {"PYTHONPATH": str(packages), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        words, cwd=commands.ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no flag --gpus: JAX uses every device")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", main.COMMANDS)
@pytest.mark.parametrize("form", ["launch/{}.py", "-m launch.{}"])
def test_without_requirements_a_sentence_says_how_to_install(name, form):
    words = [sys.executable, "-S", *form.format(name).split()]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        words, cwd=commands.ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: absl, jax, ml_collections, rich cannot be imported")
    assert "make train" in line


@pytest.mark.parametrize("words", [["-m", "launch.check"], ["launch/check.py"]])
def test_an_interrupt_while_modules_load_has_no_traceback(words, tmp_path):
    """A module of absl's name sends the signal in the middle of the imports."""
    (tmp_path / "absl.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
    )
    done = subprocess.run(
        [sys.executable, *words],
        cwd=commands.ROOT,
        env=commands.environment() | {"PYTHONPATH": os.fspath(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""
