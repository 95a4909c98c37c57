"""`launch.report` as a user runs it."""

import pytest

from tests import commands
from tests.report import fake_runs


def report(*words):
    return commands.call(commands.command("report", *map(str, words)))


def test_it_writes_a_page_and_figures(tmp_path):
    runs = [
        fake_runs.write_run(tmp_path / f"run-{seed}", seed=seed, iterations=2)
        for seed in range(2)
    ]
    page = tmp_path / "new" / "page.html"
    words = f"--output={page}", f"--png={tmp_path / 'png'}", "--max_episodes=3"
    done = report(*runs, *words)
    assert done.returncode == 0, done.stderr
    assert "run: run-0, run-1" in done.stdout
    assert "3 of 16 episodes in it" in done.stdout
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "png" / "progress.png").exists()
    assert "note:" not in done.stdout


def test_figures_alone(tmp_path):
    """No page is written that nobody asked for; equal seeds are told."""
    runs = [fake_runs.write_run(tmp_path / name, seed=0, iterations=2) for name in "ab"]
    done = report(*runs, f"--png={tmp_path / 'png'}")
    assert done.returncode == 0, done.stderr
    assert "have the same seed and settings" in done.stdout
    assert ".html" not in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name at least one run folder"),
        (["missing"], "there is no folder missing"),
        (["docs"], "docs is not a run folder"),
        (["docs", "--max_episodes=-1"], "it must be at least 0"),
    ],
)
def test_errors_are_one_sentence(words, said):
    done = report(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
