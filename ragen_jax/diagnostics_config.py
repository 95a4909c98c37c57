"""Rules of the section `diagnostics`; see `ragen_jax/diagnosis.py`."""

from collections.abc import Collection, Mapping

from ragen_jax.diagnostics.buckets import BUCKET_MODES

Leaves = Mapping[str, object]

OPTIONAL_KEYS = ("diagnostics.every", "diagnostics.gradient_every")

POSITIVE_INTEGERS = (
    "diagnostics.every",
    "diagnostics.num_samples",
    "diagnostics.chunk_rows",
    "diagnostics.gradient_every",
    "diagnostics.gradient_buckets",
)

CHOICES: dict[str, Collection[str]] = {"diagnostics.gradient_bucket_mode": BUCKET_MODES}

# Of diagnostics that read thoughts, and of gradients.
_THOUGHTS = ("every", "num_samples", "chunk_rows")
_GRADIENTS = ("gradient_every", "gradient_buckets", "gradient_bucket_mode")


def reads_thoughts(leaves: Leaves) -> bool:
    """The information in thoughts is measured."""
    is_on = leaves["diagnostics.every"] is not None and leaves["prompt.thinking"]
    return is_on and leaves["train.fused_iterations"] == 1


def useless_keys(leaves: Leaves) -> dict[str, str]:
    """Prefixes of keys that change nothing in this configuration, each with why."""
    if leaves["train.fused_iterations"] > 1:
        return {
            "diagnostics.": "train.fused_iterations > 1 keeps the parameters between "
            "iterations on the device; set it to 1"
        }
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
