"""What a study compares: numbers of one run.

In: a `RunRecord`. Out: a number, or None where the run does not have it. To add a
measure, add it to `MEASURES`.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from ragen_jax.diagnostics.early_warning import INDICATORS
from studies.arms import SUITES
from studies.records import Curve, RunRecord

SUCCESS = "val-env/*/success"
# A success has fallen, or a share risen, by so much: above what 256 prompts leave open
# (a standard error of 3 points).
CLEAR = 0.1
# Part of a run, from its end, whose values a final value is the mean of.
_LAST_PART = 0.2


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number of a run.

    Attributes:
      label: for tables.
      value: of a run; None where it has none.
      form: key of `FORMS`: a "change" is of a share, a "relative" one of the number.
      margin: smallest effect that counts, in units of the measure.
    """

    label: str
    value: Callable[[RunRecord], float | None]
    form: str = "number"
    margin: float = 0.0


class Form(NamedTuple):
    """How a number reads: multiplied, in this format, with this unit."""

    shape: str = "{:.3g}"
    scale: int = 1
    unit: str = ""


FORMS = {
    "share": Form("{:.1f}", 100, " %"),
    "change": Form("{:+.1f}", 100, " points"),
    "relative": Form("{:+.1f}", 100, " %"),
    "iterations": Form("{:.0f}"),
    "seconds": Form("{:.0f}"),
    "number": Form(),
}


def format_value(
    value: float, form: str, interval: tuple[float, float] | None = None
) -> str:
    """A number, with the ends of its interval in brackets, as tables show it."""
    shape, scale, unit = FORMS[form]
    text = shape.format(scale * value) + unit
    if interval is not None:
        text += f" [{', '.join(shape.format(scale * end) for end in interval)}]"
    return text


def _first(curve: Curve) -> float | None:
    return next(iter(curve.values()), None)


def _last(curve: Curve) -> float | None:
    """Mean of the values in the last part of the iterations."""
    begin = (1 - _LAST_PART) * max(curve, default=0)
    values = [value for iteration, value in curve.items() if iteration > begin]
    return sum(values) / len(values) if values else None


def _peak(curve: Curve) -> float | None:
    """Highest mean of three values in a row, of fewer where there are fewer."""
    values = list(curve.values())
    size = min(3, len(values))
    means = [
        sum(values[i : i + size]) / size
        for i in range(len(values) - size + 1)
        if values
    ]
    return max(means, default=None)


def _difference(high: float | None, low: float | None) -> float | None:
    return None if high is None or low is None else high - low


def _final(metric: str) -> Callable[[RunRecord], float | None]:
    return lambda run: _last(run.curve(metric))


def _change(metric: str) -> Callable[[RunRecord], float | None]:
    """Last minus first value."""
    last = _final(metric)
    return lambda run: _difference(last(run), _first(run.curve(metric)))


def _relative_change(metric: str) -> Callable[[RunRecord], float | None]:
    """Last over first value, less one."""

    def value(run: RunRecord) -> float | None:
        first, last = _first(run.curve(metric)), _final(metric)(run)
        return None if not first or last is None else last / first - 1

    return value


def fall_of(curve: Curve) -> int | None:
    """First evaluation that ends two with a mean far below the best such mean before.

    Of held-out success, whose levels are always the same: while training every
    iteration has eight other ones, and the success of a constant policy seems to fall.
    """
    best = -math.inf
    for (_, before), (iteration, value) in itertools.pairwise(curve.items()):
        mean = (before + value) / 2
        if mean <= best - CLEAR:
            return iteration
        best = max(best, mean)
    return None


def first_rise(curve: Curve) -> int | None:
    """First iteration in which a curve is far above its lowest value before."""
    lowest = math.inf
    for iteration, value in curve.items():
        if value >= lowest + CLEAR:
            return iteration
        lowest = min(lowest, value)
    return None


# Iteration in which something began; None: it did not.
_Event = Callable[[RunRecord], int | None]


def _fell(run: RunRecord) -> int | None:
    return fall_of(run.curve(SUCCESS))


def _alarm(indicator: str) -> _Event:
    return lambda run: run.first_alarms.get(indicator)


def _became_false(run: RunRecord) -> int | None:
    return first_rise(run.curve(_FALSE))


def _between(first: _Event, second: _Event) -> Callable[[RunRecord], float | None]:
    """Iterations from one event to another; negative: it came after."""
    return lambda run: _difference(second(run), first(run))


def _whether(event: _Event) -> Callable[[RunRecord], float]:
    """1 in runs in which it happened."""
    return lambda run: float(event(run) is not None)


def _warned(event: _Event) -> Callable[[RunRecord], float | None]:
    """Where success fell: 1 if the event came no later, 0 if later or never."""

    def value(run: RunRecord) -> float | None:
        fell, began = _fell(run), event(run)
        if fell is None:
            return None
        return float(began is not None and began <= fell)

    return value


def _suite(entry: str) -> Callable[[RunRecord], float | None]:
    return lambda run: run.suite.get(entry)


