"""What entries say they read."""

import inspect

import pytest

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.credit import FILTER_LOSS_SCALES
from ragen_jax.algo.filters import FILTERS, SCORES
from ragen_jax.algo.losses import POLICY_LOSSES
from ragen_jax.algo.rewards import REWARD_PLACEMENTS
from ragen_jax.registry.functions import DATA, data_names, option_names, resolve
from tests.algo.calls import OPTIONS

TABLES = {
    "ADVANTAGES": ADVANTAGES,
    "SCORES": SCORES,
    "FILTERS": FILTERS,
    "POLICY_LOSSES": POLICY_LOSSES,
    "REWARD_PLACEMENTS": REWARD_PLACEMENTS,
    "FILTER_LOSS_SCALES": FILTER_LOSS_SCALES,
}


@pytest.mark.parametrize(
    ("entry", "options"),
    [
        (ADVANTAGES["gae"], ("gamma", "lam")),
        (ADVANTAGES["bi_level_gae"], ("gamma", "lam", "high_level_gamma")),
        (ADVANTAGES["grpo"], ()),
        (ADVANTAGES["gigpo"], ("gamma", "step_weight")),
        (FILTERS["top_p"], ("direction", "keep_zero", "top_p", "top_p_epsilon")),
        (FILTERS["quantile_band"], ("keep_zero", "quantile_low", "quantile_high")),
        (FILTERS["within_group"], ("keep_zero", "rows_per_group")),
        (POLICY_LOSSES["ppo"], ("clip_low", "clip_high", "dual_clip")),
        (REWARD_PLACEMENTS["episode"], ("normalization", "grouping")),
        (REWARD_PLACEMENTS["turn"], ()),
        (FILTER_LOSS_SCALES["rho"], ("top_p",)),
    ],
)
def test_option_names(entry, options):
    assert option_names(entry) == options


def test_data_names():
    assert data_names(SCORES["entropy"]) == ("entropies", "mask", "num_groups")
    assert data_names(SCORES["reward_std"]) == ("rewards", "counted", "group_size")
    assert data_names(ADVANTAGES["gae"]) == ("rewards", "mask", "values")
    assert data_names(ADVANTAGES["reinforce"]) == ("rewards", "mask")
    assert data_names(FILTERS["within_group"]) == ("scores", "rewards")
    assert data_names(POLICY_LOSSES["ppo"]) == POLICY_LOSSES.data


@pytest.mark.parametrize("table", TABLES)
def test_every_parameter_is_data_of_its_table_or_a_known_option(table):
    for entry in TABLES[table].values():
        names = {*option_names(entry), *data_names(entry)}
        assert names == set(inspect.signature(entry).parameters)
        assert set(option_names(entry)) <= set(OPTIONS)
        assert set(data_names(entry)) <= set(TABLES[table].data) <= DATA


def test_a_reference_is_resolved_when_asked_and_not_by_in():
    """`in` imports nothing and never raises."""
    broken = "tests.launch.users_functions:reads_entropies"
    assert broken not in ADVANTAGES
    with pytest.raises(
        ValueError, match="it asks for entropies, which is not available"
    ):
        resolve(ADVANTAGES, broken)
    with pytest.raises(ValueError, match="num_turns has a default, but the program"):
        resolve(ADVANTAGES, "tests.launch.users_functions:gives_data_a_default")
    with pytest.raises(KeyError, match="no_such_entry"):
        resolve(ADVANTAGES, "no_such_entry")
    assert resolve(ADVANTAGES, "grpo") is ADVANTAGES["grpo"]
