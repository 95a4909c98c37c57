"""What entries say they read."""

import inspect

import pytest

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.credit import FILTER_LOSS_SCALES
from ragen_jax.algo.filters import FILTERS, SCORES
from ragen_jax.algo.losses import POLICY_LOSSES
from ragen_jax.algo.rewards import REWARD_PLACEMENTS
from ragen_jax.registry.functions import DATA, data_names, option_names, resolve
from ragen_jax.registry.settings import Rules, check, number_problem
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
    assert data_names(SCORES["reward_std"]) == ("rewards", "group_size")
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
    with pytest.raises(ValueError, match="it asks for entropies, which is not there"):
        resolve(ADVANTAGES, broken)
    with pytest.raises(KeyError, match="no_such_entry"):
        resolve(ADVANTAGES, "no_such_entry")
    assert resolve(ADVANTAGES, "grpo") is ADVANTAGES["grpo"]


@pytest.mark.parametrize(
    ("value", "default", "is_good"),
    [
        (1, 1.0, True),
        (0.5, 1.0, True),
        (7, 3, True),
        (-1, 3, True),
        (7.0, 3, False),
        (True, 3, False),
        (True, 3.0, False),
        ("text", 3.0, False),
        ("3", 3, False),
        ((1, 2), 3.0, False),
        (None, 3.0, False),
        (float("nan"), 3.0, False),
        (float("inf"), 3.0, False),
        (1e39, 3.0, False),
        (10**14, 3, False),
        (10**14, 3.0, True),
        (10**400, 3.0, False),
    ],
)
def test_a_value_in_a_number_s_place(value, default, is_good):
    problem = number_problem("env.params.x", value, default)
    assert (problem is None) == is_good
    assert is_good or problem.startswith(f"env.params.x = {value!r}; it must be a")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "count = 0; it must be at least 1"),
        (2**31, "below 2\\*\\*31"),
        (1.5, "count = 1.5; it must be a whole number"),
        ("many", "count = 'many'; it must be a whole number"),
        (True, "count = True; it must be a whole number"),
        (None, "count may not be None"),
    ],
)
def test_positive_integers(value, words):
    rules = Rules(positive_integers=("count",))
    check({"count": 2**31 - 1}, rules)
    with pytest.raises(ValueError, match=words):
        check({"count": value}, rules)


def test_rules_join_and_are_picked_by_key():
    """Of single keys; checks between keys stay with their configuration."""

    def never(leaves):
        yield f"a = {leaves['a']} is never right"

    one = Rules(optional=("a",), ranges={"a": ("above 0", lambda x: x > 0)})
    other = Rules(choices={"b": ("x", "y")}, checks=(never,))
    both = one | other
    assert set(both.keys) == {"a", "b"}
    with pytest.raises(ValueError, match="a = 1 is never right"):
        check({"a": 1, "b": "x"}, both)
    picked = both.only(("b",))
    check({"b": "x"}, picked)
    with pytest.raises(ValueError, match="choose one of x, y"):
        check({"b": "z"}, picked)


def test_a_prefix_ends_with_a_dot():
    rules = Rules(no_effect=(lambda leaves: iter([("a.", "a is off")]),))
    leaves = {"a.b": 1, "ab": 1}
    check(leaves, rules, ["ab"])
    with pytest.raises(ValueError, match=r"a\.b has no effect here: a is off"):
        check(leaves, rules, ["a.b"])
