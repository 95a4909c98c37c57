"""Rollouts of a CPU in parts, against the rollout of all rows at once."""

import os

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.devices.sharding import make_mesh
from ragen_jax.diagnostics.timing import compilations
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.parts import rows_per_part
from tests.rollout import players

ONE = {"data": 1, "fsdp": 1, "tensor": 1}
# Parts of two groups; the third has one, and the first group again.
NUM_GROUPS, GROUP_SIZE, PART_ROWS = 5, 2, 4


def keys(num_groups=NUM_GROUPS):
    return rollout_keys(jax.random.key(36), num_groups, GROUP_SIZE)


def play(collect, keys):
    _, dialogue = players.game("sokoban")
    return collect(players.speaker_params("sokoban"), dialogue, keys)


def in_parts(**changes):
    settings = {"num_groups": NUM_GROUPS, "group_size": GROUP_SIZE}
    return players.collector("sokoban", **settings | {"part_rows": PART_ROWS} | changes)


def test_equals_the_rollout_of_all_rows():
    whole = play(players.collector("sokoban", num_groups=NUM_GROUPS), keys())
    parts = play(in_parts(), keys())
    assert in_parts().part_rows == PART_ROWS
    assert jnp.any(whole.turns.num_executed > 0)
    chex.assert_trees_all_equal_shapes_and_dtypes(whole, parts)
    log_probs = [x.sample_log_probs for x in (whole, parts)]
    np.testing.assert_allclose(*log_probs, atol=1e-5)
    chex.assert_trees_all_equal(
        *(x.replace(sample_log_probs=None) for x in (whole, parts))
    )


def test_a_part_is_the_rollout_of_its_groups_to_the_bit():
    parts = play(in_parts(), keys())
    some = keys().replace(
        level=keys().level[2:4],
        noise=keys().noise[4:8],
        sample=keys().sample[4:8],
        is_held_out=keys().is_held_out[2:4],
    )
    alone = play(players.collector("sokoban", num_groups=2), some)
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[4:8], parts), alone)


def test_neither_cores_nor_repetitions_change_a_bit(monkeypatch):
    first = play(in_parts(), keys())
    for num_cores in (1, 16):
        cores = set(range(num_cores))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        chex.assert_trees_all_equal(first, play(in_parts(), keys()))


def test_everything_is_compiled_once():
    collect = in_parts()
    first, second = keys(), rollout_keys(jax.random.key(1), NUM_GROUPS, GROUP_SIZE)
    jax.clear_caches()
    with compilations() as compiled:
        play(collect, first)
    # The keys of a part, the part.
    assert compiled.num_programs == 2
    with compilations() as compiled:
        play(collect, second)
    assert compiled.num_programs == 0


def test_validation_prompts_stay_what_they_are():
    """Every group keeps its split, also those that fill up the last part."""
    prompts = keys().replace(is_held_out=jnp.arange(NUM_GROUPS) % 2 == 0)
    whole = play(players.collector("sokoban", num_groups=NUM_GROUPS), prompts)
    parts = play(in_parts(), prompts)
    trained = play(in_parts(), keys())
    has_changed = (parts.tokens != trained.tokens).any(axis=1)
    np.testing.assert_array_equal(has_changed, np.repeat(prompts.is_held_out, 2))
    np.testing.assert_array_equal(whole.tokens, parts.tokens)
    np.testing.assert_array_equal(whole.success, parts.success)


def test_the_lowered_program_is_a_part():
    _, dialogue = players.game("sokoban")
    inputs = players.speaker_params("sokoban"), dialogue, keys()
    shapes = in_parts().lower(*inputs).out_info
    assert shapes.lengths.shape == (2 * GROUP_SIZE,)


@pytest.mark.parametrize(
    ("part_rows", "num_groups", "group_size", "expected"),
    [
        (None, 8, 16, 128),
        (16, 8, 16, 16),
        (16, 16, 8, 16),
        # Parts of as equal a size as can be.
        (16, 17, 1, 9),
        (16, 33, 1, 11),
        # A group stays together.
        (16, 4, 32, 32),
        (16, 1, 16, 16),
        (64, 3, 2, 6),
    ],
)
def test_sizes_of_parts(part_rows, num_groups, group_size, expected):
    mesh = make_mesh(**ONE)
    assert rows_per_part(part_rows, mesh, num_groups, group_size) == expected


@pytest.mark.parametrize("axis", ["data", "fsdp", "tensor"])
def test_several_devices_split_the_rows_themselves(axis):
    assert rows_per_part(4, make_mesh(**ONE | {axis: 2}), 8, 2) is None


def test_an_error_in_a_part_is_the_rollout_s():
    collect = in_parts()
    with pytest.raises(TypeError, match="abstract array"):
        collect(object(), players.game("sokoban")[1], keys())
