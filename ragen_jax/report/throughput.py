"""Tokens per second, from what a record holds.

In: a line of `metrics.jsonl` and the run's settings. Out: more metrics of that line.
Runs record them; reports add them to runs of versions that did not.
"""

from collections.abc import Mapping
from typing import Any


def tokens_per_second(
    record: Mapping[str, Any], num_rows: int | None
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
