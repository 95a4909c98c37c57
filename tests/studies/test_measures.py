"""Measures of runs whose curves are known."""

import pytest

from studies.measures import MEASURES, fall_of, first_rise, format_value
from studies.records import RunRecord

KINDS = ("alarm", "alarmed", "lead", "warned", "after_spread")
# Means of two: 0.25, 0.4, 0.55, 0.5, 0.35.
HELD_OUT = {0: 0.2, 5: 0.3, 10: 0.5, 15: 0.6, 20: 0.4, 25: 0.3}
STEADY = {0: 0.4, 5: 0.5, 10: 0.4, 15: 0.5, 20: 0.4, 25: 0.5}


def make_run(held_out=HELD_OUT, **fields):
    curves = {"val-env/*/success": held_out} | fields.pop("curves", {})
    return RunRecord(seed=0, seconds=30.0, curves=curves, **fields)


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
    assert fall_of(HELD_OUT) == 25
    assert fall_of(STEADY) is None
    # One bad evaluation is not a collapse.
    assert fall_of({0: 0.4, 5: 0.4, 10: 0.25, 15: 0.4}) is None
    assert fall_of({0: 0.4}) is None


def test_when_a_curve_rose():
    assert first_rise({1: 0.3, 2: 0.25, 3: 0.3, 4: 0.35, 5: 0.5}) == 4
    assert first_rise({1: 0.3, 2: 0.39}) is None
    assert first_rise({}) is None


@pytest.mark.parametrize(
    ("alarm", "lead", "warned"),
    [(10, 15, 1), (25, 0, 1), (30, -5, 0), (None, None, 0)],
)
def test_leads(alarm, lead, warned):
    alarms = {"entropy": alarm, "in_group_reward_std": 8}
    run = make_run(first_alarms=alarms)
    found = {name: MEASURES[f"entropy_{name}"].value(run) for name in KINDS}
    after = None if alarm is None else alarm - 8
    alarmed = alarm is not None
    assert found == dict(zip(KINDS, (alarm, alarmed, lead, warned, after), strict=True))
    assert MEASURES["fell"].value(run) == 1
    steady = make_run(STEADY, first_alarms=alarms)
    found = {name: MEASURES[f"entropy_{name}"].value(steady) for name in KINDS}
    assert found == dict(zip(KINDS, (alarm, alarmed, None, None, after), strict=True))
    assert MEASURES["fell"].value(steady) == 0


def test_false_statements_before_the_fall():
    rate = {0: 0.2, 5: 0.15, 10: 0.22, 15: 0.26, 20: 0.2, 25: 0.3}
    run = make_run(curves={"val-env/*/hallucination_rate": rate})
    assert MEASURES["false_at"].value(run) == 15
    assert MEASURES["false_lead"].value(run) == 10
    assert MEASURES["false_warned"].value(run) == 1
    assert MEASURES["became_false"].value(run) == 1
    assert MEASURES["became_false"].value(make_run()) == 0


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
    for name, value in (
        ("rise_early", 6 / 10),
        ("rise_late", 15 / 17),
        ("regulariser_growth", 0.5 / 1.5 - 0.05 / 2.05),
    ):
        assert MEASURES[name].value(run) == pytest.approx(value)
    assert MEASURES["rise_early"].value(make_run()) is None


def test_groups_without_spread_have_no_gradient():
    norms = {"bucket_1/task": 0.0, "bucket_2/task": 4.0, "bucket_1/entropy": 0.1}
    run = make_run(curves={f"grad_norm/{n}": {1: x} for n, x in norms.items()})
    assert MEASURES["rise_early"].value(run) == 1
    assert MEASURES["regulariser_growth"].value(run) == 0


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.256, "share", "25.6 %"),
        (0.256, "change", "+25.6 points"),
        (-0.256, "relative", "-25.6 %"),
        (12.6, "iterations", "13"),
        (0.12345, "number", "0.123"),
    ],
)
def test_forms(value, form, text):
    assert format_value(value, form) == text


def test_ends_of_an_interval_have_no_unit():
    text = format_value(0.2, "share", (0.1, 0.3))
    assert text == "20.0 % [10.0, 30.0]"
