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
from ragen_jax.learner.metrics import STALENESS
from ragen_jax.registry.metrics import Metric, View
from ragen_jax.rollout import metrics as rollout

_timing = functools.partial(Metric, section="timing")


def _stage(name: str, title: str, text: str, console: str = "") -> Metric:
    view = View(title, "seconds per iteration", console=console)
    return _timing(f"timing_s/{name}", text, kind="seconds", views=(view,))


# Of a rollout, beside `timing_s/rollout`; see `ragen_jax.program.prefetch`.
HIDDEN = "timing_s/rollout_hidden"
# By `ragen_jax.devices.sharding.peak_memory`.
PEAK_MEMORY = "perf/peak_memory_gib"
# Stages of an iteration, none a part of another -> how figures name them.
STAGES = {
    "rollout": "rollout",
    "update": "update",
    "diagnostics": "diagnostics",
    "testing": "evaluation",
    "metrics": "metrics of episodes",
}


def _share(stage: str) -> View:
    return View(
        "Share of time by stage",
        "share of all seconds so far",
        name=f"perf/time_share/{stage}",
        label=STAGES[stage],
        needs=f"timing_s/{stage}",
    )


# By `ragen_jax.diagnostics.timing`, `tokens_per_second` and `TimeShares`.
TIMING_METRICS = (
    _timing(
        "perf/sampled_tokens_per_second",
        "tokens sampled per second of rollout; not of iterations in which it "
        "compiled, nor where several environments are trained on",
        views=(View("Sampled tokens", "tokens per second of rollout"),),
    ),
    _timing(
        "perf/trained_tokens_per_second",
        "tokens trained on per second of update; not of iterations in which it "
        "compiled",
        views=(View("Trained tokens", "tokens per second of update"),),
    ),
    _timing(
        "perf/time_share/{stage}",
        "the stage's share of the seconds of all stages, summed over the iterations "
        "so far; those in which any stage compiled do not count",
        kind="share",
        views=tuple(map(_share, STAGES)),
    ),
    _stage("rollout", "Rollout", "seconds of playing the episodes", "rollout"),
    _timing(
        HIDDEN,
        "seconds of playing them that passed while the update before ran; only with "
        "`rollout.ahead`, whose `timing_s/rollout` is what was left to wait for",
        kind="seconds",
    ),
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
        PEAK_MEMORY,
        "most memory in use so far, GiB: of the fullest device, where they tell; "
        "without a GPU, of the process. `launch.plan` estimates it",
    ),
    _timing(
        "perf/compile_s/{stage}",
        "seconds XLA compiled for a stage, in it or ahead of it",
        kind="seconds",
    ),
    _timing(
        "perf/compile_cached/{stage}",
        "share of the stage's programs that came from the cache of earlier runs",
        kind="share",
    ),
)

# By `ragen_jax.runs.best`.
BEST = "checkpoint/best"

METRICS: tuple[Metric, ...] = (
    *rollout.METRICS,
    *rollout.SUCCESS_METRICS,
    rollout.FAILED_ROWS,
    rollout.GAME_METRIC,
    *learner.METRICS,
    STALENESS,
    *diagnostics.METRICS,
    Metric(
        BEST,
        "iteration of the best checkpoint so far, by the metric "
        "`checkpoint.keep_best`; with every evaluation",
        section="progress",
    ),
    *TIMING_METRICS,
)

# Lists of numbers, one per line of `metrics.jsonl`: histograms in TensorBoard.
DISTRIBUTIONS: tuple[Metric, ...] = (
    Metric(
        "rollout/in_group_reward_stds",
        "reward spread of every group (a list), whose mean is "
        "`rollout/in_group_reward_std` unless `algo.reward` replaces the game's",
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

    A stage that compiles also traces, and loads programs: seconds that no clock splits
    off. Its rate is therefore left out in such an iteration. So is a rate whose parts
    were not recorded; where several environments share the rollout their tokens per
    episode are recorded one by one.

    Args:
      record: metrics and timing of an iteration.
      num_rows: episodes of an iteration; None: not known.
    """
    compiled = when_compiled(record)
    values = {}
    seconds = (record.get("timing_s/rollout") or 0.0) + (record.get(HIDDEN) or 0.0)
    lengths = [value for name, value in record.items() if _is_length(name)]
    if seconds and len(lengths) == 1 and None not in (lengths[0], num_rows):
        values["perf/sampled_tokens_per_second"] = lengths[0] * num_rows / seconds
    tokens, seconds = record.get("actor/num_tokens"), record.get("timing_s/update")
    if tokens and seconds:
        values["perf/trained_tokens_per_second"] = tokens / seconds
    return {name: float(x) for name, x in values.items() if name not in compiled}


def when_compiled(record: Mapping[str, Any]) -> set[str]:
    """Names of what a clock measured while something compiled in the iteration.

    Figures leave these values out: the first iteration would set the whole axis.
    """
    prefix = "perf/compile_s/"
    stages = {n.removeprefix(prefix) for n in record if n.startswith(prefix)}
    names = {f"timing_s/{stage}" for stage in stages}
    return names | {_RATES[stage] for stage in stages if stage in _RATES}


_RATES = {
    "rollout": "perf/sampled_tokens_per_second",
    "update": "perf/trained_tokens_per_second",
}


class TimeShares:
    """Share of a run's time by stage, over the iterations that compiled nothing."""

    def __init__(self):
        self._seconds = dict.fromkeys(STAGES, 0.0)

    def add(self, record: Mapping[str, Any]) -> dict[str, float]:
        """The shares after an iteration, `perf/time_share/<stage>`.

        Empty where it does not count: it compiled, or it is an evaluation alone.
        """
        if when_compiled(record) or not record.get("timing_s/rollout"):
            return {}
        for stage in STAGES:
            self._seconds[stage] += record.get(f"timing_s/{stage}") or 0.0
        total = sum(self._seconds.values())
        if total <= 0:
            return {}
        return {f"perf/time_share/{s}": x / total for s, x in self._seconds.items()}


def _is_length(name: str) -> bool:
    return name.startswith("train/") and name.endswith("/response_length")
