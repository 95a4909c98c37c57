"""Checks a configuration before anything is built from it.

In: the ConfigDict of a config file. Out: nothing, or one `ValueError`
that names the key, its value, the rule and the cure. Defaults live in `configs/base.py`
and nowhere else; what needs the model or the environment to be checked (context length,
constructor arguments) is checked where those are built.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping

import jax
from ml_collections import ConfigDict

from ragen_jax.diagnostics import rules as diagnostics_config
from ragen_jax.diagnostics import rules as warning_config
from ragen_jax.learner import rules as algorithm_config
from ragen_jax.models.attention import CAUSAL_ATTENTIONS
from ragen_jax.models.decoder import REMAT_POLICIES
from ragen_jax.tasks import (
    check_mix,
)
from ragen_jax.text.context import CONTEXTS

# Keys that may be None, which means "off".
OPTIONAL_KEYS = (
    "env.mix",
    "model.remat",
    "rollout.top_k",
    "rollout.top_p",
    "rollout.context_turns",
    "rollout.compactions",
    "bonus.format",
    "bonus.length",
    "bonus.facts",
    "bonus.min_tokens",
    "bonus.max_tokens",
    "evaluation.every",
    "evaluation.pass_at",
    "logging.trajectories_every",
    *algorithm_config.OPTIONAL_KEYS,
    *diagnostics_config.DIAGNOSTICS_OPTIONAL_KEYS,
    *warning_config.WARNING_OPTIONAL_KEYS,
)

# Keys a resumed run may change: they do not touch what is learned (another mesh or
# attention rounds differently, and `changed_keys` knows when alarms do).
FREE_ON_RESUME = (
    "train.",
    "evaluation.",
    "diagnostics.",
    "warning.",
    "checkpoint.",
    "logging.",
    "mesh.",
    "model.attention",
)

_POSITIVE_INTEGERS = (
    "rollout.num_groups",
    "rollout.group_size",
    "rollout.max_turns",
    "rollout.max_actions_per_turn",
    "rollout.max_actions_per_episode",
    "rollout.max_reply_tokens",
    "rollout.decode_chunk_tokens",
    "rollout.compactions",
    "rollout.context_turns",
    "rollout.top_k",
    "bonus.min_tokens",
    "bonus.max_tokens",
    "learner.minibatch_rows",
    "learner.microbatch_rows",
    "learner.epochs",
    "learner.logprob_chunk_tokens",
    "mesh.data",
    "mesh.fsdp",
    "mesh.tensor",
    "train.num_iterations",
    "train.max_skipped_updates",
    "evaluation.every",
    "evaluation.num_prompts",
    "evaluation.num_samples",
    "checkpoint.every",
    "checkpoint.keep",
    "logging.trajectories_every",
    "logging.trajectories_per_iteration",
    "prompt.length_hint_words",
    *algorithm_config.POSITIVE_INTEGERS,
    *diagnostics_config.DIAGNOSTICS_POSITIVE_INTEGERS,
    *warning_config.WARNING_POSITIVE_INTEGERS,
)

_NOT_ZERO = ("above or below 0, or None", lambda x: x != 0)
# key -> (rule in words, test)
Ranges = Mapping[str, tuple[str, Callable[[float], bool]]]
RANGES: Ranges = {
    "seed": ("at least 0 and below 2**32", lambda x: 0 <= x < 2**32),
    "evaluation.seed": ("at least 0 and below 2**32", lambda x: 0 <= x < 2**32),
    "rollout.temperature": ("above 0 (sampling)", lambda x: x > 0),
    "rollout.top_p": ("above 0 and at most 1", lambda x: 0 < x <= 1),
    **dict.fromkeys(("bonus.format", "bonus.length", "bonus.facts"), _NOT_ZERO),
    "rollout.format_penalty": ("at most 0 (it is added)", lambda x: x <= 0),
    "optimizer.learning_rate": ("above 0", lambda x: x > 0),
    "optimizer.beta1": ("at least 0 and below 1", lambda x: 0 <= x < 1),
    "optimizer.beta2": ("at least 0 and below 1", lambda x: 0 <= x < 1),
    "optimizer.weight_decay": ("at least 0", lambda x: x >= 0),
    "optimizer.max_grad_norm": ("above 0", lambda x: x > 0),
    "evaluation.temperature": ("at least 0 (0 is greedy)", lambda x: x >= 0),
    **algorithm_config.RANGES,
    **warning_config.WARNING_RANGES,
}

CHOICES: Mapping[str, Collection[str]] = {
    "rollout.context": CONTEXTS,
    "prompt.style": ("full", "terse"),
    "prompt.tokenization": ("symbols", "rows"),
    "model.dtype": ("float32", "bfloat16"),
    "model.remat": REMAT_POLICIES,
    "model.attention": CAUSAL_ATTENTIONS,
    **algorithm_config.CHOICES,
    **diagnostics_config.DIAGNOSTICS_CHOICES,
    **warning_config.WARNING_CHOICES,
}

_KNOWN = (*OPTIONAL_KEYS, *_POSITIVE_INTEGERS, *RANGES, *CHOICES)


def flatten(config: ConfigDict) -> dict[str, object]:
    """Every leaf by its dotted path, in the order of the file."""
    leaves: dict[str, object] = {}

    def walk(node: ConfigDict, prefix: str) -> None:
        for name, value in node.items():
            if isinstance(value, ConfigDict):
                walk(value, f"{prefix}{name}.")
            else:
                leaves[prefix + name] = value

    walk(config, "")
    return leaves


def validate(config: ConfigDict, overrides: Collection[str] = ()) -> None:
    """Check every key and every pair of keys that depend on each other.

    Args:
      config: the resolved configuration.
      overrides: dotted paths the user set on the command line; one that would have no
        effect is refused.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    check_kind(config)
    leaves = flatten(config)
    check_values(
        leaves,
        optional=OPTIONAL_KEYS,
        positive_integers=_POSITIVE_INTEGERS,
        ranges=RANGES,
        choices=CHOICES,
    )
    _check_pairs(config)
    _check_bonus(leaves)
    pass_at(config)
    check_mix(leaves)
    algorithm_config.check_algorithm(leaves)
    warning_config.check_warning(leaves)
    _check_effective(leaves, overrides)


