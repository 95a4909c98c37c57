"""Configuration rules of the sections `diagnostics` and `warning`.

See `ragen_jax/diagnostics/schedule.py` and `ragen_jax/diagnostics/early_warning.py`.
"""

from collections.abc import Callable, Collection, Mapping

from ragen_jax.diagnostics.early_warning import ACTIONS, EVERY_INDICATOR, INDICATORS
from ragen_jax.diagnostics.gradient_buckets import BUCKET_MODES

Leaves = Mapping[str, object]

_LOWS = tuple(f"warning.{i.low}" for i in INDICATORS.values() if i.low)
_HIGHS = tuple(f"warning.{i.high}" for i in INDICATORS.values() if i.high)

WARNING_OPTIONAL_KEYS = ("warning.action", *_LOWS, *_HIGHS)

WARNING_POSITIVE_INTEGERS = (
    "warning.baseline_iterations",
    "warning.persistence",
    "warning.success_window",
    "warning.cooldown_iterations",
)

_BELOW_ONE = ("above 0 and below 1", lambda x: 0 < x < 1)
WARNING_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    **dict.fromkeys(_LOWS, _BELOW_ONE),
    **dict.fromkeys(_HIGHS, ("above 1", lambda x: x > 1)),
    "warning.information_regime_low": _BELOW_ONE,
    "warning.entropy_regime_low": _BELOW_ONE,
    "warning.success_low": _BELOW_ONE,
    "warning.learning_rate_factor": _BELOW_ONE,
}

# Measured with the information in thoughts alone.
THINKING = "valid_thinking_rate"

WARNING_CHOICES: dict[str, Collection[str]] = {"warning.action": ACTIONS}


def check_warning(leaves: Leaves) -> None:
    """Rules between the keys.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    action, acting = leaves["warning.action"], leaves["warning.act_on"].split(",")
    for name in acting:
        if name not in (EVERY_INDICATOR, *INDICATORS):
            raise ValueError(
                f"warning.act_on = {leaves['warning.act_on']!r}; it must be "
                f"{EVERY_INDICATOR!r}, or of {', '.join(INDICATORS)}, separated by "
                "commas"
            )
    if EVERY_INDICATOR in acting:
        acting = list(INDICATORS)
    watched = [name for name in acting if _has_bound(leaves, name)]
    if action is not None and not watched:
        raise ValueError(
            f"warning.action = {action!r} waits for an alarm of {', '.join(acting)}, "
            "whose bounds are all None; set one of them, or warning.action to None"
        )
    if action is not None and watched == [THINKING] and not reads_thoughts(leaves):
        raise ValueError(
            f"warning.action = {action!r} waits for an alarm of {THINKING}, which "
            "nobody measures: it needs diagnostics.every and prompt.thinking; set "
            "them, or another warning.act_on"
        )
    first, last = leaves["warning.baseline_iterations"], leaves["train.num_iterations"]
    if action is not None and first >= last:
        raise ValueError(
            f"warning.action = {action!r} can never come: alarms are given after "
            f"warning.baseline_iterations = {first}, and train.num_iterations = "
            f"{last}; lower the one or raise the other"
        )


def _has_bound(leaves: Leaves, name: str) -> bool:
    keys = (INDICATORS[name].low, INDICATORS[name].high)
    return any(key and leaves[f"warning.{key}"] is not None for key in keys)


def useless_warning_keys(leaves: Leaves) -> dict[str, str]:
    """Prefixes of keys that change nothing in this configuration, each with why."""
    useless = {}
    if leaves["warning.action"] is None:
        useless["warning.act_on"] = "warning.action is None"
    if leaves["warning.action"] != "cut_learning_rate":
        reason = "warning.action is not 'cut_learning_rate'"
        useless["warning.learning_rate_factor"] = reason
        useless["warning.cooldown_iterations"] = reason
    if not reads_thoughts(leaves):
        reason = "no thoughts are read (diagnostics.every)"
        useless["warning.information_regime_low"] = reason
        useless["warning.entropy_regime_low"] = reason
    if leaves["rollout.group_size"] == 1:
        useless["warning.spread_low"] = "a group of one has no spread"
    return useless


def changes_learning(leaves: Leaves) -> bool:
    """What is learned depends on the alarms."""
    return leaves.get("warning.action") == "cut_learning_rate"


Leaves_ = Mapping[str, object]

DIAGNOSTICS_OPTIONAL_KEYS = ("diagnostics.every", "diagnostics.gradient_every")

DIAGNOSTICS_POSITIVE_INTEGERS = (
    "diagnostics.every",
    "diagnostics.num_samples",
    "diagnostics.chunk_rows",
    "diagnostics.gradient_every",
    "diagnostics.gradient_buckets",
)

DIAGNOSTICS_CHOICES: dict[str, Collection[str]] = {
    "diagnostics.gradient_bucket_mode": BUCKET_MODES
}

# Of diagnostics that read thoughts, and of gradients.
_THOUGHTS = ("every", "num_samples", "chunk_rows")
_GRADIENTS = ("gradient_every", "gradient_buckets", "gradient_bucket_mode")


def reads_thoughts(leaves: Leaves_) -> bool:
    """The information in thoughts is measured."""
    return leaves["diagnostics.every"] is not None and leaves["prompt.thinking"]


def useless_diagnostics_keys(leaves: Leaves_) -> dict[str, str]:
    """Prefixes of keys that change nothing in this configuration, each with why."""
    idle = {}
    if leaves["diagnostics.every"] is None:
        idle |= dict.fromkeys(_THOUGHTS, "diagnostics.every is None")
    elif not leaves["prompt.thinking"]:
        reason = "diagnostics read thoughts, and prompt.thinking = False asks for none"
        idle |= dict.fromkeys(_THOUGHTS, reason)
    if leaves["diagnostics.gradient_every"] is None:
        idle |= dict.fromkeys(_GRADIENTS, "diagnostics.gradient_every is None")
    elif leaves["rollout.group_size"] == 1:
        idle |= dict.fromkeys(_GRADIENTS, "a group of one has no reward spread")
    return {f"diagnostics.{name}": reason for name, reason in idle.items()}
