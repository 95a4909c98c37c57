"""The group filter: scores, choices, and their edge cases."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.algo.filters import FILTERS, SCORES, top_fraction
from ragen_jax.algo.segments import takes_part
from ragen_jax.algo.selection import FilterConfig
from ragen_jax.learner.batch import game_rewards, named_arrays
from ragen_jax.registry.functions import option_names
from tests.algo import calls
from tests.algo.calls import OPTIONS, compiled
from tests.reference import filters_oracle as oracle
from tests.trajectories import make_dialogues, make_trajectory, make_turns

NAN = float("nan")
GROUP_RULES = [name for name in FILTERS if name != "within_group"]
DIRECTED = [name for name in GROUP_RULES if "direction" in option_names(FILTERS[name])]
SEEDS = st.integers(0, 2**16)
few = settings(max_examples=10, deadline=None)
# Multiples of 1/8: their sums are exact, and ties frequent.
SCORE_LISTS = st.lists(st.integers(-2, 16).map(lambda n: n / 8), min_size=8, max_size=8)


def score(name, trajectory, group_size=4, entropies=None):
    return calls.run(SCORES[name], arrays(trajectory, group_size, entropies))


def arrays(trajectory, group_size=4, entropies=None):
    own = {"rewards": game_rewards(trajectory), "entropies": entropies}
    own["counted"] = takes_part(trajectory.loss_mask)
    return named_arrays(trajectory, group_size=group_size) | own


def choose(name, scores, rewards=None, **options):
    """Rows kept, of two rows per group unless rewards are given."""
    scores = jnp.asarray(scores, jnp.float32)
    if name == "within_group":
        return compiled(FILTERS[name], **options)(scores, rewards=jnp.asarray(rewards))
    return compiled(FILTERS[name], group_size=2, **options)(scores)


def kept_groups(name, scores, **options):
    """Indices of the groups kept; all rows of a group share its fate."""
    kept = np.asarray(choose(name, scores, **options))
    assert kept.shape == (len(scores), 2)
    assert (kept[:, 0] == kept[:, 1]).all()
    return np.flatnonzero(kept[:, 0]).tolist()


# Scores.


def make_scored(seed):
    """Dialogues with some rows silent, and entropies that are nonsense off the mask."""
    random = np.random.default_rng(seed)
    trajectory = make_dialogues(12, seed=seed)
    mask = trajectory.loss_mask & (random.random((12, 1)) < 0.8)
    entropies = np.where(mask, random.random(mask.shape), np.nan)
    return trajectory.replace(loss_mask=mask), jnp.asarray(entropies, jnp.float32)


@pytest.mark.parametrize("name", SCORES)
@few
@given(seed=SEEDS)
def test_score_equals_oracle(name, seed):
    trajectory, entropies = make_scored(seed)
    actual = score(name, trajectory, entropies=entropies)
    assert actual.shape == (3,)
    assert actual.dtype == jnp.float32
    mask, turns = np.asarray(trajectory.loss_mask), trajectory.turns
    rewards = np.where(turns.played, turns.reward, 0.0).sum(axis=1, dtype=float)
    if name.startswith("reward"):
        has_tokens = mask.any(axis=1)
        counted = [x if y else None for x, y in zip(rewards, has_tokens, strict=True)]
        arguments = (counted, 4)
    elif name == "length":
        arguments = (mask, 4)
    else:
        arguments = (mask, np.asarray(entropies), 4)
    expected = getattr(oracle, name)(*arguments)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SCORES)
def test_score_does_not_see_penalties_or_padding(name):
    trajectory, entropies = make_scored(0)
    turns = trajectory.turns
    padding = ((0, 0), (0, 5))
    noisy = trajectory.replace(
        turns=turns.replace(penalty=turns.penalty - 3.0, bonus=turns.bonus + 2.0),
        loss_mask=jnp.pad(trajectory.loss_mask, padding),
    )
    padded = jnp.pad(entropies, padding, constant_values=9.0)
    np.testing.assert_allclose(
        score(name, noisy, entropies=padded),
        score(name, trajectory, entropies=entropies),
        rtol=1e-6,
    )


@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_reward_std_equals_oracle(group_size):
    rewards = [0.0, 1.0, 1.0, 0.0, 3.0, 3.0, 3.0, 3.0, -1.0, 0.5, 10.9, -0.4]
    np.testing.assert_allclose(
        score("reward_std", make_trajectory(rewards), group_size),
        oracle.reward_std(rewards, group_size),
        rtol=1e-6,
        atol=1e-6,
    )


def test_reward_std_does_not_see_penalties():
    turns = make_turns([[1.0], [1.0]], penalty=[[0.0], [-0.1]])
    trajectory = make_trajectory([0.0, 0.0]).replace(turns=turns)
    assert score("reward_std", trajectory, 2)[0] == 0.0


@pytest.mark.parametrize(
    ("rule", "options", "kept"),
    [
        ("top_fraction", {"keep_fraction": 0.5}, [4, 5, 6, 7]),
        # Of the first group no two rows differ.
        ("within_group", {"rows_per_group": 2}, [4, 7]),
    ],
)
def test_rows_of_failed_games_do_not_count(rule, options, kept):
    """Their rewards stay, their masks are empty."""
    rewards = [1.0, 1.0, 1.0, 0.0, 0.2, 0.4, 0.2, 0.4]
    trajectory = make_trajectory(rewards)
    mask = trajectory.loss_mask.at[3].set(False)
    data = named_arrays(trajectory.replace(loss_mask=mask), group_size=4)
    options |= {"direction": "largest", "keep_zero": False}
    chooser = FilterConfig("reward_std", rule, "none", options)
    assert np.flatnonzero(chooser.choose(data, None).kept).tolist() == kept


@pytest.mark.parametrize("name", [name for name in SCORES if "reward" in name])
def test_where_no_game_fails_all_rows_count(name):
    """Numbers of rows are constants then; only the rounding may differ."""
    rewards = [1.0, 1.0, 1.0, 0.0, 0.2, 0.4, 0.2, 0.4, 10.9, 10.7, -1.0, -1.0]
    data = named_arrays(make_trajectory(rewards), group_size=4)
    options = {"direction": "largest", "keep_zero": True, "keep_fraction": 0.3}
    chosen = [
        FilterConfig(name, "top_fraction", "none", options, rows_fail).choose(
            data, None
        )
        for rows_fail in (True, False)
    ]
    np.testing.assert_allclose(chosen[0].scores, chosen[1].scores, rtol=1e-6)
    np.testing.assert_array_equal(chosen[0].kept, chosen[1].kept)
    assert chosen[1].kept.sum() == 4


# Rules.


@pytest.mark.parametrize("keep_zero", [True, False])
@pytest.mark.parametrize("direction", ["largest", "smallest"])
@pytest.mark.parametrize("name", DIRECTED)
@few
@given(scores=SCORE_LISTS)
def test_rule_equals_oracle(name, direction, keep_zero, scores):
    options = {"direction": direction, "keep_zero": keep_zero}
    own = [OPTIONS[k] for k in option_names(FILTERS[name]) if k not in options]
    expected = getattr(oracle, name)(scores, direction, keep_zero, *own)
    assert kept_groups(name, scores, **options) == sorted(expected)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.98, 1.0])
@pytest.mark.parametrize("name", ["top_p", "top_p_softmax", "min_p"])
def test_every_share_equals_oracle(name, share):
    random = np.random.default_rng(0)
    for _ in range(20):
        scores = (random.integers(0, 40, 8) / 8).tolist()
        option = {"min_p" if name == "min_p" else "top_p": share}
        own = (share, 0.01) if name == "top_p" else (share,)
        expected = getattr(oracle, name)(scores, "largest", True, *own)
        assert kept_groups(name, scores, **option) == sorted(expected)


@few
@given(scores=SCORE_LISTS, keep_zero=st.booleans())
def test_quantile_bands_equal_oracle_and_share_out_the_groups(scores, keep_zero):
    found = []
    for low, high in [(0.0, 0.25), (0.25, 0.75), (0.75, 1.0)]:
        options = {"quantile_low": low, "quantile_high": high, "keep_zero": keep_zero}
        band = kept_groups("quantile_band", scores, **options)
        assert band == sorted(oracle.quantile_band(scores, keep_zero, low, high))
        found += band
    assert sorted(found) == sorted(oracle.queue(scores, "largest", keep_zero))


@few
@given(
    scores=SCORE_LISTS,
    keep_fraction=st.sampled_from([0.01, 0.124, 0.125, 0.25, 0.3, 0.5, 0.99, 1.0]),
)
def test_every_fraction_equals_oracle(scores, keep_fraction):
    expected = oracle.top_fraction(scores, "largest", True, keep_fraction)
    actual = kept_groups("top_fraction", scores, keep_fraction=keep_fraction)
    assert actual == sorted(expected)


@pytest.mark.parametrize("name", GROUP_RULES)
def test_the_order_of_groups_does_not_matter(name):
    """Without ties; with ties the earlier group wins."""
    scores = np.asarray([0.5, 3.0, 0.25, 1.0, 2.0, 0.125, 0.75, 1.5])
    order = np.random.default_rng(0).permutation(8)
    kept = np.asarray(choose(name, scores))
    np.testing.assert_array_equal(choose(name, scores[order]), kept[order])


@pytest.mark.parametrize("scale", [1e-3, 10.0])
@pytest.mark.parametrize("name", [n for n in GROUP_RULES if n != "top_p_softmax"])
def test_the_scale_of_scores_does_not_matter(name, scale):
    """With an epsilon of 0 and without scores near 1e-10."""
    scores = np.asarray([0.5, 3.0, 0.25, 1.0, 2.0, 0.125, 0.75, 1.5])
    exact = {"top_p_epsilon": 0.0} if name == "top_p" else {}
    assert kept_groups(name, scores * scale, **exact) == kept_groups(
        name, scores, **exact
    )


@pytest.mark.parametrize("name", FILTERS)
def test_nothing_but_zeros_and_zeros_are_out(name):
    zeros = np.zeros((4, 2), np.float32)
    assert not choose(name, [0.0] * 4, rewards=zeros, keep_zero=False).any()


def test_rules_by_hand():
    """Groups of standard deviations 9 and 5 hold 14 of 15; 13.5 are asked for."""
    scores = [1.0, 9.0, 0.0, 5.0]
    assert kept_groups("top_p", scores, top_p=0.9) == [1, 3]
    assert kept_groups("top_p", scores, top_p=0.95) == [0, 1, 3]
    assert kept_groups("min_p", scores, min_p=0.5) == [1, 3]
    assert kept_groups("top_k", scores, top_k=3) == [0, 1, 3]
    assert kept_groups("top_fraction", scores, keep_fraction=0.25) == [1]
    assert kept_groups("top_p_softmax", scores, top_p=0.9) == [1]


def test_linear_and_softmax_part_where_one_group_lives():
    scores = [0.5] + [0.0] * 7
    assert kept_groups("top_p", scores) == [0]
    assert kept_groups("top_p_softmax", scores) == list(range(8))


def test_equal_scores_of_eight_groups():
    """7/8 are less than 0.9 of the softmax mass; linearly, epsilon is subtracted."""
    assert len(kept_groups("top_p_softmax", [0.25] * 8)) == 8
    assert len(kept_groups("top_p", [0.25] * 8)) == 8
    assert len(kept_groups("top_p", [0.25] * 10)) == 9


def test_linear_mass_may_keep_nothing():
    assert kept_groups("top_p", [0.0] * 8) == []
    # 0.9 * 0.01 - 0.01 < 0: too little to be worth anything.
    assert kept_groups("top_p", [0.01] + [0.0] * 7) == []
    assert kept_groups("top_p", [-1.0] * 8) == []
    # Nothing comes before a zero when the smallest are wanted.
    assert kept_groups("top_p", [0.0, 1.0, 2.0], direction="smallest") == []
    assert kept_groups("top_p", [0.0] * 8, top_p=1.0) == list(range(8))


def test_the_fraction_is_of_all_groups():
    scores = [0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 3.0, 0.0]
    options = {"keep_fraction": 0.25, "keep_zero": False}
    assert kept_groups("top_fraction", scores, **options) == [4, 6]


def test_keeping_all_keeps_groups_without_spread():
    kept = kept_groups("top_fraction", [0.0] * 5, keep_fraction=1.0)
    assert kept == list(range(5))


@pytest.mark.parametrize("direction", ["largest", "smallest"])
def test_not_a_number_is_wanted_last(direction):
    scores = [NAN, 1.0, 1.0, NAN]
    for name in DIRECTED:
        kept = kept_groups(name, scores, direction=direction)
        assert kept == [1, 2], name
    options = {"direction": direction, "keep_zero": True}
    assert kept_groups("top_k", scores, top_k=3, **options) == [0, 1, 2]
    assert kept_groups("top_k", scores, top_k=3, keep_zero=False) == [1, 2]
    assert kept_groups("quantile_band", scores, quantile_low=0.0) == [1]


def test_an_exact_share_loses_no_group_to_rounding():
    assert 0.29 * 100 < 29
    kept = top_fraction(
        jnp.arange(100.0),
        group_size=1,
        direction="largest",
        keep_zero=True,
        keep_fraction=0.29,
    )
    assert kept.sum() == 29


def test_an_unknown_direction_is_refused():
    with pytest.raises(ValueError, match="'largest' or 'smallest'"):
        choose("top_k", [1.0, 2.0], direction="biggest")


# Within groups.


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 9])
@few
@given(
    rewards=st.lists(st.integers(-3, 12).map(lambda n: n / 4), min_size=18, max_size=18)
)
def test_within_group_has_the_largest_variance_there_is(count, rewards):
    rewards = np.asarray(rewards, np.float32).reshape(3, 6)
    kept = choose("within_group", [1.0] * 3, rewards=rewards, rows_per_group=count)
    for group, chosen in zip(rewards, np.asarray(kept), strict=True):
        assert chosen.sum() == min(count, 6)
        best = oracle.largest_variance(group.tolist(), min(count, 6))
        assert group[chosen].var() == pytest.approx(best, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "rows"),
    [(1, [4]), (2, [0, 4]), (3, [0, 3, 4]), (4, [0, 2, 3, 4]), (5, [0, 1, 2, 3, 4])],
)
def test_within_group_by_hand(count, rows):
    """Of equal variances the one with more high rows; of equal rewards the earlier row
    is the lower one."""
    rewards = np.asarray([[0.0, 0.5, 0.5, 1.0, 1.0]], np.float32)
    kept = choose("within_group", [1.0], rewards=rewards, rows_per_group=count)
    assert np.flatnonzero(kept[0]).tolist() == rows


def test_within_group_leaves_out_what_is_no_number_and_no_candidate():
    rewards = np.asarray([[NAN, 0.0, 2.0], [NAN, NAN, 1.0], [0.0, 1.0, 2.0]], "f4")
    kept = choose("within_group", [1.0, 1.0, 0.0], rewards=rewards, keep_zero=False)
    assert kept.tolist() == [[False, True, True], [False, False, True], [False] * 3]
