"""Checks a configuration before anything is built from it.

In: the ConfigDict of a config file. Out: nothing, or one `ValueError` that names the
key, its value, the rule and the cure. Every key is declared in `configs/base.py`, with
its default and its range. Rules between keys are in the `rules.py` of the learner and
the diagnostics; here are those of the other sections. Rules that need the model or the
environment (context length, constructor arguments) are checked where those are built.
"""

import json
import math
import re
from collections.abc import Collection, Iterator

import jax
from ml_collections import ConfigDict

from ragen_jax.devices import sharding
from ragen_jax.diagnostics import rules as diagnostics_rules
from ragen_jax.diagnostics.rules import changes_learning
from ragen_jax.host_games import AGENTS
from ragen_jax.learner import rules as learner_rules
from ragen_jax.registry.settings import (
    Leaves,
    add_options,
    check,
    declared,
    flatten,
    is_integer,
)
from ragen_jax.tasks.specs import mix_problems
from ragen_jax.text.context import count_past


def validate(config: ConfigDict, overrides: Collection[str] = ()) -> None:
    """Check every key and every pair of keys that depend on each other.

    Args:
      config: the resolved configuration. Options of the user's functions that it lacks
        are added with their defaults, and former keys are renamed.
      overrides: dotted paths the user set on the command line; one that would have no
        effect is refused.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    check_kind(config)
    renew(config)
    settings = declared()
    add_options(config, settings.tables, {})
    check(flatten(config), settings, checks=_CHECKS, idle=_IDLE, overrides=overrides)


def check_kind(config: ConfigDict) -> None:
    """Refuse another command's configuration.

    Raises:
      ValueError: a key that training needs is missing.
    """
    leaves = flatten(config)
    missing = [key for key in declared().keys_of_values if key not in leaves]
    if missing:
        raise ValueError(
            f"this is not a training configuration: it lacks {missing[0]}; use a task "
            "file such as configs/sokoban.py (configs/pocket.py and configs/sft.py are "
            "for launch.sft)"
        )


def _mesh(leaves: Leaves) -> Iterator[str]:
    mesh = {axis: leaves[f"mesh.{axis}"] for axis in sharding.MESH_AXES}
    yield from sharding.mesh_problems(mesh)
    rows = {
        "rollout.num_groups x rollout.group_size": leaves["rollout.num_groups"]
        * leaves["rollout.group_size"],
        "learner.microbatch_rows": leaves["learner.microbatch_rows"],
        "evaluation.num_prompts": leaves["evaluation.num_prompts"],
    }
    for name, num_rows in rows.items():
        yield from sharding.row_problems(name, num_rows, mesh)


def _context(leaves: Leaves) -> Iterator[str]:
    turns = (leaves["rollout.context_turns"], leaves["rollout.max_turns"])
    try:
        count_past(leaves["rollout.context"], *turns)
    except ValueError as error:
        yield f"rollout.{error}"


def _agent(leaves: Leaves) -> Iterator[str]:
    """What a file may have set for games whose messages are written here."""
    if not _has_agent(leaves):
        return
    wanted = {
        "prompt.thinking": False,
        "rollout.context": "full",
        "rollout.stop_at_answer": False,
        "learner.share_prompts": False,
        "host.wrappers": None,
        **dict.fromkeys(key for key in leaves if key.startswith("bonus.")),
    }
    for key, value in wanted.items():
        if leaves[key] != value:
            yield (
                f"{key} = {leaves[key]!r}, but an agent's program writes its own "
                f"messages and reads the replies itself; set {key}={value}"
            )


def _has_agent(leaves: Leaves) -> bool:
    return is_agent(leaves["env.host"] or "")


def is_agent(host: str) -> bool:
    """Whether a game of `env.host` is a program that calls the model."""
    prefix, colon, _ = host.partition(":")
    return bool(colon) and prefix in AGENTS


def _truncated_sampling(leaves: Leaves) -> Iterator[str]:
    for key in ("rollout.top_k", "rollout.top_p"):
        if leaves[key] is not None and leaves["loss.importance_cap"] is None:
            yield (
                f"{key} = {leaves[key]} samples from a different distribution than "
                "the one that is trained; set loss.importance_cap (2.0 is usual) and "
                "loss.old_log_probs = 'learner', or leave truncated sampling off"
            )


def _bonus(leaves: Leaves) -> Iterator[str]:
    low, high = leaves["bonus.min_tokens"], leaves["bonus.max_tokens"]
    longest = leaves["rollout.max_reply_tokens"]
    if leaves["bonus.length"] is None:
        for key in ("bonus.min_tokens", "bonus.max_tokens"):
            if leaves[key] is not None:
                yield (
                    f"{key} = {leaves[key]} is read by bonus.length alone, which is "
                    "None; set its weight, or leave the limit None"
                )
    elif low is None or high is None or not low <= high <= longest:
        yield (
            f"bonus.length needs a band of reply tokens, got bonus.min_tokens = {low} "
            f"and bonus.max_tokens = {high}; use 1 <= min <= max <= "
            f"rollout.max_reply_tokens = {longest}"
        )
    for key in ("bonus.facts", "bonus.prediction"):
        if leaves[key] is not None and not leaves["prompt.thinking"]:
            yield (
                f"{key} reads thoughts, and prompt.thinking = False asks for none; "
                f"set {key} to None or prompt.thinking to True"
            )


def _pass_at(leaves: Leaves) -> Iterator[str]:
    requested = leaves["evaluation.pass_at"]
    num_samples = leaves["evaluation.num_samples"]
    for k in requested or ():
        if not is_integer(k) or not 1 <= k <= num_samples:
            yield (
                f"evaluation.pass_at = {tuple(requested)}; pass@k is read from samples "
                f"of a prompt, and evaluation.num_samples = {num_samples}: use whole "
                "numbers from 1 to that, or more samples"
            )


def _keep_best(leaves: Leaves) -> Iterator[str]:
    metric = leaves["checkpoint.keep_best"]
    if metric is None:
        return
    if "/" in metric and not metric.startswith("val-env/"):
        yield (
            f"checkpoint.keep_best = {metric!r} is measured before the update that the "
            "checkpoint follows; use a metric of evaluations, such as "
            "val-env/Sokoban/success, or success for its mean over the environments"
        )
    if leaves["evaluation.every"] is None:
        yield (
            f"checkpoint.keep_best = {metric!r} is measured by evaluations, and "
            "evaluation.every = None asks for none; set it to a number of iterations, "
            "or checkpoint.keep_best to None"
        )


def _host(leaves: Leaves) -> Iterator[str]:
    if leaves["env.host"] is None:
        return
    if leaves["env.mix"] is not None:
        yield (
            f"env.host = {leaves['env.host']!r} and env.mix is set, too; a host "
            "game is played alone: set one of them to None"
        )
    per_turn = leaves["rollout.max_actions_per_turn"]
    if per_turn != 1:
        yield (
            f"rollout.max_actions_per_turn = {per_turn}, but env.host plays a host "
            "game, which gets whole answers: set it to 1, and "
            "rollout.max_actions_per_episode to the number of turns"
        )


def _ahead(leaves: Leaves) -> Iterator[str]:
    if leaves["rollout.ahead"] == 0:
        return
    mesh = {axis: leaves[f"mesh.{axis}"] for axis in sharding.MESH_AXES}
    num_learners, num_players = math.prod(mesh.values()), leaves["rollout.devices"]
    if jax.process_count() > 1:
        yield (
            f"rollout.ahead = 1 plays in a thread, and {jax.process_count()} processes "
            "would not start the programs they share in one order; use one process, or "
            "rollout.ahead = 0"
        )
    if leaves["loss.importance_cap"] is None:
        yield (
            "rollout.ahead = 1 plays with the parameters before the latest update, and "
            "loss.importance_cap = None corrects nothing of that; set it (2.0 is "
            "usual) and loss.old_log_probs = 'learner', or rollout.ahead to 0"
        )
    if num_players is not None:
        num_rows = leaves["rollout.num_groups"] * leaves["rollout.group_size"]
        yield from sharding.player_problems(num_players, num_rows, mesh)
    elif num_learners > 1:
        yield (
            f"rollout.ahead = 1 would play and learn on the same {num_learners} "
            "devices of mesh.*, whose exchanges must not overlap; set rollout.devices "
            "to a number of further devices that play, or rollout.ahead to 0"
        )
    elif leaves["env.host"] is None:
        yield (
            "rollout.ahead = 1 gains nothing where one device both plays a compiled "
            "game and learns; set rollout.devices to a number of further devices that "
            "play, play a host game (env.host), or set rollout.ahead to 0"
        )


def _idle_parts(leaves: Leaves) -> Iterator[tuple[str, str]]:
    axes = (leaves[f"mesh.{axis}"] for axis in sharding.MESH_AXES)
    if (leaves["rollout.devices"] or math.prod(axes)) > 1:
        reason = "the rows are split over the devices of mesh.* or rollout.devices"
        yield "rollout.part_rows", reason


def _idle_agent(leaves: Leaves) -> Iterator[tuple[str, str]]:
    if _has_agent(leaves):
        reason = f"{leaves['env.host']} writes its own messages (docs/agents.md)"
        keys = ("style", "tokenization", "length_hint_words")
        yield from ((f"prompt.{key}", reason) for key in keys)
        keys = ("max_observation_tokens", "image_grid", "num_widths")
        yield from ((f"host.{key}", reason) for key in keys)
        yield "rollout.compactions", "rows join and leave the batch by themselves"
    elif leaves["env.host"] is not None:
        keys = ("episode_tokens", "context_tokens", "max_segments")
        reason = f"{leaves['env.host']} is no agent (docs/agents.md)"
        yield from ((f"host.{key}", reason) for key in keys)


_CHECKS = (
    _mesh,
    _context,
    _truncated_sampling,
    _bonus,
    _agent,
    _pass_at,
    _keep_best,
    _host,
    mix_problems,
    _ahead,
    *learner_rules.CHECKS,
    *diagnostics_rules.CHECKS,
)
_IDLE = (_idle_parts, _idle_agent, *learner_rules.IDLE, *diagnostics_rules.IDLE)


def refuse_unread(overrides: Collection[str], known: Collection[str], where: str):
    """Refuse overrides of keys that a command does not read.

    Args:
      overrides: dotted paths that the user set.
      known: paths of keys, and of sections, that the command reads.
      where: where the others have no effect, as text.

    Raises:
      ValueError: names the first such override, and all known keys.
    """
    for key in overrides:
        if not any(f"{key}.".startswith(f"{entry}.") for entry in known):
            raise ValueError(
                f"--config.{key} has no effect {where}; leave it out. The keys in use "
                f"are {', '.join(known)}"
            )


def pass_at(config: ConfigDict) -> tuple[int, ...]:
    """The `k` of the pass@k that evaluations report."""
    requested, num_samples = config.evaluation.pass_at, config.evaluation.num_samples
    if requested is not None:
        return tuple(requested)
    # pass@1 is the success rate itself.
    return (num_samples,) if num_samples > 1 else ()


def to_json(config: ConfigDict) -> str:
    """The resolved configuration as JSON text; keys sorted."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def changed_keys(
    old: ConfigDict, new: ConfigDict, free: tuple[str, ...] | None = None
) -> dict[str, tuple[object, object]]:
    """Keys that differ and that a resumed run may not change, with both values.

    Args:
      old, new: configurations.
      free: beginnings of the keys that it may change; None: those of training.
    """
    free = declared().mutable if free is None else free
    before, after = (
        {key: json.loads(json.dumps(value)) for key, value in flatten(c).items()}
        for c in (old, new)
    )
    # Alarms that act on the run touch what is learned.
    if changes_learning(before) or changes_learning(after):
        free = tuple(prefix for prefix in free if prefix != "warning.")
    # Without a host game these do nothing; older runs lack them.
    if not any(map(_names_host_game, (*before.items(), *after.items()))):
        free += ("host.", "rollout.max_failed_fraction")
    before = {
        key: value
        for key in after
        for pattern, value in _OLD_VALUES.items()
        if re.fullmatch(pattern, key)
    } | before
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not key.startswith(free)
    }


