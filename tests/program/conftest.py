"""Fixtures of the program tests."""

import logging

import jax
import pytest


@pytest.fixture
def compiled_names(caplog):
    """Names of the functions that were compiled, in order."""
    before = jax.config.jax_log_compiles
    jax.config.update("jax_log_compiles", True)
    caplog.set_level(logging.WARNING, logger="jax")

    def names():
        finished = [r.getMessage() for r in caplog.records]
        begin = "Finished XLA compilation of jit("
        return [x.split(begin)[1].split(")")[0] for x in finished if begin in x]

    yield names
    jax.config.update("jax_log_compiles", before)