def bucket_norms(run: RunRecord, part: str, when: int) -> list[float]:
    """Norms of a part's gradient by bucket, from little spread to much.

    Args:
      run: one that measured them; others give none.
      part: "task", "entropy", "kl", or "regulariser", which is both of these.
      when: 0 for the first measurement, -1 for the last.
    """
    if part == "regulariser":
        parts = [bucket_norms(run, one, when) for one in ("entropy", "kl")]
        return [math.hypot(*norms) for norms in zip(*filter(None, parts), strict=True)]
    curves = {
        name: curve
        for name, curve in run.curves.items()
        if name.startswith("grad_norm/bucket_") and name.endswith(f"/{part}")
    }
    ordered = sorted(curves, key=lambda name: int(name.split("/")[1].split("_")[1]))
    return [list(curves[name].values())[when] for name in ordered]


def _bucket_rise(when: int) -> Callable[[RunRecord], float | None]:
    """Task's gradient of most spread less that of least, over their sum: -1 to 1.

    A bucket of groups without any spread has no gradient under GRPO.
    """

    def value(run: RunRecord) -> float | None:
        norms = bucket_norms(run, "task", when)
        total = norms[-1] + norms[0] if norms else 0.0
        return (norms[-1] - norms[0]) / total if total > 0 else None

    return value


def _regulariser_growth(run: RunRecord) -> float | None:
    """Change of the regulariser's share of the gradient where spread is least."""
    shares = []
    for when in (0, -1):
        task, regulariser = (
            bucket_norms(run, part, when) for part in ("task", "regulariser")
        )
        total = task[0] + regulariser[0] if task and regulariser else 0.0
        if total <= 0:
            return None
        shares.append(regulariser[0] / total)
    return shares[1] - shares[0]


_FALSE = "val-env/*/hallucination_rate"
_INFORMATION = "collapse_trajectory_sample/"

MEASURES: dict[str, Measure] = {
    "start": Measure("success before", lambda run: _first(run.curve(SUCCESS)), "share"),
    "final": Measure("final success", _final(SUCCESS), "share", 0.02),
    "gain": Measure("gain", _change(SUCCESS), "change", 0.02),
    "peak_gain": Measure(
        "gain at the peak",
        lambda run: _difference(_peak(run.curve(SUCCESS)), _first(run.curve(SUCCESS))),
        "change",
    ),
    "fall": Measure(
        "fall after the peak",
        lambda run: _difference(_peak(run.curve(SUCCESS)), _final(SUCCESS)(run)),
        "share",
    ),
    "fell": Measure("success fell", _whether(_fell), "share"),
    "fell_at": Measure("success fell at", _fell, "iterations"),
    "reply_change": Measure(
        "change of reply length", _relative_change("train/*/reply_length"), "relative"
    ),
    "reply_length": Measure(
        "tokens a reply at the end", _final("train/*/reply_length")
    ),
    "num_actions": Measure("actions an episode", _final("train/*/num_actions")),
    "false": Measure("false statements at the end", _final(_FALSE), "share", 0.02),
    "false_change": Measure(
        "change of false statements", _change(_FALSE), "change", 0.02
    ),
    "false_at": Measure("statements became false at", _became_false, "iterations"),
    "false_lead": Measure(
        "iterations from false statements to the fall",
        _between(_became_false, _fell),
        "iterations",
    ),
    "false_warned": Measure(
        "fell after false statements", _warned(_became_false), "share"
    ),
    "became_false": Measure(
        "statements became false", _whether(_became_false), "share"
    ),
    "spread": Measure("reward spread", _final("rollout/in_group_reward_std")),
    "entropy": Measure("entropy", _final("actor/entropy")),
    "grad_norm": Measure("gradient norm", _final("actor/grad_norm")),
    "information": Measure(
        "information, nats a thought", _final(f"{_INFORMATION}mi_seq_estimate")
    ),
    "mi_zscore": Measure(
        "information, standardised", _final(f"{_INFORMATION}mi_zscore_ema")
    ),
    "conditional_entropy": Measure(
        "entropy within prompts", _final(f"{_INFORMATION}conditional_entropy_est")
    ),
    "reasoning_entropy": Measure(
        "entropy of thoughts", _final(f"{_INFORMATION}reasoning_entropy_est")
    ),
    "rise_early": Measure("rise of the gradient, first", _bucket_rise(0)),
    "rise_late": Measure("rise of the gradient, last", _bucket_rise(-1)),
    "regulariser_growth": Measure(
        "change of the regulariser's share", _regulariser_growth, "change"
    ),
    "seconds": Measure("seconds", lambda run: run.seconds, "seconds"),
    **{
        f"{name}_{kind}": Measure(f"{name}: {label}", value(_alarm(name)), form)
        for name in INDICATORS
        for kind, label, value, form in (
            ("alarm", "first alarm", lambda event: event, "iterations"),
            ("alarmed", "alarmed", _whether, "share"),
            ("lead", "to the fall", lambda e: _between(e, _fell), "iterations"),
            ("warned", "fell after its alarm", _warned, "share"),
            (
                "after_spread",
                "after the reward spread",
                lambda e: _between(_alarm("in_group_reward_std"), e),
                "iterations",
            ),
        )
    },
    **{
        f"suite:{entry}": Measure(f"on {entry}", _suite(entry), "share", 0.02)
        for entries in SUITES.values()
        for entry in entries
    },
}
