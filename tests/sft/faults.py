"""Runs of fine-tuning that are stopped, killed and finished."""

import contextlib
import os
import signal

import pytest

from ragen_jax.runs.folder import RunFolder
from ragen_jax.sft import train as sft


class Killed(Exception):
    """Ends a run as the end of its process would."""


@contextlib.contextmanager
def interrupted(at, action):
    """Call `action` in the middle of step `at`."""
    write = RunFolder.write_metrics

    def write_and_act(self, iteration, *arguments):
        news = write(self, iteration, *arguments)
        if iteration == at:
            action()
        return news

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "write_metrics", write_and_act)
        yield


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def die():
    raise Killed


@contextlib.contextmanager
def built(program):
    """Runs use a program that is built and compiled already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sft, "build_program", lambda *_: program)
        yield


def in_parts(config, workdir, program):
    """A run that is stopped in step 2, killed in step 5, and finished.

    It is stopped and killed in a program that is built already, and finished in what
    the caller has runs use.
    """
    with built(program):
        _interrupt(config, workdir)
    assert sft.train(config, workdir) == 0


def _interrupt(config, workdir):
    with interrupted(2, terminate):
        assert sft.train(config, workdir) == 143
    assert not (workdir / "model").exists()
    with interrupted(5, die), pytest.raises(Killed):
        sft.train(config, workdir)
