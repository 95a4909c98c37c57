"""What a user sees on a terminal of 80 columns."""

import fcntl
import io
import math
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import tempfile
import termios

import pytest

from ragen_jax.terminal import columns, fit, fold, table
from tests import commands

COLUMNS = 80


def on_a_terminal(words) -> tuple[int, list[str]]:
    """Exit status, and every state of every line, without colours."""
    screen, keyboard = pty.openpty()
    fcntl.ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    process = subprocess.Popen(
        words,
        cwd=commands.ROOT,
        env=commands.environment() | {"TERM": "xterm"},
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
    )
    os.close(keyboard)
    output = b""
    try:
        while chunk := os.read(screen, 2**16):
            output += chunk
    except OSError:
        pass  # Linux reports the end of a terminal's last process like this.
    os.close(screen)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    return process.wait(), re.split(r"[\r\n]+", text)


@pytest.fixture
def short_folder():
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        yield pathlib.Path(folder)


@pytest.mark.slow
def test_a_run_fits_is_never_silent_and_says_what_to_do_next(model, short_folder):
    workdir = short_folder / "run"
    words = commands.train_command(model, workdir, "bandit", train__num_iterations=2)
    status, lines = on_a_terminal(words)
    assert status == 0, lines
    assert max(len(line.rstrip()) for line in lines) <= COLUMNS, lines
    for stage in ("testing", "rollout", "update"):
        (first, *_) = [line for line in lines if f"  {stage}" in line]
        assert "compiling first, about 10 seconds 0:0" in first
    assert any("loading JAX 0:0" in line for line in lines)
    begin = next(i for i, line in enumerate(lines) if line.startswith("next: "))
    shown = [line.split("  (")[0].strip() for line in lines[begin + 1 : begin + 3]]
    assert shown == [
        f"python -m launch.report {workdir}",
        f"python -m launch.play --run={workdir} --player=policy",
    ]
    assert lines[begin] == "next: a report, a game to watch"  # and no event files


def read_until(screen, text) -> str:
    output = b""
    while text.encode() not in output:
        output += os.read(screen, 2**16)
    return output.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "said", "status"),
    [
        (
            b"q",
            "you quit after 2 actions, return -0.2\r\nbest play: won in 8 actions\r\n",
            0,
        ),
        (signal.SIGINT, "left the game\r\n", 0),
        (signal.SIGTERM, "\x1b[?25h", 128 + signal.SIGTERM),
    ],
)
def test_a_game_is_played_with_keys_and_leaves_the_terminal_as_it_was(
    ending, said, status
):
    screen, keyboard = pty.openpty()
    fcntl.ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    before = termios.tcgetattr(keyboard)
    process = subprocess.Popen(
        commands.command("play", "--config=configs/sokoban.py"),
        cwd=commands.ROOT,
        env=commands.environment() | {"TERM": "xterm-256color"},
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
    )
    output = read_until(screen, "leave")
    assert termios.tcgetattr(keyboard) != before
    for key, answer in (
        (b"\x1b[A", "Up: reward -0.1"),
        (b"x", "'x' is not an action in this game."),
        (b"\x1b", "This key is not an action in this game."),
        (b"\x1bOD", "Left: reward -0.1, nothing changed"),
    ):
        os.write(screen, key)
        output += read_until(screen, answer)
    if isinstance(ending, bytes):
        os.write(screen, ending)
    else:
        process.send_signal(ending)
    output += read_until(screen, said)
    assert process.wait() == status
    assert termios.tcgetattr(keyboard) == before
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")  # the cursor
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert max(map(len, re.split(r"[\r\n]+", text))) <= COLUMNS
    assert [*dict.fromkeys(re.findall(r"left: (\d+)", text))] == ["10", "9", "8"]
    os.close(screen)
    os.close(keyboard)


@pytest.mark.parametrize("width", [30, 80])
def test_long_lines_are_folded_between_words(width):
    path = "/a/path/that/is/longer/than/a/line/of/thirty/columns"
    text = f"a sentence about {path} and so on, which goes on\n  two, indented\n"
    lines = fold(text, width).split("\n")
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert all(len(line) <= width or line.strip() == path for line in lines)
    assert lines[-1] == ""


def test_a_table_keeps_the_columns_that_fit_and_tells_the_others_below():
    head = ("game", "success", "note")
    rows = [("Walk", "50.0%", "longer than the line, so that it is told below")]
    assert table(head, rows).split("\n") == [
        "game  success  note",
        "Walk  50.0%    longer than the line, so that it is told below",
    ]
    assert table(head, rows, 20).split("\n") == [
        "game  success",
        "Walk  50.0%",
        "  note: longer than",
        "    the line, so",
        "    that it is told",
        "    below",
    ]


def test_parts_without_room_are_left_out():
    assert fit("1/9", ["ab", "cd", "e"], 7) == "1/9  ab"
    assert fit("1/9", ["ab", "cd", "e"], math.inf) == "1/9  ab  cd  e"


def test_a_file_and_a_terminal_of_unknown_size_have_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert columns(io.StringIO()) == math.inf
    screen, keyboard = pty.openpty()
    with os.fdopen(screen, "rb"), os.fdopen(keyboard, "w") as terminal:
        assert columns(terminal) == 80
        size = struct.pack("HHHH", 24, 50, 0, 0)
        fcntl.ioctl(keyboard, termios.TIOCSWINSZ, size)
        assert columns(terminal) == 50
        monkeypatch.setenv("COLUMNS", "40")
        assert columns(terminal) == 40


def test_a_refusal_is_folded():
    status, lines = on_a_terminal(commands.command("leaderboard"))
    assert status == 2
    assert max(map(len, lines)) <= COLUMNS
    assert "  launch.leaderboard results/*.json" in lines
