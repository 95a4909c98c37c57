"""Diagnostics of a run: when they are made, and what keys are refused without them."""

import pytest

from configs import sokoban
from ragen_jax import config as config_lib
from ragen_jax.diagnosis import is_due
from tests import commands


def test_the_first_iteration_and_every_so_many_are_due():
    assert [done for done in range(1, 13) if is_due(5, done)] == [1, 5, 10]
    assert [done for done in range(1, 4) if is_due(1, done)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train.fused_iterations": 5}, "fused_iterations > 1 .* set it to 1"),
        ({"prompt.thinking": False}, "prompt.thinking = False asks for none"),
    ],
)
def test_keys_of_diagnostics_that_are_not_made_are_refused(changes, words):
    """The defaults are not: nobody asked for them."""
    config = sokoban.get_config()
    config.update_from_flattened_dict(changes)
    config_lib.validate(config, list(changes))
    with pytest.raises(ValueError, match=f"diagnostics.every has no effect .*{words}"):
        config_lib.validate(config, [*changes, "diagnostics.every"])
    config.update_from_flattened_dict(commands.TINY | {"diagnostics.every": None})
    config.train.fused_iterations = 1
    config_lib.validate(config, [*changes, "diagnostics.every"])
