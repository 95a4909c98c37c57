"""Settings that need less memory, the least harmful first.

In: a configuration that does not fit a device. Out: the first setting that fits, as
changes by dotted key, or None. The list is short and explicit: first options that cost
time, then those that change an algorithm, then those that change the experiment.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from ragen_jax.config import validate
from ragen_jax.learner.rules import needs_critic
from ragen_jax.memory.plan import Plan, changed, make_plan
from ragen_jax.models.config import ModelConfig
from ragen_jax.program.lowering import PROGRAMS
from ragen_jax.registry.settings import flatten
from ragen_jax.text.tokenizer import Tokenizer

Leaves = Mapping[str, object]
# RAGEN's adapters: rank 64, ten times the learning rates.
LORA_RANK, LORA_RATE_FACTOR = 64, 10
LEAST_CHUNK_TOKENS, LEAST_PROMPTS = 256, 64


@dataclasses.dataclass(frozen=True)
class MemoryOption:
    """A change that saves memory.

    Attributes:
      cost: its disadvantage, in words.
      change: leaves of a configuration -> smaller values; None: no further change.
      relieves: the program that needs less.
      programs: programs that it changes, which have to be compiled again.
      shrinks_state: it makes the state smaller, which every program has beside it.
    """

    cost: str
    change: Callable[[Leaves], Mapping[str, object] | None]
    relieves: str = "update"
    programs: tuple[str, ...] = ("update",)
    shrinks_state: bool = False


@dataclasses.dataclass(frozen=True)
class Fix:
    """A setting that fits.

    Attributes:
      changes: values by dotted key.
      costs: of the options that were applied.
      plan: with the changes.
    """

    changes: Mapping[str, object]
    costs: tuple[str, ...]
    plan: Plan


def find_fix(
    config: ConfigDict,
    model: ModelConfig,
    tokenizer: Tokenizer,
    plan: Plan,
    limit: int,
    *,
    report: Callable[[str], None] = lambda line: None,
    **how: Any,
) -> Fix | None:
    """Apply options, the cheapest that helps first, until the peak is within the limit.

    Args:
      config, model, tokenizer: see `make_plan`.
      plan: of `config`.
      limit: bytes of one device.
      report: called with a line for every setting that was tried.
      how: keyword arguments of `make_plan`.

    Returns:
      The first setting that fits; None if there is none.
    """
    changes, costs = {}, []
    while plan.peak > limit:
        chosen = _next(changed(config, changes), plan, limit)
        if chosen is None:
            return None
        option, more = chosen
        changes |= more
        if option.cost not in costs:
            costs.append(option.cost)
        smaller = changed(config, changes)
        unchanged = {
            name: use
            for name, use in plan.memory.items()
            if name not in option.programs
        }
        plan = make_plan(smaller, model, tokenizer, unchanged, **how)
        tried = " ".join(f"{key}={value}" for key, value in more.items())
        report(f"{tried}: {plan.peak / 2**30:.3f} GiB ({plan.largest})")
    return Fix(changes, tuple(costs), plan)


def _next(
    config: ConfigDict, plan: Plan, limit: int
) -> tuple[MemoryOption, Mapping[str, object]] | None:
    """The cheapest option for the program with the highest peak, and its change."""
    leaves = flatten(config)
    direct = [option for option in MEMORY_OPTIONS if option.relieves == plan.largest]
    of_state = [option for option in MEMORY_OPTIONS if option.shrinks_state]
    # If the state alone is too large, only a smaller state helps.
    candidates = of_state if plan.floor > limit else [*direct, *of_state]
    for option in candidates:
        change = option.change(leaves)
        if change is not None and _is_valid(changed(config, change)):
            return option, change
    return None


def _is_valid(config: ConfigDict) -> bool:
    """Whether a run accepts these settings."""
    try:
        validate(config)
    except ValueError:
        return False
    return True


def recompute_layers(leaves: Leaves) -> Mapping[str, object] | None:
    """Keep nothing of a layer but its input."""
    return None if leaves["model.remat"] == "layers" else {"model.remat": "layers"}


def fewer_rows_at_a_time(leaves: Leaves) -> Mapping[str, object] | None:
    """Half a microbatch, as long as every device has a row or a group of it."""
    half = leaves["learner.microbatch_rows"] // 2
    shards = leaves["mesh.data"] * leaves["mesh.fsdp"]
    if leaves["learner.share_prompts"]:
        shards *= leaves["rollout.group_size"]
    fits = half >= 1 and half % shards == 0
    divides = fits and leaves["learner.minibatch_rows"] % half == 0
    return {"learner.microbatch_rows": half} if divides else None


def fewer_logits_at_a_time(leaves: Leaves) -> Mapping[str, object] | None:
    """Logits of fewer tokens at a time."""
    if leaves["learner.logprob_chunk_tokens"] <= LEAST_CHUNK_TOKENS:
        return None
    return {"learner.logprob_chunk_tokens": LEAST_CHUNK_TOKENS}


def fewer_prompts(leaves: Leaves) -> Mapping[str, object] | None:
    """Half the validation prompts."""
    half = leaves["evaluation.num_prompts"] // 2
    if half < LEAST_PROMPTS or half % (leaves["mesh.data"] * leaves["mesh.fsdp"]):
        return None
    return {"evaluation.num_prompts": half}


def share_the_trunk(leaves: Leaves) -> Mapping[str, object] | None:
    """A critic that reads the policy's hidden states."""
    if not needs_critic(leaves) or leaves["critic.trunk"] == "shared":
        return None
    return {"critic.trunk": "shared"}


def train_adapters(leaves: Leaves) -> Mapping[str, object] | None:
    """Adapters in place of the whole network."""
    if leaves["lora.rank"] is not None:
        return None
    rates = {"optimizer.learning_rate": leaves["optimizer.learning_rate"]}
    if needs_critic(leaves):
        rates["critic.learning_rate"] = leaves["critic.learning_rate"]
    raised = {key: float(f"{LORA_RATE_FACTOR * x:.6g}") for key, x in rates.items()}
    return {"lora.rank": LORA_RANK} | raised


def fewer_groups(leaves: Leaves) -> Mapping[str, object] | None:
    """Half the groups."""
    groups = leaves["rollout.num_groups"]
    shards = leaves["mesh.data"] * leaves["mesh.fsdp"]
    rows = groups // 2 * leaves["rollout.group_size"]
    if leaves["env.mix"] is not None or groups < 4 or rows % shards:
        return None
    return {"rollout.num_groups": groups // 2}


MEMORY_OPTIONS = (
    MemoryOption("layers are computed twice", recompute_layers),
    MemoryOption("smaller passes keep a device less busy", fewer_rows_at_a_time),
    MemoryOption("smaller passes keep a device less busy", fewer_logits_at_a_time),
    MemoryOption(
        "wider intervals of held-out success",
        fewer_prompts,
        relieves="evaluation",
        programs=("evaluation",),
    ),
    MemoryOption(
        "policy and critic train one shared network",
        share_the_trunk,
        shrinks_state=True,
    ),
    MemoryOption(
        "adapters are trained in place of the network",
        train_adapters,
        programs=PROGRAMS,
        shrinks_state=True,
    ),
    MemoryOption(
        "fewer levels per iteration",
        fewer_groups,
        relieves="rollout",
        programs=("rollout", "update"),
    ),
)