def check_kind(config: ConfigDict) -> None:
    """Refuse another command's configuration.

    Raises:
      ValueError: a key that training needs is missing.
    """
    leaves = flatten(config)
    missing = [key for key in _KNOWN if key not in leaves]
    if missing:
        raise ValueError(
            f"this is no training configuration, it lacks {missing[0]}; use a task "
            "file such as configs/sokoban.py (configs/pocket.py and configs/sft.py are "
            "for launch.sft)"
        )


def check_values(
    leaves: Mapping[str, object],
    *,
    optional: Collection[str],
    positive_integers: Collection[str],
    ranges: Ranges,
    choices: Mapping[str, Collection[str]],
) -> None:
    """Check every key by itself.

    Args:
      leaves: all keys and their values.
      optional: keys that may be None; other rules hold where they are not.
      positive_integers: keys whose values are at least 1.
      ranges: see `RANGES`.
      choices: key -> allowed values.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    for key, value in leaves.items():
        if value is None and key not in optional:
            raise ValueError(
                f"{key} is None; only {', '.join(optional)} may be None: give it a "
                "value"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} = {value}; it must be a finite number")
    for key in positive_integers:
        if leaves[key] is not None and leaves[key] < 1:
            raise ValueError(f"{key} = {leaves[key]}; it must be at least 1")
    for key, (rule, holds) in ranges.items():
        if leaves[key] is not None and not holds(leaves[key]):
            raise ValueError(f"{key} = {leaves[key]}; it must be {rule}")
    for key, allowed in choices.items():
        if leaves[key] is not None and leaves[key] not in allowed:
            raise ValueError(
                f"{key} = {leaves[key]!r}; choose one of {', '.join(sorted(allowed))}"
            )


def _check_pairs(config: ConfigDict) -> None:
    """Rules between keys."""
    rows = config.rollout.num_groups * config.rollout.group_size
    shards = config.mesh.data * config.mesh.fsdp
    devices = shards * config.mesh.tensor
    if devices > jax.device_count():
        raise ValueError(
            f"mesh.data x mesh.fsdp x mesh.tensor = {devices} devices, but "
            f"{jax.device_count()} are present; use smaller factors"
        )
    if rows % shards:
        raise ValueError(
            f"rollout.num_groups x rollout.group_size = {rows} rows cannot be split "
            f"over mesh.data x mesh.fsdp = {shards} devices; use a multiple of {shards}"
        )
    if config.learner.minibatch_rows % config.learner.microbatch_rows:
        raise ValueError(
            f"learner.minibatch_rows = {config.learner.minibatch_rows} is not a "
            "multiple of learner.microbatch_rows = "
            f"{config.learner.microbatch_rows}; change one of them"
        )
    if config.learner.microbatch_rows % shards:
        raise ValueError(
            f"learner.microbatch_rows = {config.learner.microbatch_rows} cannot be "
            f"split over mesh.data x mesh.fsdp = {shards} devices; use a multiple of "
            f"{shards}"
        )
    if config.evaluation.num_prompts % shards:
        raise ValueError(
            f"evaluation.num_prompts = {config.evaluation.num_prompts} cannot be split "
            f"over mesh.data x mesh.fsdp = {shards} devices; use a multiple of {shards}"
        )
    context, turns = config.rollout.context, config.rollout.context_turns
    if (context == "full") != (turns is None):
        cure = "None" if context == "full" else "a number of turns"
        raise ValueError(
            f"rollout.context = {context!r} with rollout.context_turns = {turns}; set "
            f"that to {cure}"
        )
    truncated = [k for k in ("top_k", "top_p") if config.rollout[k] is not None]
    if truncated and config.loss.importance_cap is None:
        raise ValueError(
            f"rollout.{truncated[0]} = {config.rollout[truncated[0]]} samples from "
            "another distribution than the one that is trained; set "
            "loss.importance_cap (2.0 is usual) and loss.old_log_probs = 'learner', or "
            "leave truncated sampling off"
        )


def _check_bonus(leaves: dict[str, object]) -> None:
    """Rules of the bonuses for how a reply is written."""
    low, high = leaves["bonus.min_tokens"], leaves["bonus.max_tokens"]
    longest = leaves["rollout.max_reply_tokens"]
    if leaves["bonus.length"] is None:
        given = [k for k in ("bonus.min_tokens", "bonus.max_tokens") if leaves[k]]
        if given:
            raise ValueError(
                f"{given[0]} = {leaves[given[0]]} is read by bonus.length alone, which "
                "is None; set its weight, or leave the limit None"
            )
    elif low is None or high is None or not low <= high <= longest:
        raise ValueError(
            f"bonus.length needs a band of reply tokens, got bonus.min_tokens = {low} "
            f"and bonus.max_tokens = {high}; use 1 <= min <= max <= "
            f"rollout.max_reply_tokens = {longest}"
        )
    if leaves["bonus.facts"] is not None and not leaves["prompt.thinking"]:
        raise ValueError(
            "bonus.facts reads thoughts, and prompt.thinking = False asks for none; "
            "set bonus.facts to None or prompt.thinking to True"
        )


def _check_effective(leaves: dict[str, object], overrides: Collection[str]) -> None:
    """Refuse keys the user set that would change nothing."""
    useless = algorithm_config.useless_keys(leaves)
    useless |= warning_config.useless_warning_keys(leaves)
    if leaves["evaluation.every"] is None:
        useless["evaluation."] = "evaluation.every is None"
    useless |= diagnostics_config.useless_diagnostics_keys(leaves)
    if leaves["logging.trajectories_every"] is None:
        useless["logging.trajectories_per_iteration"] = (
            "logging.trajectories_every is None"
        )
    if leaves["env.mix"] is not None:
        useless["env.name"] = "env.mix names the environments"
    if leaves["prompt.style"] == "terse":
        useless["prompt.length_hint_words"] = "the terse wording has no length hint"
    for key in overrides:
        for prefix, reason in useless.items():
            if key.startswith(prefix) and leaves.get(key) is not None:
                raise ValueError(f"{key} has no effect here: {reason}; leave it out")


def pass_at(config: ConfigDict) -> tuple[int, ...]:
    """The `k` of the pass@k that evaluations report.

    Raises:
      ValueError: `evaluation.pass_at` is no list of whole numbers between 1 and the
        number of samples.
    """
    asked, num_samples = config.evaluation.pass_at, config.evaluation.num_samples
    if asked is None:
        # That of one sample is the success rate itself.
        return (num_samples,) if num_samples > 1 else ()
    for k in asked:
        if not isinstance(k, int) or not 1 <= k <= num_samples:
            raise ValueError(
                f"evaluation.pass_at = {tuple(asked)}; pass@k is read from samples of "
                f"a prompt, and evaluation.num_samples = {num_samples}: use whole "
                "numbers from 1 to that, or more samples"
            )
    return tuple(asked)


def to_json(config: ConfigDict) -> str:
    """The resolved configuration as JSON text; keys sorted."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> ConfigDict:
    """Inverse of `to_json`, locked."""
    return ConfigDict(json.loads(text)).lock()


def changed_keys(
    old: ConfigDict, new: ConfigDict, free: tuple[str, ...] = FREE_ON_RESUME
) -> dict[str, tuple[object, object]]:
    """Keys that differ and that a resumed run may not change, with both values.

    Args:
      old, new: configurations.
      free: beginnings of the keys that it may change.
    """
    before, after = (
        {key: json.loads(json.dumps(value)) for key, value in flatten(c).items()}
        for c in (old, new)
    )
    if warning_config.changes_learning(before) or warning_config.changes_learning(
        after
    ):
        free = tuple(prefix for prefix in free if prefix != "warning.")
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not key.startswith(free)
    }


# Keys of `evaluation` that decide what a success rate on validation prompts means.
VALIDATION_SETTINGS = ("num_prompts", "num_samples", "temperature", "seed")
