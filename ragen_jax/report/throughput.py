"""Tokens per second, from what a record holds.

In: a line of `metrics.jsonl` and the run's settings. Out: more metrics of that line.
"""

from collections.abc import Mapping
from typing import Any

from ragen_jax.report.figures import SAMPLED_RATE, TRAINED_RATE

_TOKENS = "train/{env}/response_length"


def rates(record: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, float]:
    """Tokens sampled per second of rollout and trained on per second of update.

    Nothing where a part was not recorded, or where several games share the rollout,
    whose tokens per episode are recorded game by game.
    """
    found = {}
    lengths = [v for k, v in record.items() if _is_length(k) and v is not None]
    rows = [settings.get(f"rollout.{k}") for k in ("num_groups", "group_size")]
    seconds = _running(record, "rollout")
    if len(lengths) == 1 and None not in rows and seconds:
        found[SAMPLED_RATE] = lengths[0] * rows[0] * rows[1] / seconds
    tokens, seconds = record.get("actor/num_tokens"), _running(record, "update")
    if tokens and seconds:
        found[TRAINED_RATE] = tokens / seconds
    return found


def _running(record: Mapping[str, Any], stage: str) -> float | None:
    """Seconds of a stage without those of compiling it."""
    seconds = record.get(f"timing_s/{stage}")
    if seconds is None:
        return None
    return seconds - (record.get(f"perf/compile_s/{stage}") or 0.0)


def _is_length(name: str) -> bool:
    start, end = _TOKENS.split("{env}")
    return name.startswith(start) and name.endswith(end)