def _names_host_game(item: tuple[str, object]) -> bool:
    key, value = item
    return value is not None and re.fullmatch(r"env\.host|games\.\w+\.host", key)


def renew(config: ConfigDict) -> ConfigDict:
    """An older run's or file's configuration with the keys of today.

    It is changed in place: `logging.tensorboard` was a switch before `logging.sinks`.
    """
    logging = config.get("logging")
    if isinstance(logging, ConfigDict) and "tensorboard" in logging:
        with logging.unlocked():
            listed = logging.get("sinks")
            sinks = listed if isinstance(listed, tuple | list) else ()
            others = tuple(name for name in sinks if name != "tensorboard")
            logging.sinks = ("tensorboard", *others) if logging.tensorboard else others
            del logging["tensorboard"]
    return config


# Keys that older runs lack -> what these runs did.
_OLD_VALUES = {
    r"games\.\w+\.context": "full",
    r"train\.prompt_loss_weight": 0.0,
    r"train\.num_widths": 5,
    r"(host|learner)\.num_widths": 1,
    r"rollout\.ahead": 0,
    r"learner\.share_prompts": False,
    r"prompt\.observation": "text",
    r"model\.freeze_tower": False,
    r"rollout\.stop_at_answer": False,
}


# Keys of `evaluation` that decide what a success rate on validation prompts means.
VALIDATION_SETTINGS = ("num_prompts", "num_samples", "temperature", "seed")
