"""Claims about runs, the tests that decide on them, and studies made of both.

In: records of runs. Out: verdicts. A claim holds everything that its verdict depends
on, except the runs, and is committed before them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ragen_jax.evaluation.statistics import bootstrap_interval
from studies import permutation
from studies.arms import Arm
from studies.measures import MEASURES, Measure, format_value
from studies.permutation import PValues
from studies.records import RunRecord

# Chance, in each direction, at which a test without an effect decides wrongly.
LEVEL = 0.05
REPRODUCED, NOT_REPRODUCED, OPPOSITE = "reproduced", "not reproduced", "opposite"


Runs = Mapping[str, Sequence[RunRecord]]


class Effect(NamedTuple):
    """What a test found.

    Attributes:
      size: the effect, positive in the direction of the claim.
      interval: its ends; None for too few runs.
      p: in the direction of the claim (`above`) and against it.
      num_runs: that had the measure; of a correlation, arms.
      of_runs: of a correlation over arms, that over all of their runs.
    """

    size: float
    interval: tuple[float, float] | None
    p: PValues
    num_runs: int
    of_runs: float | None = None


@dataclasses.dataclass(frozen=True)
class Difference:
    """A measure is larger in one arm than in another: test of two samples."""

    high: Arm
    low: Arm
    measure: str = "final"

    @property
    def arms(self) -> tuple[Arm, ...]:
        return self.high, self.low

    def effect(self, runs: Runs) -> Effect | None:
        high, low = (_values(runs[arm.name], self.measure) for arm in self.arms)
        if not high or not low:
            return None
        return Effect(
            size=float(np.mean(high) - np.mean(low)),
            interval=bootstrap_interval(high, low),
            p=permutation.two_samples(high, low),
            num_runs=len(high) + len(low),
        )


@dataclasses.dataclass(frozen=True)
class Mean:
    """A measure lies above a value, or below with `sign=-1`: signs are changed.

    `by_arm`: the unit is an arm's mean, not a run; for claims over many arms, whose
    runs are alike.
    """

    arms: tuple[Arm, ...]
    measure: str
    above: float = 0.0
    sign: int = 1
    by_arm: bool = False

    def effect(self, runs: Runs) -> Effect | None:
        groups = [_values(runs[arm.name], self.measure) for arm in self.arms]
        num_runs = sum(map(len, groups))
        values = [value for group in groups for value in group]
        if self.by_arm:
            values = [float(np.mean(group)) for group in groups if group]
        if not values:
            return None
        excess = [self.sign * (value - self.above) for value in values]
        # The opposite has to lie as far on the other side.
        other = [self.sign * (value + self.above) for value in values]
        p = permutation.one_sample(excess)
        return Effect(
            size=float(np.mean(excess)),
            interval=bootstrap_interval(excess),
            p=p._replace(below=permutation.one_sample(other).below),
            num_runs=num_runs,
        )


@dataclasses.dataclass(frozen=True)
class Trend:
    """A measure rises along the arms, or falls with `sign=-1`: Spearman's correlation.

    `base`: arms whose values, seed by seed, are subtracted: the trend of a gain.
    """

    along: tuple[Arm, ...]
    measure: str = "final"
    sign: int = 1
    base: tuple[Arm, ...] = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        return self.along + self.base

    def effect(self, runs: Runs) -> Effect | None:
        places, values = [], []
        for place, arm in enumerate(self.along):
            gains = _by_seed(runs[arm.name], self.measure)
            if self.base:
                other = _by_seed(runs[self.base[place].name], self.measure)
                gains = {s: g - other[s] for s, g in gains.items() if s in other}
            places += [place] * len(gains)
            values += [self.sign * value for value in gains.values()]
        if len(set(places)) < 2:
            return None
        size, p = permutation.rank_correlation(places, values)
        return Effect(size=size, interval=None, p=p, num_runs=len(values))


@dataclasses.dataclass(frozen=True)
class Correlation:
    """Two measures rise together, or against each other with `sign=-1`.

    Spearman's correlation over the arms' means, ranked within each game: runs of an arm
    are alike, and games differ in all measures.
    """

    arms: tuple[Arm, ...]
    measure: str
    other: str = "final"
    sign: int = 1

    def pairs(self, arm: Arm, runs: Runs) -> list[tuple[float, float]]:
        """Both measures of every run of an arm that has them."""
        x, y = MEASURES[self.measure].value, MEASURES[self.other].value
        pairs = [(x(run), y(run)) for run in runs[arm.name]]
        return [pair for pair in pairs if None not in pair]

    def effect(self, runs: Runs) -> Effect | None:
        groups = [(arm.game, self.pairs(arm, runs)) for arm in self.arms]
        groups = [(game, pairs) for game, pairs in groups if pairs]
        if len(groups) < 3:
            return None
        means = [(game, *np.mean(pairs, axis=0)) for game, pairs in groups]
        each = [(game, *pair) for game, pairs in groups for pair in pairs]
        (size, p), (of_runs, _) = (
            permutation.rank_correlation(x, self.sign * np.array(y), blocks=games)
            for games, x, y in (zip(*rows, strict=True) for rows in (means, each))
        )
        return Effect(size, None, p, len(means), of_runs)


Test = Difference | Mean | Trend | Correlation


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of a paper or of this repository, and the test that decides on it.

    Attributes:
      text: states what holds if the claim is true.
      test: decides.
    """

    text: str
    test: Test


