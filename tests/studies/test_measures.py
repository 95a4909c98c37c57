"""Measures of runs whose curves are known."""

import pytest

from ragen_jax.studies.measures import (
    MEASURES,
    fall_of,
    first_rise,
    format_value,
)
from ragen_jax.studies.records import RunRecord

HELD_OUT = {0: 0.2, 5: 0.3, 10: 0.5, 15: 0.6, 20: 0.4, 25: 0.3}
# Rises to 0.5, falls from iteration 11 on.
TRAINED = {i: 0.5 if i <= 10 else 0.2 for i in range(1, 21)}


def make_run(**fields):
    curves = {"val-env/*/success": HELD_OUT, "train/*/success": TRAINED}
    return RunRecord(seed=0, seconds=30.0, curves=curves | fields.pop("curves", {}),
                     **fields)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start", 0.2),
        # Only the last evaluation is in the last fifth.
        ("final", 0.3),
        ("gain", 0.1),
        ("peak_gain", 0.5 - 0.2),
        ("fall", 0.5 - 0.3),
        ("seconds", 30.0),
        ("entropy", None),
        ("reply_change", -0.5),
        ("suite:Bandit-Reversed", 0.7),
        ("suite:Bandit-TestNames", None),
        ("false_change", 0.2),
    ],
)
def test_measures(name, value):
    run = make_run(
        curves={
            "train/*/reply_length": {1: 20, 2: 19, 8: 12, 9: 10, 10: 10},
            "val-env/*/hallucination_rate": {0: 0.1, 5: 0.2, 25: 0.3},
        },
        suite={"Bandit-Reversed": 0.7},
    )
    assert MEASURES[name].value(run) == (
        None if value is None else pytest.approx(value)
    )


def test_when_success_fell():
    # The mean over five is 0.38 at iteration 12, 0.32 at 13: below 0.75 of 0.5.
    assert fall_of(TRAINED) == 13
    assert fall_of(dict.fromkeys(range(1, 21), 0.5)) is None


def test_when_a_curve_rose():
    assert first_rise({1: 0.3, 2: 0.25, 3: 0.3, 4: 0.35, 5: 0.5}) == 4
    assert first_rise({1: 0.3, 2: 0.39}) is None
    assert first_rise({}) is None


@pytest.mark.parametrize(
    ("alarm", "lead", "warned"),
    [(10, 3, 1), (13, 0, 1), (15, -2, 0), (None, None, 0)],
)
def test_leads(alarm, lead, warned):
    run = make_run(first_alarms={"entropy": alarm})
    assert MEASURES["entropy_lead"].value(run) == lead
    assert MEASURES["entropy_warned"].value(run) == warned
    steady = make_run(
        curves={"train/*/success": dict.fromkeys(range(1, 21), 0.5)},
        first_alarms={"entropy": alarm},
    )
    assert MEASURES["entropy_lead"].value(steady) is None
    assert MEASURES["entropy_warned"].value(steady) is None


def test_false_statements_before_the_fall():
    rate = {i: 0.2 if i < 8 else 0.35 for i in range(1, 21)}
    run = make_run(curves={"train/*/hallucination_rate": rate})
    assert MEASURES["false_lead"].value(run) == 13 - 8


def test_gradients_by_bucket():
    norms = {
        "bucket_1/task": (2.0, 1.0),
        "bucket_2/task": (4.0, 8.0),
        "bucket_10/task": (8.0, 16.0),
        "bucket_1/entropy": (0.03, 0.3),
        "bucket_1/kl": (0.04, 0.4),
    }
    run = make_run(
        curves={f"grad_norm/{name}": {1: a, 50: b} for name, (a, b) in norms.items()}
    )
    log4, log16, log20 = 1.3863, 2.7726, 2.9957
    for name, value in (
        ("rise_early", log4),
        ("rise_late", log16),
        ("regulariser_growth", log20),
    ):
        assert MEASURES[name].value(run) == pytest.approx(value, abs=1e-3)
    assert MEASURES["rise_early"].value(make_run()) is None


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.256, "share", "25.6 %"),
        (0.256, "change", "+25.6 %"),
        (12.6, "iterations", "13"),
        (0.12345, "number", "0.123"),
    ],
)
def test_forms(value, form, text):
    assert format_value(value, form) == text
