"""What conversations amount to: play in numbers, tokens, money.

In: records of `ragen_jax.endpoint.games`. Out: numbers by name; those of play are
called, and defined, as in `ragen_jax.rollout.metrics`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Prices:
    """Per million tokens, in any currency; None: not known (cached: as the input).

    Attributes:
      input, output: tokens read and tokens written.
      cached_input: tokens read from the endpoint's cache.
    """

    input: float | None
    output: float | None
    cached_input: float | None

    def cost(self, tokens: Record) -> float | None:
        """Of `prompt_tokens`, `cached_tokens` and `sampled_tokens`; None: not known."""
        read, written = tokens["prompt_tokens"], tokens["sampled_tokens"]
        if None in (self.input, self.output, read, written):
            return None
        cached = tokens["cached_tokens"] or 0
        cached_price = self.input if self.cached_input is None else self.cached_input
        total = (read - cached) * self.input + cached * cached_price
        return (total + written * self.output) / 1e6


def play_metrics(records: Sequence[Record]) -> dict[str, float]:
    """How the conversations went; 0 where there is nothing to divide by."""
    turns = [turn for record in records for turn in record["turns"]]

    def mean(rows: Sequence[Record], value: Callable[[Record], float]) -> float:
        return sum(value(row) for row in rows) / max(len(rows), 1)

    def total(value: Callable[[Record], float]) -> float:
        return sum(value(turn) for turn in turns)

    executed = total(lambda turn: len(turn["actions"]))
    metrics = {
        "success": mean(records, lambda record: record["success"]),
        "episodic_return": mean(records, lambda record: record["return"]),
        "format_penalty": mean(records, lambda record: record["penalty"]),
        "bonus": mean(records, lambda record: record["bonus"]),
        "num_turns": len(turns) / max(len(records), 1),
        "num_actions": executed / max(len(records), 1),
        "action_is_effective": total(lambda t: t["effective"]) / max(executed, 1),
        "action_is_valid": mean(turns, lambda turn: turn["valid"] > 0),
        "format": mean(turns, lambda turn: turn["has_format"]),
        "reply_is_cut": mean(turns, lambda turn: turn["is_cut"]),
        "is_truncated": mean(records, lambda record: record["truncated"]),
        "pass@1": mean(records, lambda record: record["success"]),
    }
    if all(turn["reply_tokens"] is not None for turn in turns):
        written = total(lambda turn: turn["reply_tokens"])
        metrics["response_length"] = written / max(len(records), 1)
        metrics["reply_length"] = written / max(len(turns), 1)
    return metrics


def token_metrics(records: Sequence[Record], prices: Prices) -> dict[str, float]:
    """Tokens in all and their cost; what the endpoint does not report is left out."""
    totals = {
        name: sum(record[name] for record in records)
        for name in ("prompt_tokens", "cached_tokens", "sampled_tokens")
        if all(record[name] is not None for record in records)
    }
    costs = [prices.cost(record) for record in records]
    if None not in costs:
        totals["cost"] = sum(costs)
    return {f"tokens/{k}" if k != "cost" else k: float(v) for k, v in totals.items()}
