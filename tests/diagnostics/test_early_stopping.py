"""Early stopping: each reason alone, and through the command."""

import math

import numpy as np
import pytest

from ragen_jax.diagnostics.early_stopping import EMPTY, SPREAD, stop_reason, stuck_note

SUCCESS = "val-env/Sokoban/success"
OFF = {
    "success_names": (SUCCESS,),
    "max_empty_iterations": 3,
    "min_spread_fraction": None,
    "collapse_window": 2,
    "min_success": None,
    "failure_window": 2,
}


def records(*, empty=(), spread=(), success=()):
    """One record per iteration; None: the metric is missing there."""
    columns = {EMPTY: empty, SPREAD: spread, SUCCESS: success}
    count = max(map(len, columns.values()))
    return [
        {name: column[i] for name, column in columns.items() if i < len(column)}
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("empty", "stops"),
    [
        ([], False),
        ([1, 1], False),
        ([1, 1, 1], True),
        ([0, 1, 1, 1], True),
        ([1, 1, 0, 1, 1], False),
        ([1, 1, 1, 0], False),
    ],
)
def test_nothing_kept(empty, stops):
    reason = stop_reason(records(empty=empty), **OFF)
    assert (reason is not None) == stops
    if stops:
        assert "kept nothing in 3 iterations in a row (train.max_empty" in reason


@pytest.mark.parametrize(
    ("spread", "stops"),
    [
        ([1.0, 3.0], False),
        ([1.0, 3.0, 0.1], False),
        ([1.0, 3.0, 0.1, 0.19], True),
        ([1.0, 3.0, 0.1, 0.2], False),
        ([1.0, 3.0, 9.0, 0.1, 0.1], True),
        ([1.0, 3.0, 0.1, 0.1, 9.0], False),
        ([0.0, 0.0, 0.0, 0.0], False),
    ],
)
def test_spread_collapsed(spread, stops):
    """A tenth of the mean of the first two, which is 2, for two in a row."""
    settings = OFF | {"min_spread_fraction": 0.1}
    reason = stop_reason(records(spread=spread), **settings)
    assert (reason is not None) == stops
    assert stop_reason(records(spread=spread), **OFF) is None
    if stops:
        assert "below 0.2, 0.1 of what it was, for 2 iterations" in reason


def test_iterations_without_kept_groups_do_not_count_as_collapsed():
    spread, empty = [1.0, 1.0, 0.0, 0.0, 0.0], [0, 0, 1, 1, 0]
    settings = OFF | {"min_spread_fraction": 0.1}
    assert stop_reason(records(spread=spread, empty=empty), **settings) is None
    assert stop_reason(records(spread=[*spread, 0.0], empty=empty), **settings)


@pytest.mark.parametrize(
    ("success", "stops"),
    [([0.0], False), ([0.0, 0.009], True), ([0.0, 0.01], False), ([0.5, 0, 0], True)],
)
def test_success_too_low(success, stops):
    settings = OFF | {"min_success": 0.01}
    reason = stop_reason(records(success=success), **settings)
    assert (reason is not None) == stops
    assert stop_reason(records(success=success), **OFF) is None
    if stops:
        assert "held-out success was below 0.01 in 2 evaluations" in reason


def test_only_evaluations_count_for_success():
    measured = [{SUCCESS: 0.0}, {EMPTY: 0.0}, {EMPTY: 0.0}]
    settings = OFF | {"min_success": 0.01}
    assert stop_reason(measured, **settings) is None
    assert stop_reason([*measured, {SUCCESS: 0.0}], **settings)


def test_a_record_read_back_says_the_same():
    """On disk a number is Python's float, and not-a-number is None."""
    settings = OFF | {"min_spread_fraction": 0.1}
    spread = [1.0, 3.0, math.nan, 0.1, 0.15]
    live = records(spread=[np.float32(x) for x in spread])
    read = records(spread=[None if math.isnan(x) else x for x in spread])
    assert stop_reason(live, **settings) == stop_reason(read, **settings) is not None


def failing(spread, successes):
    return [
        {
            "rollout/in_group_reward_std": spread,
            "train/A/success": a,
            "train/B/success": b,
        }
        for a, b in successes
    ]


@pytest.mark.parametrize(
    ("spread", "successes", "words"),
    [
        (0.0, [(0, 0)] * 3, "nothing to learn"),
        (0.3, [(0, 0)] * 3, "fail cheaply"),
        (None, [(0, 0)] * 3, "nothing to learn"),
        (0.0, [(0.1, 0), *[(0, 0)] * 3], "nothing to learn"),
        (0.0, [(0, 0)] * 2, None),
        (0.0, [(0, 0), (0, 0.1), (0, 0)], None),
        # Once is enough.
        (0.0, [(0, 0)] * 4, None),
    ],
)
def test_a_run_without_success_says_what_that_means(spread, successes, words):
    records = [{"val-env/A/success": 0.0}, *failing(spread, successes)]
    note = stuck_note(records, ["train/A/success", "train/B/success"])
    assert note is None if words is None else words in note