class Verdict(NamedTuple):
    """What came of a claim.

    Attributes:
      word: reproduced, not reproduced or opposite.
      found: size, interval and p-value, in words.
      effect: None where no run had the measure.
    """

    word: str
    found: str
    effect: Effect | None


def judge(claim: Claim, runs: Runs) -> Verdict:
    """The verdict on a claim.

    Reproduced: the test's p-value is at most `LEVEL`, and the effect not smaller than
    the measure's margin. Opposite: the same in the other direction; a change that has
    to exceed a threshold must exceed it there. Else not reproduced.

    Args:
      claim: of a study.
      runs: by arm; every arm of the claim is there.
    """
    effect, measure = claim.test.effect(runs), MEASURES[claim.test.measure]
    if effect is None:
        return Verdict(NOT_REPRODUCED, "no run had the measure", None)
    is_rank = isinstance(claim.test, Trend | Correlation)
    margin = 0.0 if is_rank else measure.margin
    threshold = abs(claim.test.above) if isinstance(claim.test, Mean) else 0.0
    word = NOT_REPRODUCED
    if effect.p.above <= LEVEL and effect.size >= margin:
        word = REPRODUCED
    elif effect.p.below <= LEVEL and -effect.size >= margin + 2 * threshold:
        word = OPPOSITE
    return Verdict(word, _describe(effect, measure, is_rank), effect)


def _describe(effect: Effect, measure: Measure, is_rank: bool) -> str:
    p = _p(min(effect.p.above, effect.p.below))
    # Most ranks may be equal, as those of an alarm are that no run had.
    words = ", too few differ to decide" if is_rank else ", too few to decide"
    few = words if effect.p.least > LEVEL else ""
    if is_rank:
        text = f"rho {effect.size:+.2f}, p {p}, {effect.num_runs}"
        if effect.of_runs is None:
            return f"{text} runs{few}"
        return f"{text} arms{few}; over their runs {effect.of_runs:+.2f}"
    form = {"share": "change"}.get(measure.form, measure.form)
    text = format_value(effect.size, form, effect.interval)
    return f"{text}, p {p}, {effect.num_runs} runs{few}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _by_seed(runs: Sequence[RunRecord], measure: str) -> dict[int, float]:
    value: Callable = MEASURES[measure].value
    numbers = {run.seed: value(run) for run in runs}
    return {seed: number for seed, number in numbers.items() if number is not None}


def _values(runs: Sequence[RunRecord], measure: str) -> list[float]:
    return list(_by_seed(runs, measure).values())


@dataclasses.dataclass(frozen=True)
class Study:
    """A named comparison.

    Attributes:
      name: of its page.
      title: heading.
      question: what is compared, on what, and why.
      paper: what the papers say, with figure or table.
      claims: each with its verdict.
      columns: measures of the table of arms.
      values: by name, the compared value of an arm that other studies share.
      curves: metrics drawn over the iterations; none: `drawn`, arm by arm.
      drawn: measures of the figure; none: gradients by reward spread.
    """

    name: str
    title: str
    question: str
    paper: str
    claims: tuple[Claim, ...]
    columns: tuple[str, ...] = ("start", "final", "seconds")
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    curves: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ("final",)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Every arm once, in the order of the claims."""
        named = [arm for claim in self.claims for arm in claim.test.arms]
        return tuple({arm.name: arm for arm in named}.values())

    def label(self, arm: Arm) -> str:
        """How the study's tables and figures call an arm."""
        return ", ".join(filter(None, (arm.label, self.values.get(arm.name))))
