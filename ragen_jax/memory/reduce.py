"""Smaller settings, in the order in which they hurt.

In: a configuration that does not fit a device. Out: the first setting that does, as
changes by dotted key, or None. The list is short and explicit: what costs time comes
first, then what changes an algorithm, then what changes the experiment.
"""

import dataclasses
from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from ragen_jax.config import flatten, validate
from ragen_jax.learner.rules import needs_critic
from ragen_jax.memory.plan import PROGRAMS, Plan, changed, compiled_elsewhere, make_plan
from ragen_jax.models.config import ModelConfig
from ragen_jax.text.tokenizer import Tokenizer

Leaves = Mapping[str, object]
# RAGEN's adapters: rank 64, ten times the learning rates.
LORA_RANK, LORA_RATE_FACTOR = 64, 10
LEAST_CHUNK_TOKENS, LEAST_PROMPTS = 256, 64


@dataclasses.dataclass(frozen=True)
class Lever:
    """A way to need less memory.

    Attributes:
      price: what it costs, for people.
      change: leaves of a configuration -> smaller values; None: it is at its end.
      relieves: the program it is for.
      programs: those that it changes, which have to be compiled again.
      is_deep: it makes the state smaller, which every program has beside it.
    """

    price: str
    change: Callable[[Leaves], Mapping[str, object] | None]
    relieves: str = "update"
    programs: tuple[str, ...] = ("update",)
    is_deep: bool = False


@dataclasses.dataclass(frozen=True)
class Cure:
    """A setting that fits.

    Attributes:
      changes: values by dotted key.
      prices: of the levers that were pulled.
      plan: with the changes.
    """

    changes: Mapping[str, object]
    prices: tuple[str, ...]
    plan: Plan


def find_cure(
    config: ConfigDict,
    model: ModelConfig,
    tokenizer: Tokenizer,
    plan: Plan,
    limit: int,
    *,
    report: Callable[[str], None] = lambda line: None,
) -> Cure | None:
    """Pull levers, the cheapest that helps first, until the peak is within the limit.

    Args:
      config, model, tokenizer: see `make_plan`.
      plan: of `config`.
      limit: bytes of one device.
      report: told of each setting that was tried.
    """
    changes, prices = {}, []
    while plan.peak > limit:
        leaves = flatten(changed(config, changes))
        pulled = _next(leaves, plan, limit)
        if pulled is None:
            return None
        lever, more = pulled
        changes |= more
        if lever.price not in prices:
            prices.append(lever.price)
        smaller = changed(config, changes)
        validate(smaller)
        kept = compiled_elsewhere(lever.programs, plan)
        plan = make_plan(smaller, model, tokenizer, kept)
        tried = " ".join(f"{key}={value}" for key, value in more.items())
        report(f"{tried}: {plan.peak / 2**30:.3f} GiB ({plan.largest})")
    return Cure(changes, tuple(prices), plan)


def _next(
    leaves: Leaves, plan: Plan, limit: int
) -> tuple[Lever, Mapping[str, object]] | None:
    """The cheapest lever for the program that needs most, and what it changes."""
    own = [lever for lever in LEVERS if lever.relieves == plan.largest]
    deep = [lever for lever in LEVERS if lever.is_deep]
    # Without a smaller state nothing else can help.
    candidates = deep if plan.floor > limit else [*own, *deep]
    for lever in candidates:
        change = lever.change(leaves)
        if change is not None:
            return lever, change
    return None


def recompute_layers(leaves: Leaves) -> Mapping[str, object] | None:
    """Keep nothing of a layer but its input."""
    return None if leaves["model.remat"] == "layers" else {"model.remat": "layers"}


def fewer_rows_at_a_time(leaves: Leaves) -> Mapping[str, object] | None:
    """Half a microbatch, as long as every device has a row of it."""
    half = leaves["learner.microbatch_rows"] // 2
    shards = leaves["mesh.data"] * leaves["mesh.fsdp"]
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


LEVERS = (
    Lever("layers are computed twice", recompute_layers),
    Lever("smaller passes keep a device less busy", fewer_rows_at_a_time),
    Lever("smaller passes keep a device less busy", fewer_logits_at_a_time),
    Lever(
        "wider intervals of held-out success",
        fewer_prompts,
        relieves="evaluation",
        programs=("evaluation",),
    ),
    Lever("policy and critic pull at one network", share_the_trunk, is_deep=True),
    Lever(
        "adapters learn in place of the network",
        train_adapters,
        programs=PROGRAMS,
        is_deep=True,
    ),
    Lever(
        "fewer levels per iteration",
        fewer_groups,
        relieves="rollout",
        programs=("rollout", "update"),
    ),
)
