"""Checks a configuration before anything is built from it.

In: the ConfigDict of a config file. Out: nothing, or one `ValueError`
that names the key, its value, the rule and the cure. Defaults live in `configs/base.py`
and nowhere else; what needs the model or the environment to be checked (context length,
constructor arguments) is checked where those are built.
"""

import json
import math
from collections.abc import Callable, Collection

import jax
from ml_collections import ConfigDict

from envs.base import PlayBudget
from ragen_jax.algo.advantages import ADVANTAGES

# Keys that may be None, which means "off".
OPTIONAL_KEYS = (
    "rollout.top_k",
    "rollout.top_p",
    "algo.importance_cap",
    "evaluation.every",
    "logging.trajectories_every",
)

# Keys a resumed run may change: they do not touch what is learned.
FREE_ON_RESUME = ("train.num_iterations", "evaluation.", "checkpoint.", "logging.")

_POSITIVE_INTEGERS = (
    "rollout.num_groups",
    "rollout.group_size",
    "rollout.max_turns",
    "rollout.max_actions_per_turn",
    "rollout.max_actions_per_episode",
    "rollout.max_reply_tokens",
    "rollout.decode_chunk_tokens",
    "rollout.top_k",
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
    "checkpoint.every",
    "checkpoint.keep",
    "logging.trajectories_every",
    "logging.trajectories_per_iteration",
    "prompt.length_hint_words",
)

# key -> (rule in words, test)
_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "seed": ("at least 0 and below 2**32", lambda x: 0 <= x < 2**32),
    "evaluation.seed": ("at least 0 and below 2**32", lambda x: 0 <= x < 2**32),
    "rollout.temperature": ("above 0 (sampling)", lambda x: x > 0),
    "rollout.top_p": ("above 0 and at most 1", lambda x: 0 < x <= 1),
    "rollout.format_penalty": ("at most 0 (it is added)", lambda x: x <= 0),
    "algo.clip_low": ("between 0 and 1", lambda x: 0 < x < 1),
    "algo.clip_high": ("above 0", lambda x: x > 0),
    "algo.entropy_coeff": ("at least 0", lambda x: x >= 0),
    "algo.importance_cap": ("at least 1", lambda x: x >= 1),
    "filter.keep_fraction": ("above 0 and at most 1", lambda x: 0 < x <= 1),
    "optimizer.learning_rate": ("above 0", lambda x: x > 0),
    "optimizer.beta1": ("at least 0 and below 1", lambda x: 0 <= x < 1),
    "optimizer.beta2": ("at least 0 and below 1", lambda x: 0 <= x < 1),
    "optimizer.weight_decay": ("at least 0", lambda x: x >= 0),
    "optimizer.max_grad_norm": ("above 0", lambda x: x > 0),
    "evaluation.temperature": ("at least 0 (0 is greedy)", lambda x: x >= 0),
}

_CHOICES: dict[str, Collection[str]] = {
    "algo.advantage": ADVANTAGES,
    "prompt.style": ("full", "terse"),
    "prompt.tokenization": ("symbols", "rows"),
    "model.dtype": ("float32", "bfloat16"),
}


_KNOWN = (*OPTIONAL_KEYS, *_POSITIVE_INTEGERS, *_RANGES, *_CHOICES)


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
    leaves = flatten(config)
    missing = [key for key in _KNOWN if key not in leaves]
    if missing:
        raise ValueError(
            f"this is no training configuration, it lacks {missing[0]}; use a task "
            "file such as configs/sokoban.py (configs/pocket.py is for launch.sft)"
        )
    for key, value in leaves.items():
        if value is None and key not in OPTIONAL_KEYS:
            raise ValueError(
                f"{key} is None; only {', '.join(OPTIONAL_KEYS)} may be None: give it "
                "a value"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} = {value}; it must be a finite number")
    for key in _POSITIVE_INTEGERS:
        if leaves[key] is not None and leaves[key] < 1:
            raise ValueError(f"{key} = {leaves[key]}; it must be at least 1")
    for key, (rule, holds) in _RANGES.items():
        if leaves[key] is not None and not holds(leaves[key]):
            raise ValueError(f"{key} = {leaves[key]}; it must be {rule}")
    for key, choices in _CHOICES.items():
        if leaves[key] not in choices:
            raise ValueError(
                f"{key} = {leaves[key]!r}; choose one of {', '.join(sorted(choices))}"
            )
    _check_pairs(config)
    _check_effective(leaves, overrides)


def _check_pairs(config: ConfigDict) -> None:
    """Rules between keys."""
    if config.seed == config.evaluation.seed:
        raise ValueError(
            f"seed = evaluation.seed = {config.seed}: training would meet the "
            "validation levels; use another seed"
        )
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
    if config.algo.advantage == "grpo" and config.rollout.group_size < 2:
        raise ValueError(
            "rollout.group_size = 1 leaves algo.advantage = 'grpo' nothing to compare "
            "a rollout with; use a group size of at least 2"
        )
    truncated = [k for k in ("top_k", "top_p") if config.rollout[k] is not None]
    if truncated and config.algo.importance_cap is None:
        raise ValueError(
            f"rollout.{truncated[0]} = {config.rollout[truncated[0]]} samples from "
            "another distribution than the one that is trained; set "
            "algo.importance_cap (2.0 is usual) or leave truncated sampling off"
        )


def _check_effective(leaves: dict[str, object], overrides: Collection[str]) -> None:
    """Refuse keys the user set that would change nothing."""
    useless = {}
    if leaves["evaluation.every"] is None:
        useless["evaluation."] = "evaluation.every is None"
    if leaves["logging.trajectories_every"] is None:
        useless["logging.trajectories_per_iteration"] = (
            "logging.trajectories_every is None"
        )
    if leaves["prompt.style"] == "terse":
        useless["prompt.length_hint_words"] = "the terse wording has no length hint"
    for key in overrides:
        for prefix, reason in useless.items():
            if key.startswith(prefix) and leaves.get(key) is not None:
                raise ValueError(f"{key} has no effect here: {reason}; leave it out")


def play_budget(config: ConfigDict) -> PlayBudget:
    """How much play the configuration allows an episode."""
    return PlayBudget(
        max_turns=config.rollout.max_turns,
        max_actions_per_turn=config.rollout.max_actions_per_turn,
        max_actions_per_episode=config.rollout.max_actions_per_episode,
    )


def to_json(config: ConfigDict) -> str:
    """The resolved configuration as JSON text; keys sorted."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> ConfigDict:
    """Inverse of `to_json`, locked."""
    return ConfigDict(json.loads(text)).lock()


def changed_keys(old: ConfigDict, new: ConfigDict) -> dict[str, tuple[object, object]]:
    """Keys that differ and that a resumed run may not change, with both values."""
    before, after = (
        {key: json.loads(json.dumps(value)) for key, value in flatten(c).items()}
        for c in (old, new)
    )
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not key.startswith(FREE_ON_RESUME)
    }
