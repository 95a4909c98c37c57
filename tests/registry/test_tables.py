"""What entries say they read."""

import pytest

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.credit import FILTER_LOSS_SCALES
from ragen_jax.algo.filters import FILTERS, SCORES
from ragen_jax.algo.losses import AGGREGATIONS, KL_ESTIMATORS, POLICY_LOSSES
from ragen_jax.algo.rewards import REWARD_PLACEMENTS
from ragen_jax.registry.functions import DATA, data_names, option_names
from tests.algo.calls import OPTIONS

TABLES = {
    "ADVANTAGES": ADVANTAGES,
    "SCORES": SCORES,
    "FILTERS": FILTERS,
    "POLICY_LOSSES": POLICY_LOSSES,
    "KL_ESTIMATORS": KL_ESTIMATORS,
    "AGGREGATIONS": AGGREGATIONS,
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
    assert data_names(SCORES["entropy"]) == ("num_groups", "entropies")
    assert data_names(SCORES["entropy_std"]) == ("group_size", "entropies")
    assert data_names(ADVANTAGES["gae"]) == ("values",)
    assert data_names(ADVANTAGES["gigpo"]) == ("group_size",)
    assert data_names(ADVANTAGES["reinforce"]) == ()
    assert data_names(FILTERS["within_group"]) == ("rewards",)
    assert data_names(REWARD_PLACEMENTS["episode"]) == ("group_size", "env_index")


@pytest.mark.parametrize("table", TABLES)
def test_every_keyword_is_either_data_or_a_known_option(table):
    for entry in TABLES[table].values():
        assert set(option_names(entry)) <= set(OPTIONS)
        assert set(data_names(entry)) <= DATA
