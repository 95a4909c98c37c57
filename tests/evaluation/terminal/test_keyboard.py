"""Single keys: escape sequences, bursts, and the settings of the terminal."""

import contextlib
import os
import pty
import signal
import sys
import termios
from unittest import mock

import pytest

from ragen_jax.evaluation.terminal import keyboard


def keys_of(*chunks: bytes) -> list[str]:
    """The keys of bytes that arrive chunk by chunk, and then end."""
    source, sink = os.pipe()
    os.close(sink)
    with mock.patch.object(os, "read", side_effect=[*chunks, b"", b""]):
        keys = list(keyboard.read_keys(source))
    os.close(source)
    return keys


@pytest.mark.parametrize(
    ("chunks", "keys"),
    [
        ([b"\x1b[A\x1b[B\x1b[C\x1b[D"], list("↑↓→←")),
        ([b"\x1bOA\x1bOB\x1bOC\x1bOD"], list("↑↓→←")),
        ([b"\x1b[1;2A"], ["↑"]),  # with Shift
        ([b"w", b"aq"], ["w", "a", "q"]),
        ([b"\x1b", b"[", b"A", b"d"], ["↑", "d"]),
        ([b"\x1b[3~x"], ["\x1b[3~", "x"]),  # Delete
        ([b"\x1b"], ["\x1b"]),
        ([b"\x1bq"], ["\x1b", "q"]),
        ([b"\n\xc3\xa9\xff"], ["\n", "é", "\N{REPLACEMENT CHARACTER}"]),
        ([b"a\x04b"], ["a"]),
    ],
)
def test_bytes_become_keys(chunks, keys):
    assert keys_of(*chunks) == keys


@pytest.fixture
def terminal():
    """A terminal on standard input: its screen, its settings before."""
    screen, slave = pty.openpty()
    with open(slave) as stdin, mock.patch.object(sys, "stdin", stdin):
        yield screen, termios.tcgetattr(slave)
    os.close(screen)


def settings():
    return termios.tcgetattr(sys.stdin.fileno())


def test_keys_arrive_at_once_and_unseen(terminal):
    screen, before = terminal
    with keyboard.open_keyboard() as keys:
        os.write(screen, b"\x1b[Aq")
        assert [next(keys), next(keys)] == ["↑", "q"]
        os.write(screen, b"\x1b")
        assert next(keys) == "\x1b"
        assert settings() != before
    assert settings() == before
    os.set_blocking(screen, False)
    with pytest.raises(BlockingIOError):  # nothing was echoed
        os.read(screen, 1)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (None, OSError)],
)
def test_the_settings_come_back(terminal, number, error):
    _, before = terminal
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def fail():
        with keyboard.open_keyboard():
            assert settings() != before
            if number is None:
                raise OSError
            signal.raise_signal(number)

    with pytest.raises(error) as raised:
        fail()
    assert settings() == before
    if number == signal.SIGTERM:
        assert raised.value.code == 128 + signal.SIGTERM
    assert handlers == (
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGINT),
    )


@pytest.mark.parametrize(
    ("term", "has_termios", "expected"),
    [("xterm", True, True), ("dumb", True, False), ("xterm", False, False)],
)
def test_where_keys_can_be_read(terminal, monkeypatch, term, has_termios, expected):
    monkeypatch.setenv("TERM", term)
    if not has_termios:  # Windows
        monkeypatch.setattr(keyboard, "termios", None)
    with contextlib.redirect_stdout(sys.stdin):
        assert keyboard.can_read_keys() == expected
    assert not keyboard.can_read_keys()  # the output is not a terminal here
