"""Every metric a run records, in the order in which it is shown.

Each package declares its metrics beside the code that computes them; here they are
gathered, with those of the clock. Console, TensorBoard's layout, the report and the
tables of docs/metrics.md are made of `METRICS`.
"""

import functools
from collections.abc import Mapping
from typing import Any

from ragen_jax.diagnostics import metrics as diagnostics
from ragen_jax.learner import metrics as learner
from ragen_jax.rollout import metrics as rollout
from ragen_jax.tables.metrics import Metric, View

_timing = functools.partial(Metric, section="timing")


def _stage(name: str, title: str, text: str, console: str = "") -> Metric:
    view = View(title, "seconds per iteration", console=console)
    return _timing(f"timing_s/{name}", text, kind="seconds", views=(view,))


# By `ragen_jax.timing`, and by `tokens_per_second`.
TIMING_METRICS = (
    _stage("rollout", "Rollout", "seconds of playing the episodes", "rollout"),
    _stage("update", "Update", "seconds of learning from them", "update"),
    _stage("diagnostics", "Diagnostics", "seconds of all diagnostics", "diagnostics"),
    _stage("testing", "Evaluation", "seconds of playing held-out levels"),
    _timing(
        "timing_s/metrics",
        "seconds of the metrics of training's episodes: the exact solver judges every "
        "action (2 to 3 % of an iteration on Sokoban, 7 % on FrozenLake, with GRPO)",
        kind="seconds",
    ),
    _timing(
        "timing_s/gradient_buckets",
        "the part of `timing_s/diagnostics` spent on gradient buckets",
        kind="seconds",
    ),
    _stage(
        "iteration",
        "Iteration",
        "seconds of a whole iteration; only in runs of earlier versions",
    ),
    _timing(
        "perf/sampled_tokens_per_second",
        "tokens sampled per second of rollout, without the time of compiling; not "
        "where several environments are trained on",
        views=(View("Sampled tokens", "tokens per second of rollout"),),
    ),
    _timing(
        "perf/trained_tokens_per_second",
        "tokens trained on per second of update, without the time of compiling",
        views=(View("Trained tokens", "tokens per second of update"),),
    ),
    _timing(
        "perf/compile_s/{stage}",
        "seconds XLA compiled for a stage in that iteration",
        kind="seconds",
    ),
    _timing(
        "perf/compile_cached/{stage}",
        "share of the stage's programs that came from the cache of earlier runs",
        kind="share",
    ),
)

METRICS: tuple[Metric, ...] = (
    *rollout.METRICS,
    *rollout.SUCCESS_METRICS,
    *learner.METRICS,
    *diagnostics.METRICS,
    *TIMING_METRICS,
)

# Lists of numbers, one per line of `metrics.jsonl`: histograms in TensorBoard.
DISTRIBUTIONS: tuple[Metric, ...] = (
    Metric(
        "rollout/in_group_reward_stds",
        "reward spread of every group (a list), whose mean is "
        "`rollout/in_group_reward_std`",
        section="indicators",
        healthy="some groups spread, some not",
        cure="mass at 0: groups that teach nothing",
    ),
)


def declared(name: str) -> Metric | None:
    """The declaration of a recorded name; None where there is none."""
    metrics = (*METRICS, *DISTRIBUTIONS)
    return next((metric for metric in metrics if metric.matches(name)), None)


def tokens_per_second(
    record: Mapping[str, Any], num_rows: float | None
) -> dict[str, float]:
    """Tokens sampled per second of rollout, and trained on per second of update.

    Compiling does not count. Nothing where a part was not recorded, or where several
    environments share the rollout: their tokens per episode are recorded one by one.

    Args:
      record: metrics and timing of an iteration.
      num_rows: episodes of an iteration; None: not known.
    """
    rates = {}
    lengths = [value for name, value in record.items() if _is_length(name)]
    seconds = _running_seconds(record, "rollout")
    if len(lengths) == 1 and None not in (lengths[0], num_rows, seconds):
        rates["perf/sampled_tokens_per_second"] = float(lengths[0]) * num_rows / seconds
    tokens, seconds = record.get("actor/num_tokens"), _running_seconds(record, "update")
    if tokens and seconds is not None:
        rates["perf/trained_tokens_per_second"] = float(tokens) / seconds
    return rates


def _running_seconds(record: Mapping[str, Any], stage: str) -> float | None:
    """Seconds of a stage without those of compiling it; None where that is nothing."""
    seconds = record.get(f"timing_s/{stage}")
    if seconds is None:
        return None
    running = seconds - (record.get(f"perf/compile_s/{stage}") or 0.0)
    return running if running > 0 else None


def _is_length(name: str) -> bool:
    return name.startswith("train/") and name.endswith("/response_length")
