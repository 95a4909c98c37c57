"""Rules between the keys of `diagnostics` and `warning`, and those of early stops.

The options are those of `schedule.py`, `early_warning.py` and `early_stopping.py`.
"""

from collections.abc import Iterator

from ragen_jax.diagnostics.early_warning import EVERY_INDICATOR, INDICATORS
from ragen_jax.learner.rules import keeps_something
from ragen_jax.registry.settings import Leaves

# Measured with the information in thoughts alone.
_THINKING = "valid_thinking_rate"


def reads_thoughts(leaves: Leaves) -> bool:
    """The information in thoughts is measured."""
    return leaves["diagnostics.every"] is not None and leaves["prompt.thinking"]


def changes_learning(leaves: Leaves) -> bool:
    """Alarms change the learning rate, and with it what is learned."""
    return leaves.get("warning.action") == "cut_learning_rate"


def _act_on(leaves: Leaves) -> Iterator[str]:
    action, acting = leaves["warning.action"], leaves["warning.act_on"].split(",")
    for name in acting:
        if name not in (EVERY_INDICATOR, *INDICATORS):
            yield (
                f"warning.act_on = {leaves['warning.act_on']!r}; it must be "
                f"{EVERY_INDICATOR!r}, or of {', '.join(INDICATORS)}, separated by "
                "commas"
            )
    if action is None:
        return
    if EVERY_INDICATOR in acting:
        acting = list(INDICATORS)
    bounded = [name for name in acting if _has_bound(leaves, name)]
    if not bounded:
        yield (
            f"warning.action = {action!r} waits for an alarm of {', '.join(acting)}, "
            "whose bounds are all None; set one of them, or warning.action to None"
        )
    if bounded == [_THINKING] and not reads_thoughts(leaves):
        yield (
            f"warning.action = {action!r} can never trigger: {_THINKING} is not "
            "computed (it needs diagnostics.every and prompt.thinking); set those, or "
            "another warning.act_on"
        )


def _has_bound(leaves: Leaves, name: str) -> bool:
    keys = (INDICATORS[name].low, INDICATORS[name].high)
    return any(key and leaves[f"warning.{key}"] is not None for key in keys)


def _action(leaves: Leaves) -> Iterator[str]:
    action = leaves["warning.action"]
    first, last = leaves["warning.baseline_iterations"], leaves["train.num_iterations"]
    if action is not None and first >= last:
        yield (
            f"warning.action = {action!r} can never trigger: alarms begin after "
            f"warning.baseline_iterations = {first}, and train.num_iterations = "
            f"{last}; lower the one or raise the other"
        )


def _last_decision(leaves: Leaves) -> int:
    """Iterations done at the last early-stop decision: before the last iteration."""
    return leaves["train.num_iterations"] - 1


def _early_stops(leaves: Leaves) -> Iterator[str]:
    last = _last_decision(leaves)
    least, every = leaves["train.min_success"], leaves["evaluation.every"]
    if least is not None and every is None:
        yield (
            f"train.min_success = {least} needs held-out success, but evaluation.every "
            "is None; set that to a number of iterations, or train.min_success to None"
        )
    elif least is not None:
        # One evaluation comes before the first iteration.
        count, window = 1 + last // every, leaves["train.failure_window"]
        if window > count:
            yield (
                f"train.min_success = {least} has no effect here: it needs "
                f"train.failure_window = {window} evaluations, and {count} come before "
                "the last iteration; lower the window or evaluation.every, raise "
                "train.num_iterations, or set train.min_success to None"
            )
    share, window = leaves["train.min_spread_fraction"], leaves["train.collapse_window"]
    if share is not None and leaves["rollout.group_size"] < 2:
        yield (
            "train.min_spread_fraction is about the spread of rewards inside a group, "
            "and rollout.group_size = 1 has none; set it to None"
        )
    if share is not None and 2 * window > last:
        yield (
            f"train.min_spread_fraction = {share} has no effect here: it compares two "
            f"windows of train.collapse_window = {window} iterations, and {last} come "
            "before the last one; lower the window, raise train.num_iterations, or set "
            "train.min_spread_fraction to None"
        )


def _idle_alarms(leaves: Leaves) -> Iterator[tuple[str, str]]:
    first, last = leaves["warning.baseline_iterations"], leaves["train.num_iterations"]
    if first >= last:
        reason = (
            f"alarms begin after warning.baseline_iterations = {first}, and "
            f"train.num_iterations = {last}"
        )
        names = [name for i in INDICATORS.values() for name in (i.low, i.high) if name]
        for name in ("baseline_iterations", "persistence", *names):
            yield f"warning.{name}", reason


def _idle_stops(leaves: Leaves) -> Iterator[tuple[str, str]]:
    key = "train.max_empty_iterations"
    if keeps_something(leaves):
        rule = leaves["filter.rule"]
        yield key, f"filter.rule = {rule!r} always keeps something here"
    last = _last_decision(leaves)
    if leaves[key] > last:
        yield key, f"{last} iterations come before the last one"


CHECKS = (_act_on, _action, _early_stops)
IDLE = (_idle_alarms, _idle_stops)
