"""What a study compares: numbers of one run.

In: a `RunRecord`. Out: a number, or None where the run does not have it. To add a
measure, add it to `MEASURES`.
"""

import dataclasses
import math
from collections.abc import Callable

from ragen_jax.diagnostics.early_warning import INDICATORS, first_fall
from ragen_jax.runs.figures import FIRST_TURN
from ragen_jax.studies.arms import SUITES
from ragen_jax.studies.records import Curve, RunRecord

SUCCESS = "val-env/*/success"
# A success has fallen, or a share risen, by so much: above what 256 prompts leave open
# (a standard error of 3 points).
CLEAR = 0.1
# Success while training has fallen when its mean over so many iterations is below this
# share of the highest such mean.
_WINDOW, _SHARE = 5, 0.75
# Part of a run, from its end, whose values a final value is the mean of.
_LAST_PART = 0.2


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number of a run.

    Attributes:
      label: for tables.
      value: of a run; None where it has none.
      form: how it reads: "share" (in per cent), "change" (a share with its sign),
        "iterations", "seconds" or "number".
      margin: smallest effect that counts, in units of the measure.
    """

    label: str
    value: Callable[[RunRecord], float | None]
    form: str = "number"
    margin: float = 0.0


def format_value(value: float, form: str) -> str:
    """A number as tables show it."""
    if form == "share":
        return f"{100 * value:.1f} %"
    if form == "change":
        return f"{100 * value:+.1f} %"
    if form in ("iterations", "seconds"):
        return f"{value:.0f}"
    return f"{value:.3g}"


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
    """Iteration in which success while training fell; None: it did not."""
    return first_fall(curve, window=_WINDOW, share=_SHARE)[0]


def first_rise(curve: Curve, by: float = CLEAR) -> int | None:
    """First iteration in which a curve is so much above its lowest value before."""
    lowest = math.inf
    for iteration, value in curve.items():
        if value >= lowest + by:
            return iteration
        lowest = min(lowest, value)
    return None


def _lead(
    begins: Callable[[RunRecord], int | None], metric: str
) -> Callable[[RunRecord], float | None]:
    """Iterations from a warning to the fall of a metric; negative: it came after."""

    def value(run: RunRecord) -> float | None:
        return _difference(fall_of(run.curve(metric)), begins(run))

    return value


def _warned(
    begins: Callable[[RunRecord], int | None], metric: str
) -> Callable[[RunRecord], float | None]:
    """1 if a warning came no later than the fall of a metric, 0 if later or never."""

    def value(run: RunRecord) -> float | None:
        fell = fall_of(run.curve(metric))
        if fell is None:
            return None
        began = begins(run)
        return float(began is not None and began <= fell)

    return value


def _alarm(indicator: str) -> Callable[[RunRecord], int | None]:
    return lambda run: run.first_alarms.get(indicator)


def _false_statements(run: RunRecord) -> int | None:
    return first_rise(run.curve("train/*/hallucination_rate"))


def _suite(entry: str) -> Callable[[RunRecord], float | None]:
    return lambda run: run.suite.get(entry)


def _buckets(run: RunRecord, part: str, when: int) -> list[float]:
    """Norms of a part's gradient by bucket, from little spread to much.

    `when`: 0 for the first measurement, -1 for the last.
    """
    curves = {
        name: curve
        for name, curve in run.curves.items()
        if name.startswith("grad_norm/bucket_") and name.endswith(f"/{part}")
    }
    ordered = sorted(curves, key=lambda name: int(name.split("/")[1].split("_")[1]))
    return [list(curves[name].values())[when] for name in ordered]


def _bucket_rise(when: int) -> Callable[[RunRecord], float | None]:
    """Natural logarithm of the task's gradient, most spread over least."""

    def value(run: RunRecord) -> float | None:
        norms = _buckets(run, "task", when)
        return math.log(norms[-1] / norms[0]) if norms and min(norms) > 0 else None

    return value


def _regulariser_growth(run: RunRecord) -> float | None:
    """Growth of regulariser over task in the bucket with the least spread, as a log."""
    shares = []
    for when in (0, -1):
        task = _buckets(run, "task", when)
        parts = [_buckets(run, part, when) for part in ("entropy", "kl")]
        regulariser = math.hypot(*(part[0] for part in parts if part))
        if not task or task[0] <= 0 or regulariser <= 0:
            return None
        shares.append(regulariser / task[0])
    return math.log(shares[1] / shares[0])


_LEARNED = "train/*/success"
# Success where best play succeeds: one minus it is the regret against exact play.
_OF_BEST = "train/*/solved_of_solvable"
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
    "success_fell": Measure(
        "training's success fell at",
        lambda run: fall_of(run.curve(_LEARNED)),
        "iterations",
    ),
    "reply_change": Measure(
        "change of reply length", _relative_change("train/*/reply_length"), "change"
    ),
    "reply_length": Measure(
        "tokens a reply at the end", _final("train/*/reply_length")
    ),
    "num_actions": Measure("actions an episode", _final("train/*/num_actions")),
    "false": Measure(
        "false statements at the end",
        _final("val-env/*/hallucination_rate"),
        "share",
        0.02,
    ),
    "false_change": Measure(
        "change of false statements",
        _change("val-env/*/hallucination_rate"),
        "change",
        0.02,
    ),
    "false_lead": Measure(
        "iterations from false statements to the fall",
        _lead(_false_statements, _LEARNED),
        "iterations",
    ),
    "false_warned": Measure(
        "fell after false statements", _warned(_false_statements, _LEARNED), "share"
    ),
    "spread": Measure("reward spread", _final("rollout/in_group_reward_std")),
    "entropy": Measure("entropy", _final("actor/entropy")),
    "grad_norm": Measure("gradient norm", _final("actor/grad_norm")),
    "information": Measure(
        "information, nats a thought", _final(f"{FIRST_TURN}mi_seq_estimate")
    ),
    "mi": Measure("information, nats a token", _final(f"{FIRST_TURN}mi_estimate")),
    "mi_zscore": Measure(
        "information, standardised",
        _final("collapse_trajectory_sample/mi_zscore_ema"),
    ),
    "conditional_entropy": Measure(
        "conditional entropy", _final(f"{FIRST_TURN}conditional_entropy_est")
    ),
    "rise_early": Measure("log rise of the gradient, first", _bucket_rise(0)),
    "rise_late": Measure("log rise of the gradient, last", _bucket_rise(-1)),
    "regulariser_growth": Measure(
        "log growth of the regulariser's share", _regulariser_growth
    ),
    "seconds": Measure("seconds", lambda run: run.seconds, "seconds"),
    **{
        f"{name}_alarm": Measure(f"first alarm of {name}", _alarm(name), "iterations")
        for name in INDICATORS
    },
    **{
        f"{name}_lead": Measure(
            f"iterations from {name} to the fall",
            _lead(_alarm(name), _LEARNED),
            "iterations",
        )
        for name in INDICATORS
    },
    **{
        f"{name}_warned": Measure(
            f"fell after an alarm of {name}", _warned(_alarm(name), _LEARNED), "share"
        )
        for name in INDICATORS
    },
    **{
        f"{name}_regret_lead": Measure(
            f"iterations from {name} to the loss",
            _lead(_alarm(name), _OF_BEST),
            "iterations",
        )
        for name in INDICATORS
    },
    **{
        f"suite:{entry}": Measure(f"on {entry}", _suite(entry), "share", 0.02)
        for entries in SUITES.values()
        for entry in entries
    },
}
