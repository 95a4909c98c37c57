"""Verdicts on runs whose answers are known."""

import dataclasses

import pytest

from studies.arms import Arm
from studies.claims import (
    NOT_REPRODUCED,
    OPPOSITE,
    REPRODUCED,
    Claim,
    Correlation,
    Difference,
    Mean,
    Trend,
    judge,
)
from tests.studies.runs import ONE, OTHER, run, runs_of

GOOD, BAD = (0.6, 0.61, 0.63, 0.58, 0.65), (0.4, 0.45, 0.5, 0.42, 0.41)


def word(test, **runs):
    arms = {arm.name: runs[key] for key, arm in (("one", ONE), ("other", OTHER))}
    return judge(Claim("a claim", test), arms).word


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (GOOD, BAD, REPRODUCED),
        (BAD, GOOD, OPPOSITE),
        (GOOD, (0.7, 0.5, 0.62, 0.4, 0.66), NOT_REPRODUCED),
        # Three of each: all above all others is just enough, one below is not.
        (GOOD[:3], BAD[:3], REPRODUCED),
        ((0.6, 0.61, 0.44), BAD[:3], NOT_REPRODUCED),
        # Clear, and too small to count.
        ((0.51, 0.511, 0.512, 0.513, 0.514), (0.5, 0.501, 0.502, 0.503, 0.504),
         NOT_REPRODUCED),
    ],
)  # fmt: skip
def test_differences(one, other, expected):
    test = Difference(ONE, OTHER, "final")
    assert word(test, one=runs_of(*one), other=runs_of(*other)) == expected


def test_a_difference_is_described():
    runs = {ONE.name: runs_of(*GOOD), OTHER.name: runs_of(*BAD)}
    verdict = judge(Claim("", Difference(ONE, OTHER)), runs)
    assert verdict.effect.size == pytest.approx(0.178)
    assert verdict.effect.p.above == pytest.approx(1 / 252)
    low, high = verdict.effect.interval
    assert 0.1 < low < 0.178 < high < 0.25
    assert verdict.found.startswith("+17.8 points [+")
    assert verdict.found.endswith("], p 0.004, 10 runs")


@pytest.mark.parametrize(
    ("above", "sign", "expected"),
    [
        (0.0, 1, REPRODUCED),
        (0.0, -1, OPPOSITE),
        (0.36, 1, NOT_REPRODUCED),
        # Not that much is not the opposite.
        (0.5, 1, NOT_REPRODUCED),
        (-0.5, -1, NOT_REPRODUCED),
        (-0.2, -1, OPPOSITE),
    ],
)
def test_means(above, sign, expected):
    test = Mean((ONE,), "gain", above=above, sign=sign)
    assert word(test, one=runs_of(*GOOD), other=[]) == expected


def test_the_opposite_of_a_threshold_is_tested_on_its_other_side():
    """One run far below, and four at 0, are nowhere below -5 points."""
    runs = runs_of(-0.41, 0.0, 0.0, 0.03, 0.03)
    assert word(Mean((ONE,), "final", above=0.05), one=runs, other=[]) == NOT_REPRODUCED


def test_few_runs_are_said_to_be_few():
    runs = {ONE.name: runs_of(0.6, 0.7), OTHER.name: runs_of(0.1, 0.2)}
    verdict = judge(Claim("", Difference(ONE, OTHER)), runs)
    assert verdict.word == NOT_REPRODUCED
    assert verdict.found.endswith("4 runs, too few to decide")


def test_an_arm_is_one_unit():
    """A clear effect in two arms is one of two units, which decide nothing."""
    runs = {"one": runs_of(*GOOD), "other": runs_of(*BAD)}
    arms = (ONE, OTHER)
    assert word(Mean(arms, "gain"), **runs) == REPRODUCED
    assert word(Mean(arms, "gain", by_arm=True), **runs) == NOT_REPRODUCED


LADDER = [Arm(f"sokoban-{i}", f"step {i}", "sokoban") for i in range(5)]


def ladder(*finals):
    return {
        arm.name: runs_of(*(final + shift for shift in (0, 0.01, -0.02)))
        for arm, final in zip(LADDER, finals, strict=True)
    }


def test_trends():
    rising = ladder(0.3, 0.35, 0.4, 0.5, 0.55)
    for sign, expected in ((1, REPRODUCED), (-1, OPPOSITE)):
        claim = Claim("", Trend(tuple(LADDER), "final", sign))
        assert judge(claim, rising).word == expected
    flat = ladder(0.4, 0.3, 0.5, 0.3, 0.4)
    assert judge(Claim("", Trend(tuple(LADDER))), flat).word == NOT_REPRODUCED


def test_the_trend_of_a_gain():
    """The arms rise; what they gain over their bases falls."""
    arms, bases = (
        LADDER,
        [dataclasses.replace(arm, name=f"{arm.name}-base") for arm in LADDER],
    )
    own = ladder(0.5, 0.55, 0.6, 0.65, 0.7)
    base = {
        f"{name}-base": runs for name, runs in ladder(0.2, 0.35, 0.5, 0.6, 0.7).items()
    }
    falling = Trend(tuple(arms), base=tuple(bases), sign=-1)
    assert judge(Claim("", falling), own | base).word == REPRODUCED
    assert judge(Claim("", Trend(tuple(arms))), own | base).word == REPRODUCED


def test_correlations():
    runs = {
        arm.name: [run(0, 0.3 + 0.1 * i, actor__entropy=[0.9, 0.9, 0.8 - 0.1 * i])]
        for i, arm in enumerate(LADDER)
    }
    for sign, expected in ((-1, REPRODUCED), (1, OPPOSITE)):
        claim = Claim("", Correlation(tuple(LADDER), "entropy", sign=sign))
        assert judge(claim, runs).word == expected
    found = judge(Claim("", Correlation(tuple(LADDER), "entropy")), runs).found
    assert found == "rho -1.00, p 0.008, 5 arms; over their runs -1.00"
    verdict = judge(Claim("", Correlation(tuple(LADDER), "spread")), runs)
    assert verdict == (NOT_REPRODUCED, "no run had the measure", None)
