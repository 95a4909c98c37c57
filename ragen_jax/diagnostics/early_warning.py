"""Early warnings of a collapse, computed from a run's record.

In: the metrics of the iterations so far, oldest first. Out: the alarms of the last
iteration, the regime of its thoughts, and the action to take. The record is the only
state, as in `early_stopping`: a resumed run decides as the uninterrupted one.

An indicator is a metric with a band around its mean over the first iterations; it
alarms after several iterations in a row outside the band. Where the form of replies is
learned first, the band is taken anew from there on. The first indicators of a run
that will not recover: rewards inside a group stop differing, replies stop varying,
gradients spike (the "echo trap", arXiv 2504.20073, section 4.3). The regime is the kind
of collapse, told apart by the information of thoughts about their prompts and by their
entropy (arXiv 2604.06268, section 3).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Record = Mapping[str, float | None]

# Part of a metric's name: the mean over all games of the run is taken.
EACH_GAME = "train/*/"
SUCCESS = EACH_GAME + "success"
FORM = EACH_GAME + "format"
# A model that writes this share of its replies in the form has learned it. Until then
# entropy and gradients fall with every reply that finds the form.
FORM_LEARNED = 0.8
# A metric that only iterations of training record.
TRAINED = "rollout/in_group_reward_std"
# Number of trained tokens; without any, the learner's metrics are undefined.
NUM_TOKENS = "actor/num_tokens"
# Prefix of the learner's metrics.
LEARNERS = "actor/"

INFORMATION = "collapse_first_turn_sample/mi_estimate"
ENTROPY = "collapse_first_turn_sample/conditional_entropy_est"


class Regime(NamedTuple):
    """What information and entropy of the thoughts are, next to the first ones.

    Console, docs/metrics.md and the report say what stands here.

    Attributes:
      number: as `collapse/regime` has it.
      name: in words.
      healthy: when a run that learns may be in it; None: never.
    """

    number: int
    name: str
    healthy: str | None

    @property
    def verdict(self) -> str:
        """Text: its name, and whether it is healthy."""
        verdict = "not healthy" if self.healthy is None else f"healthy {self.healthy}"
        return f"{self.name} ({verdict})"


# By (information is low, entropy is low).
REGIMES = {
    (False, False): Regime(0, "diverse", healthy="at any time"),
    (True, False): Regime(1, "template collapse", healthy=None),
    (False, True): Regime(2, "compressed", healthy="late in a run that learned"),
    (True, True): Regime(3, "low-entropy collapse", healthy=None),
}


class Indicator(NamedTuple):
    """A metric and its band.

    Attributes:
      metric: its name.
      low, high: settings with the bounds, relative to the first iterations' mean.
      is_spike: a single iteration outside the band raises the alarm.
    """

    metric: str
    low: str | None = None
    high: str | None = None
    is_spike: bool = False


INDICATORS = {
    "in_group_reward_std": Indicator(TRAINED, low="spread_low"),
    "entropy": Indicator("actor/entropy", low="entropy_low", high="entropy_high"),
    "grad_norm": Indicator("actor/grad_norm", high="grad_norm_high", is_spike=True),
    "reply_length": Indicator(
        EACH_GAME + "reply_length", low="reply_length_low", high="reply_length_high"
    ),
    "distinct_3gram": Indicator("rollout/distinct_3gram", low="distinct_low"),
    "top_reply_share": Indicator("rollout/top_reply_share", high="top_reply_high"),
    "format": Indicator(FORM, low="format_low"),
    "valid_thinking_rate": Indicator("collapse/valid_thinking_rate", low="format_low"),
}
ACTIONS = ("stop", "cut_learning_rate")
EVERY_INDICATOR = "all"


@dataclasses.dataclass(frozen=True)
class EarlyWarning:
    """Settings of the alarms: the keys of `warning`, see `configs/base.py`."""

    baseline_iterations: int
    persistence: int
    spread_low: float | None
    entropy_low: float | None
    entropy_high: float | None
    grad_norm_high: float | None
    reply_length_low: float | None
    reply_length_high: float | None
    distinct_low: float | None
    top_reply_high: float | None
    format_low: float | None
    information_regime_low: float
    entropy_regime_low: float
    success_window: int
    success_low: float
    action: str | None
    act_on: str
    learning_rate_factor: float
    cooldown_iterations: int

    def look(self, records: Sequence[Record]) -> "Outlook":
        """Alarms, regime and action after the last record.

        Args:
          records: all iterations; the last one may lack its `alarm/` metrics.
        """
        courses, regime = self._courses(records), self._regime(records)
        metrics = {f"alarm/{name}": float(c.alarms[-1]) for name, c in courses.items()}
        if regime is not None:
            metrics["collapse/regime"] = float(regime.number)
        return Outlook(
            metrics=metrics,
            news=self._news(courses, regime),
            stop_reason=self._stop_reason(courses),
            learning_rate_scale=self._scale(courses, len(records)),
        )

    def _news(self, courses: "dict[str, _Course]", regime: Regime | None) -> list[str]:
        sentences = [
            f"early warning: {self._describe(name, course)}"
            for name, course in courses.items()
            if course.alarms[-1] and not any(course.alarms[:-1])
        ]
        if sentences and regime is not None:
            sentences.append(
                "regime by the thoughts' information and entropy: " + regime.verdict
            )
        return sentences

    def _stop_reason(self, courses: "dict[str, _Course]") -> str | None:
        if self.action != "stop":
            return None
        for name, course in courses.items():
            if self._acts_on(name) and any(course.alarms):
                return f"{self._describe(name, course)}; warning.action = 'stop'"
        return None

    def _scale(self, courses: "dict[str, _Course]", count: int) -> float:
        """Product of all cuts so far, one for each new alarm of an acting indicator.

        Cuts are at least `cooldown_iterations` apart.
        """
        if self.action != "cut_learning_rate":
            return 1.0
        acting = [c.alarms for name, c in courses.items() if self._acts_on(name)]
        cuts: list[int] = []
        for i in range(1, count):
            begins = any(alarms[i] and not alarms[i - 1] for alarms in acting)
            if begins and (not cuts or i - cuts[-1] >= self.cooldown_iterations):
                cuts.append(i)
        return self.learning_rate_factor ** len(cuts)

    def _acts_on(self, name: str) -> bool:
        return self.act_on == EVERY_INDICATOR or name in self.act_on.split(",")

    def _courses(self, records: Sequence[Record]) -> "dict[str, _Course]":
        games, courses = games_of(records), {}
        learned = _form_learned([_value(record, FORM, games) for record in records])
        for name, indicator in INDICATORS.items():
            factors = [self._bound(key) for key in (indicator.low, indicator.high)]
            column = [_value(record, indicator.metric, games) for record in records]
            if factors != [None, None] and any(x is not None for x in column):
                steps = 1 if indicator.is_spike else self.persistence
                courses[name] = _Course([], [], [])
                for part in (slice(learned), slice(learned, None)):
                    first = self._baseline_end(records[part])
                    courses[name] += _course(column[part], first, factors, steps)
        return courses

    def _bound(self, key: str | None) -> float | None:
        return None if key is None else getattr(self, key)

    def _baseline_end(self, records: Sequence[Record]) -> int:
        trained = [i for i, r in enumerate(records) if r.get(TRAINED) is not None]
        trained = trained[: self.baseline_iterations]
        return trained[-1] + 1 if trained else 0

    def _describe(self, name: str, course: "_Course") -> str:
        i = course.alarms.index(True)
        indicator, (low, high) = INDICATORS[name], course.bounds[i]
        key, side, bound = indicator.high, "above", high
        if low is not None and course.column[i] < low:
            key, side, bound = indicator.low, "below", low
        times = "" if indicator.is_spike else f" for {self.persistence} in a row"
        return (
            f"{name} alarms, {indicator.metric} = {course.column[i]:.3g} is {side} "
            f"{bound:.3g}, {getattr(self, key):g} of what it was at first{times} "
            f"(warning.{key})"
        )

    def _regime(self, records: Sequence[Record]) -> Regime | None:
        """Regime of the last iteration; None: not measured, or without a start."""
        first = regime_start(records)
        last = None if first is None else _thoughts(records[-1])
        if last is None:
            return None
        information, entropy = last
        return REGIMES[
            information < self.information_regime_low * first[0],
            entropy < self.entropy_regime_low * first[1],
        ]


class Outlook(NamedTuple):
    """Alarms and action after the last record.

    Attributes:
      metrics: of the last iteration: `alarm/<indicator>`, 0 or 1, and
        `collapse/regime` if it was measured.
      news: sentences about indicators that alarm for the first time.
      stop_reason: reason to end the run; None: it goes on.
      learning_rate_scale: factor of the policy's learning rate from here on.
    """

    metrics: dict[str, float]
    news: list[str]
    stop_reason: str | None
    learning_rate_scale: float


class _Course(NamedTuple):
    """An indicator over records.

    Attributes:
      column: value per record, None if it was not measured.
      bounds: lower and upper bound of the band per record, None if it has none.
      alarms: alarm per record; unmeasured records keep the alarm before them.
    """

    column: list[float | None]
    bounds: list[tuple[float | None, float | None]]
    alarms: list[bool]

    def __add__(self, later: "_Course") -> "_Course":
        return _Course(*(own + other for own, other in zip(self, later, strict=True)))


def _form_learned(column: list[float | None]) -> int:
    """Place of the first record with `FORM_LEARNED`; 0 if there is none."""
    reached = (i for i, x in enumerate(column) if x is not None and x >= FORM_LEARNED)
    return next(reached, 0)


def _course(
    column: list[float | None], first: int, factors: list[float | None], steps: int
) -> _Course:
    """Alarms of a column: outside the band for `steps` measurements in a row.

    The band is around the mean of the values of the first records; if they have none,
    around the first value.
    """
    measured = [i for i, x in enumerate(column) if x is not None]
    if not measured:
        return _Course(column, [(None, None)] * len(column), [False] * len(column))
    baseline = [x for x in column[:first] if x is not None]
    if not baseline:
        baseline, first = [column[measured[0]]], measured[0] + 1
    mean = sum(baseline) / len(baseline)
    low, high = (None if factor is None else factor * mean for factor in factors)
    outside, alarms = 0, []
    for i, value in enumerate(column):
        if value is not None and i >= first:
            is_low = low is not None and value < low
            is_high = high is not None and value > high
            outside = outside + 1 if is_low or is_high else 0
        alarms.append(outside >= steps)
    return _Course(column, [(low, high)] * len(column), alarms)


@dataclasses.dataclass(frozen=True)
class LeadTimes:
    """Iterations of the first alarms and of the fall of success.

    Attributes:
      first_alarm: by indicator; None: it never alarmed.
      success_fell: iteration in which success fell; None: it did not.
      is_judged: there were enough iterations and enough success for a fall.
    """

    first_alarm: dict[str, int | None]
    success_fell: int | None
    is_judged: bool = True

    @property
    def lead(self) -> dict[str, int | None]:
        """Iterations from each first alarm to the fall of success (negative: after)."""
        fell = self.success_fell
        return {
            name: None if fell is None or first is None else fell - first
            for name, first in self.first_alarm.items()
        }

    def describe(self) -> str:
        """Text with a line per indicator that alarmed; "" if none did."""
        lines = []
        for name, first in self.first_alarm.items():
            if first is not None:
                when = self._when(name)
                lines.append(f"{name} alarmed at iteration {first}{when}\n")
        return "".join(lines)

    def _when(self, name: str) -> str:
        if not self.is_judged:
            return ", too few iterations or successes to judge whether success fell"
        if self.success_fell is None:
            return ", success did not fall"
        lead = self.lead[name]
        side = "before" if lead >= 0 else "after"
        return f", {abs(lead)} {side} success fell (at {self.success_fell})"


# A best success below this is chance, and its fall means nothing.
LEAST_BEST_SUCCESS = 0.05


def lead_times(
    records: Sequence[Record], *, success_window: int = 5, success_low: float = 0.5
) -> LeadTimes:
    """Iterations in which each indicator first alarmed and training's success fell.

    Args:
      records: lines of a `metrics.jsonl`, with their `iteration` and `alarm/...`.
      success_window: iterations of the moving average of training's success.
      success_low: success has fallen when that average is below this share of its
        highest value so far.
    """
    prefix, first_alarm = "alarm/", {}
    for record in records:
        for name in record:
            if name.startswith(prefix):
                indicator = name.removeprefix(prefix)
                first_alarm.setdefault(indicator, None)
                if record[name] and first_alarm[indicator] is None:
                    first_alarm[indicator] = int(record["iteration"])
    games = games_of(records)
    values = {int(r["iteration"]): _value(r, SUCCESS, games) for r in records}
    successes = {at: value for at, value in values.items() if value is not None}
    fell, is_judged = first_fall(successes, window=success_window, share=success_low)
    return LeadTimes(first_alarm, fell, is_judged)


def first_fall(
    successes: Mapping[int, float], *, window: int, share: float
) -> tuple[int | None, bool]:
    """Iteration in which success fell, and whether it could have fallen.

    Args:
      successes: training's success by iteration, ascending.
      window: iterations of its moving average.
      share: it fell where that average is below this share of its highest.

    Returns:
      The iteration (None: it did not fall), and whether there were two averages and a
      best of at least `LEAST_BEST_SUCCESS`.
    """
    best, recent, num_means = 0.0, [], 0
    for iteration, value in successes.items():
        recent = [*recent, value][-window:]
        if len(recent) < window:
            continue
        mean = sum(recent) / window
        best, num_means = max(best, mean), num_means + 1
        if best >= LEAST_BEST_SUCCESS and mean < share * best:
            return iteration, True
    return None, best >= LEAST_BEST_SUCCESS and num_means > 1


def regime_start(records: Sequence[Record]) -> tuple[float, float] | None:
    """Information and entropy that a run's regimes are relative to: the first measured.

    None if there are none, or one is not above 0: information at 0 is within the
    estimate's error of none.
    """
    measured = (pair for pair in map(_thoughts, records) if pair is not None)
    first = next(measured, None)
    return None if first is None or min(first) <= 0 else first


def games_of(records: Sequence[Record]) -> tuple[str, ...]:
    """Names of the games that were trained on, as metrics have them."""
    start, end = SUCCESS.split("*")
    record = next((r for r in records if r.get(TRAINED) is not None), {})
    return tuple(
        name.removeprefix(start).removesuffix(end)
        for name in record
        if name.startswith(start) and name.endswith(end)
    )


def _value(record: Record, metric: str, games: Sequence[str]) -> float | None:
    if metric.startswith(LEARNERS) and not record.get(NUM_TOKENS):
        return None
    if EACH_GAME not in metric:
        return _number(record, metric)
    suffix = metric.removeprefix(EACH_GAME)
    values = [_number(record, f"train/{game}/{suffix}") for game in games]
    if not values or None in values:
        return None
    return sum(values) / len(values)


def _thoughts(record: Record) -> tuple[float, float] | None:
    """Information and entropy, where both were measured."""
    information, entropy = _number(record, INFORMATION), _number(record, ENTROPY)
    return None if None in (information, entropy) else (information, entropy)


def _number(record: Record, metric: str) -> float | None:
    """A metric as the float that a resumed run reads; None if missing or not finite."""
    value = record.get(metric)
    return None if value is None or not math.isfinite(value) else float(value)
