"""Early stopping: reasons to end a run before its last iteration, or to look at it.

In: the record of a run so far, one mapping of metrics per iteration. Out: a reason, or
None. These functions keep no state: the record is cut back to the checkpoint when a run
resumes, so a resumed run stops where the uninterrupted run would have.
"""

import math
from collections.abc import Collection, Mapping, Sequence

Record = Mapping[str, float | None]

SPREAD = "rollout/in_group_reward_std"
EMPTY = "rollout/empty_after_filter"
# Iterations without one success after which a run says what that means.
_PATIENCE = 3
# Reward spread below which the episodes of a group are alike.
_NO_SPREAD = 1e-3


def stop_reason(
    records: Sequence[Record],
    *,
    success_names: Collection[str],
    max_empty_iterations: int,
    min_spread_fraction: float | None,
    collapse_window: int,
    min_success: float | None,
    failure_window: int,
) -> str | None:
    """Why the run should end now.

    Args:
      records: oldest first, complete iterations and evaluations.
      success_names: metrics of held-out success, one per environment. The best of them
        counts: a policy that fails at one environment may still learn another.
      others: the keys of these names in `configs/base.py`.
    """
    return (
        _nothing_kept(records, max_empty_iterations)
        or _spread_collapsed(records, min_spread_fraction, collapse_window)
        or _success_too_low(records, success_names, min_success, failure_window)
    )


def stuck_note(records: Sequence[Record], success_names: Collection[str]) -> str | None:
    """A message if no episode succeeds; once, after `_PATIENCE` iterations.

    Args:
      records: oldest first.
      success_names: metrics of success in training, one per environment.
    """
    recent = [r for r in records if SPREAD in r][-_PATIENCE - 1 :]
    failed = [all(r.get(name) == 0 for name in success_names) for r in recent]
    if len(failed) < _PATIENCE or not all(failed[-_PATIENCE:]):
        return None
    if len(failed) > _PATIENCE and failed[0]:
        return None  # said before
    spread = recent[-1][SPREAD]
    if spread is not None and spread > _NO_SPREAD:
        meaning = (
            "the rewards of a group differ in costs alone, so that it learns to fail "
            "cheaply"
        )
    else:
        meaning = "all rewards of a group are alike, so that there is nothing to learn"
    return (
        f"no episode succeeded in {_PATIENCE} iterations: {meaning}; use easier "
        "levels (env.kwargs), a warm start (launch.sft, docs/warm-start.md), or "
        "more rollouts per group (rollout.group_size)"
    )


def _nothing_kept(records: Sequence[Record], limit: int) -> str | None:
    column = _column(records, EMPTY)
    if len(column) < limit or not all(column[-limit:]):
        return None
    return (
        f"the filter kept nothing in {limit} iterations in a row "
        "(train.max_empty_iterations): the rewards of a group no longer differ"
    )


def _spread_collapsed(
    records: Sequence[Record], fraction: float | None, window: int
) -> str | None:
    """RAGEN's variance collapse: iterations in which nothing was kept do not count."""
    if fraction is None:
        return None
    column = _column([r for r in records if not r.get(EMPTY)], SPREAD)
    if len(column) < 2 * window:
        return None
    bound = fraction * sum(column[:window]) / window
    if max(column[-window:]) >= bound:
        return None
    return (
        f"the reward spread of the groups stayed below {bound:.3g}, "
        f"{fraction:g} of what it was, for {window} iterations "
        "(train.min_spread_fraction)"
    )


def _success_too_low(
    records: Sequence[Record],
    names: Collection[str],
    least: float | None,
    window: int,
) -> str | None:
    if least is None:
        return None
    columns = [_column(records, name) for name in names]
    if any(len(c) < window or max(c[-window:]) >= least for c in columns):
        return None
    return (
        f"held-out success was below {least:g} in {window} evaluations in a row "
        "(train.min_success)"
    )


def _column(records: Sequence[Record], name: str) -> list[float]:
    """Finite values as Python floats, as they are read back when a run resumes."""
    values = (float(r[name]) for r in records if r.get(name) is not None)
    return [x for x in values if math.isfinite(x)]
