"""The best checkpoint of a run, by a metric of its evaluations.

In: the record, lines of `metrics.jsonl`. Out: the iteration whose policy evaluated best
so far, recorded with every evaluation as `checkpoint/best`. Nothing else remembers it:
a resumed run, whose record is cut back, goes on with the best of what is left. Knows no
files and no states.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.config import VALIDATION_SETTINGS
from ragen_jax.registry.functions import did_you_mean
from ragen_jax.runs.metrics import BEST, declared

Record = Mapping[str, Any]

_EVALUATIONS = "val-env/"


def judge(records: Sequence[Record], metric: str, games: Sequence[str]) -> Record:
    """The best iteration after the newest record, if that is an evaluation's.

    Args:
      records: of the run, oldest first. The best of the others is the one they name.
      metric: `checkpoint.keep_best`; the higher the better.
      games: names of the environments in the metrics.

    Returns:
      `{"checkpoint/best": iteration}`; an equal one does not replace an earlier one,
      and one that was evaluated under other settings always does.
      Empty where nothing was evaluated, or nothing ever finite.

    Raises:
      ValueError: the evaluation has not measured the metric.
    """
    newest, before = records[-1], best_iteration(records[:-1])
    if not _measured(newest):
        return {}
    check(records[-1:], metric, games)
    value = value_of(newest, metric, games)
    old_record = _record_of(records, before)
    old = value_of(old_record, metric, games)
    # A resumed run may evaluate otherwise: such values are not compared.
    settings = [name for x in VALIDATION_SETTINGS for name in _names(x, games)]
    is_alike = all(newest.get(x) == old_record.get(x) for x in settings)
    if value is not None and (old is None or value > old or not is_alike):
        return {BEST: float(newest["iteration"])}
    return {} if before is None else {BEST: float(before)}


def check(records: Sequence[Record], metric: str, games: Sequence[str]) -> None:
    """Refuse a metric that the newest evaluation, if there is one, did not measure.

    Raises:
      ValueError: names those that it measured.
    """
    measured = next(filter(None, map(_measured, reversed(records))), [])
    for name in _names(metric, games):
        if measured and name not in measured:
            raise ValueError(
                f"checkpoint.keep_best = {metric!r}: evaluations measure no {name}."
                f"{did_you_mean(name, measured)} They measure {', '.join(measured)}"
            )


def is_best(records: Sequence[Record]) -> bool:
    """The policy after the newest record is the best so far."""
    return bool(records) and records[-1].get(BEST) == records[-1]["iteration"]


def best_iteration(records: Sequence[Record]) -> int | None:
    """The iteration that the newest record with a best one names; None: none does."""
    marks = (record.get(BEST) for record in reversed(records))
    return next((int(mark) for mark in marks if mark is not None), None)


def describe(records: Sequence[Record], metric: str, games: Sequence[str]) -> str:
    """The best iteration and its value, beside the value of the last evaluation."""
    best = best_iteration(records)
    values = [value_of(record, metric, games) for record in records]
    last = [value for value in values if value is not None][-1:]
    value = value_of(_record_of(records, best), metric, games)
    shown = " against ".join(_shown(x, metric) for x in (value, *last) if x is not None)
    end = ", at the last evaluation" if last else ""
    return f"best checkpoint by {metric}: iteration {best} ({shown}{end})"


def value_of(record: Record, metric: str, games: Sequence[str]) -> float | None:
    """A record's value of the metric, a mean over games where it has a short name.

    None: it was not measured, or is not finite.
    """
    values = [record.get(name) for name in _names(metric, games)]
    return None if None in values else sum(values) / len(values)


def _measured(record: Record) -> list[str]:
    return [name for name in record if name.startswith(_EVALUATIONS)]


def _names(metric: str, games: Sequence[str]) -> list[str]:
    if metric.startswith(_EVALUATIONS):
        return [metric]
    return [f"{_EVALUATIONS}{game}/{metric}" for game in games]


def _record_of(records: Sequence[Record], iteration: int | None) -> Record:
    return next((r for r in records if r["iteration"] == iteration), {})


def _shown(value: float, metric: str) -> str:
    name = metric if "/" in metric else f"{_EVALUATIONS}Env/{metric}"
    declaration = declared(name)
    is_share = declaration is not None and declaration.kind == "share"
    return f"{value:.1%}" if is_share else f"{value:.4g}"
