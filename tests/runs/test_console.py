"""The display: what is shown of an iteration, and an honest guess of the time left."""

import contextlib
import os
import re
import time

import pytest

from ragen_jax.runs import console, progress
from ragen_jax.sft.step import METRICS as SFT_METRICS


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def lines(capsys):
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_time_left_does_not_count_compilation(clock, capsys):
    with console.Display(["Sokoban"], start=0, total=12) as display:
        for done, now in ((0, 10.0), (1, 100.0), (2, 104.0), (4, 112.0)):
            clock[0] = now
            display.iteration(done, {"train/Sokoban/success": 0.5})
    shown = lines(capsys)
    assert [words[0] for words in shown] == ["0/12", "1/12", "2/12", "4/12"]
    assert all(words[1:3] == ["success", "50.0%"] for words in shown)
    assert [words[3:] for words in shown] == [
        [],
        [],
        ["0m40s", "left"],
        ["0m32s", "left"],
    ]


def test_a_resumed_run_counts_from_where_it_began(clock, capsys):
    with console.Display(["A", "B"], start=5, total=8) as display:
        for done, now in ((6, 50.0), (7, 120.0)):
            clock[0] = now
            display.iteration(done, {"train/A/success": 0.5, "train/B/success": 1.0})
    first, *shown = lines(capsys)
    assert first == ["side", "by", "side:", "A", "/", "B"]
    assert shown[0] == ["6/8", "success", "50.0%", "/", "100.0%"]
    assert shown[1][-2:] == ["1m10s", "left"]


def test_metrics_of_another_program_are_shown(capsys):
    """Fine-tuning prints its own; what is not declared for the console is not."""
    metrics = {"loss": 0.5, "accuracy": 0.25, "tokens": 7.0}
    metrics |= {"demonstrated/A": 1.0, "demonstrated/B": 0.5}
    with console.Display(("A", "B"), start=0, total=9, metrics=SFT_METRICS) as display:
        display.iteration(1, metrics)
    text = capsys.readouterr().out
    assert "loss 0.500  accuracy 25.0%  demonstrators 100.0% / 50.0%\n" in text


@pytest.mark.parametrize("width", [20, 40, 80])
def test_lines_fit_a_terminal_and_a_file_has_one(capsys, width):
    metrics = {"train/A/success": 0.5, "actor/entropy": 1.0, "timing_s/update": 2.0}
    parts = ("success 50.0%", "entropy 1.000", "update 2.0s")
    lines = console._wrap("    1/9", parts, width)
    assert all(len(line) <= max(width, 7 + 2 + 13) for line in lines)
    assert " ".join(lines).split() == ["1/9", *" ".join(parts).split()]
    # In a file an iteration is one line.
    with console.Display(["A"], start=0, total=9) as display:
        display.iteration(1, metrics)
    assert capsys.readouterr().out.split() == " ".join(lines).split()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_texts_are_printed_as_they_are(capsys, monkeypatch, is_terminal):
    """Names of folders and games may have brackets and colons."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if is_terminal else "0")
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.05)
    text = "runs/[lr=1e-4]/[/x] :smile:"
    with console.Display(["A"], start=0, total=1) as display:
        display.conclude(text)
    with progress.working(text):
        time.sleep(0.2)
    out, err = capsys.readouterr()
    assert text in out
    assert text in err


def test_an_output_that_nobody_reads_is_a_broken_pipe():
    """Not the end of the process, with a status that means something else."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as file:
        file.flush()
        with pytest.raises(BrokenPipeError):
            progress.open_console(file=file).print("text")
        with contextlib.suppress(BrokenPipeError):
            file.close()


def test_an_iteration_is_one_line_of_a_terminal(capsys, monkeypatch):
    """Seconds without room are left out; metrics are not."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    metrics = {"train/A/success": 1.0, "val-env/A/success": 1.0, "actor/entropy": 1.0}
    metrics |= {"train/A/episodic_return": -10.5, "timing_s/rollout": 12.0}
    metrics |= {"timing_s/update": 120.0, "timing_s/diagnostics": 10.0}
    with console.Display(["A"], start=0, total=200) as display:
        display.iteration(40, metrics)
        del metrics["val-env/A/success"]
        display.iteration(41, metrics)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    shown = [x.rstrip() for x in re.split(r"[\r\n]+", text) if "success" in x]
    assert shown == [
        "   40/200  success 100.0%  held-out 100.0%  return -10.500  entropy 1.000",
        "   41/200  success 100.0%  return -10.500  entropy 1.000  rollout 12.0s",
    ]
