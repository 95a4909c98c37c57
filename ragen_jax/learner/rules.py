"""Rules between the configuration keys that choose the algorithm.

The sections `algo`, `kl`, `loss`, `critic`, `schedule`, `filter` and `learner`. The
signatures of a table's entries say which option belongs to which entry.
"""

from collections.abc import Callable, Iterator

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.credit import FILTER_LOSS_SCALES
from ragen_jax.algo.filters import FILTERS, SCORES
from ragen_jax.algo.rewards import REWARD_PLACEMENTS
from ragen_jax.registry.functions import Table, data_names, option_names
from ragen_jax.registry.settings import LARGEST_INTEGER, Leaves

# Options of filter rules that have a default; the others are None for other rules.
_WITH_DEFAULTS = {"filter.direction", "filter.keep_zero", "filter.top_p_epsilon"}


def compares_rows(entry: Callable) -> bool:
    """An estimator or a score compares the rows of a group, so that one is too few."""
    return "group_size" in data_names(entry)


def single_row_entries(table: Table) -> str:
    """Names of the entries that a group of one row is enough for."""
    names = [name for name, entry in table.items() if not compares_rows(entry)]
    return ", ".join(sorted(names))


def keeps_every_group(leaves: Leaves) -> bool:
    """The filter's rule takes rows of every candidate group at any scores."""
    rule = leaves["filter.rule"]
    if rule == "quantile_band":
        return (leaves["filter.quantile_low"], leaves["filter.quantile_high"]) == (0, 1)
    share = {
        "top_fraction": "filter.keep_fraction",
        "top_p": "filter.top_p",
        "top_p_softmax": "filter.top_p",
    }
    return (
        rule == "within_group"
        or (rule == "top_k" and leaves["filter.top_k"] == leaves["rollout.num_groups"])
        or (rule in share and leaves[share[rule]] == 1)
    )


def keeps_something(leaves: Leaves) -> bool:
    """The filter keeps at least a row of every batch at any rewards."""
    if not leaves["filter.keep_zero"]:
        return False
    rule, num_groups = leaves["filter.rule"], leaves["rollout.num_groups"]
    if rule == "quantile_band":
        low, high = leaves["filter.quantile_low"], leaves["filter.quantile_high"]
        # The rule rounds by less than a hundredth of a group.
        return (high - low) * num_groups >= 1.01
    if rule == "min_p":
        # A spread is never below 0, so the best score always comes up to itself.
        return compares_rows(SCORES[leaves["filter.score"]])
    always = ("top_fraction", "top_k", "top_p_softmax")
    return rule in always or keeps_every_group(leaves)


def _options(leaves: Leaves) -> Iterator[str]:
    rule, scale = leaves["filter.rule"], leaves["filter.loss_scale"]
    of_rule = {f"filter.{name}" for name in option_names(FILTERS[rule])}
    of_scale = {f"filter.{n}" for n in option_names(FILTER_LOSS_SCALES[scale])}
    of_rules = {
        f"filter.{name}" for entry in FILTERS.values() for name in option_names(entry)
    }
    for key in sorted(of_rule):
        if leaves[key] is None:
            yield (
                f"filter.rule = {rule!r} needs {key}, which is None; set it, or choose "
                "another rule"
            )
    for key in sorted(of_rules - _WITH_DEFAULTS - of_rule - of_scale):
        if leaves[key] is not None:
            yield (
                f"{key} = {leaves[key]} is not an option of filter.rule = {rule!r}; "
                f"set it to None (--config.{key}=None), or choose its rule"
            )
    for key in sorted(of_scale - of_rule):
        yield (
            f"filter.loss_scale = {scale!r} reads {key}, which filter.rule = {rule!r} "
            "does not use; choose 'linear' or 'sqrt', or filter.rule = 'top_p'"
        )
    low, high = leaves["filter.quantile_low"], leaves["filter.quantile_high"]
    if low is not None and high is not None and low >= high:
        yield (
            f"filter.quantile_low = {low} is not below filter.quantile_high = {high}; "
            "exchange them"
        )
    size = leaves["rollout.group_size"]
    if rule == "within_group" and leaves["filter.rows_per_group"] > size:
        yield (
            f"filter.rows_per_group = {leaves['filter.rows_per_group']} rows are more "
            f"than a group has (rollout.group_size = {size}); use at most {size}"
        )
    if rule == "top_k" and leaves["filter.top_k"] > leaves["rollout.num_groups"]:
        yield (
            f"filter.top_k = {leaves['filter.top_k']} groups are more than there are "
            f"(rollout.num_groups = {leaves['rollout.num_groups']}); use at most that"
        )


def _filtered_group_of_one(leaves: Leaves) -> Iterator[str]:
    score = leaves["filter.score"]
    keeps_all = keeps_every_group(leaves) and leaves["filter.keep_zero"]
    is_spread = compares_rows(SCORES[score])
    if leaves["rollout.group_size"] == 1 and is_spread and not keeps_all:
        yield (
            f"rollout.group_size = 1 leaves filter.score = {score!r} no spread to "
            "choose groups by; use a group size of at least 2, filter.keep_fraction = "
            f"1.0, or a score of single episodes: {single_row_entries(SCORES)}"
        )


def _no_effect_of_filter(leaves: Leaves) -> Iterator[tuple[str, str]]:
    if not keeps_every_group(leaves):
        return
    reason = f"filter.rule = {leaves['filter.rule']!r} keeps every group here"
    yield "filter.direction", reason
    yield "filter.top_p_epsilon", reason
    if leaves["filter.keep_zero"]:
        yield "filter.loss_scale", reason


def needs_critic(leaves: Leaves) -> bool:
    """The estimator reads the critic's values."""
    return "values" in data_names(ADVANTAGES[leaves["algo.advantage"]])


def _group_of_one(leaves: Leaves) -> Iterator[str]:
    if leaves["rollout.group_size"] > 1:
        return
    advantage = leaves["algo.advantage"]
    if compares_rows(ADVANTAGES[advantage]):
        yield (
            f"rollout.group_size = 1 leaves algo.advantage = {advantage!r} nothing to "
            "compare a rollout with; use a group size of at least 2, or an estimator "
            f"that compares none: {single_row_entries(ADVANTAGES)}"
        )
    if leaves["algo.weigh_groups"]:
        yield (
            "rollout.group_size = 1 leaves algo.weigh_groups no spread to weigh groups "
            "by; use a group size of at least 2, or set it to False"
        )


def _credit(leaves: Leaves) -> Iterator[str]:
    placement = leaves["algo.reward_placement"]
    if placement == "turn" and leaves["algo.normalization"] != "identity":
        yield (
            f"algo.normalization = {leaves['algo.normalization']!r} compares whole "
            "episodes, but algo.reward_placement = 'turn' pays turn by turn; use "
            "'identity', or place rewards by 'episode'"
        )
    if leaves["algo.grouping"] == "environment" and leaves["env.mix"] is None:
        yield (
            "algo.grouping = 'environment' compares several games, but a run plays one "
            "unless env.mix names several; use 'batch', or set env.mix"
        )


def _old_log_probs(leaves: Leaves) -> Iterator[str]:
    cap, source = leaves["loss.importance_cap"], leaves["loss.old_log_probs"]
    if cap is not None and source != "learner":
        yield (
            f"loss.importance_cap = {cap} weighs the learner's old log-probabilities "
            f"against the sampler's, but loss.old_log_probs = {source!r}; set that to "
            "'learner', or loss.importance_cap to None"
        )


def _kl(leaves: Leaves) -> Iterator[str]:
    estimator = leaves["kl.estimator"]
    if leaves["kl.placement"] == "reward" and estimator.endswith("+"):
        yield (
            f"kl.estimator = {estimator!r} differs from {estimator[:-1]!r} in its "
            "gradient only, which a reward does not have; use that, or kl.placement = "
            "'loss'"
        )
    if leaves["kl.target"] is not None and leaves["kl.placement"] is None:
        yield (
            f"kl.target = {leaves['kl.target']} has no reference to keep near; set "
            "kl.placement to 'loss' or 'reward', or kl.target to None"
        )


def _minibatches(leaves: Leaves) -> Iterator[str]:
    minibatch, microbatch = (
        leaves[f"learner.{name}_rows"] for name in ("minibatch", "microbatch")
    )
    if minibatch % microbatch:
        yield (
            f"learner.minibatch_rows = {minibatch} is not a multiple of "
            f"learner.microbatch_rows = {microbatch}; change one of them"
        )
    rows = leaves["rollout.num_groups"] * leaves["rollout.group_size"]
    if leaves["rollout.context"] != "full":
        rows *= leaves["rollout.max_turns"]
    steps = leaves["learner.epochs"] * -(-rows // minibatch)
    if steps > LARGEST_INTEGER:
        yield (
            f"learner.epochs = {leaves['learner.epochs']} are up to {steps} optimizer "
            f"steps per update, more than can be counted with 32 bits; use at most "
            f"{LARGEST_INTEGER // -(-rows // minibatch)}"
        )


def _shared_prompts(leaves: Leaves) -> Iterator[str]:
    if not leaves["learner.share_prompts"]:
        return
    if leaves["rollout.context"] != "full":
        yield (
            "learner.share_prompts = True reads rows that begin with a group's first "
            f"message, and with rollout.context = {leaves['rollout.context']!r} every "
            "turn is a row with another prompt; use 'full', or set "
            "learner.share_prompts to False"
        )
    if leaves["filter.rule"] == "within_group":
        yield (
            "learner.share_prompts = True reads groups whole, and filter.rule = "
            "'within_group' keeps rows of every group; choose another rule, or set "
            "learner.share_prompts to False"
        )
    rows, size = leaves["learner.microbatch_rows"], leaves["rollout.group_size"]
    shards = leaves["mesh.data"] * leaves["mesh.fsdp"]
    if rows % (size * shards):
        yield (
            "learner.share_prompts = True reads a group's rows in one pass on one "
            f"device, but learner.microbatch_rows = {rows} is not a multiple of "
            f"rollout.group_size x mesh.data x mesh.fsdp = {size * shards}; use one, "
            "or set learner.share_prompts to False"
        )


def _schedule(leaves: Leaves) -> Iterator[str]:
    schedule, length = leaves["schedule.shape"], leaves["schedule.decay_updates"]
    if (schedule == "constant") != (length is None):
        cure = "None" if schedule == "constant" else "the length of the run"
        yield (
            f"schedule.shape = {schedule!r} with schedule.decay_updates = "
            f"{length}; set that to {cure}, or choose another schedule"
        )
    if length is not None and length <= leaves["schedule.warmup_updates"]:
        yield (
            f"schedule.decay_updates = {length} leaves nothing after "
            f"{leaves['schedule.warmup_updates']} schedule.warmup_updates; "
            "raise it"
        )


def _no_effect_of_credit(leaves: Leaves) -> Iterator[tuple[str, str]]:
    advantage, normalization = leaves["algo.advantage"], leaves["algo.normalization"]
    if not needs_critic(leaves):
        yield "critic.", f"algo.advantage = {advantage!r} has no critic"
    if normalization != "identity" and _is_undone(leaves):
        reason = (
            f"algo.advantage = {advantage!r} normalises rewards inside each group "
            f"again, which undoes algo.normalization = {normalization!r}"
        )
        yield "algo.normalization", reason
        yield "algo.grouping", reason
    if leaves["rollout.max_turns"] == 1:
        reason = "rollout.max_turns = 1: an episode is one turn"
        if advantage == "gigpo":
            yield "algo.gamma", f"{reason}, and gigpo discounts per turn"
        if leaves["algo.reward_placement"] == "turn":
            yield "algo.reward_placement", reason
    if leaves["algo.zero_task"]:
        reason = "algo.zero_task = True: every advantage is 0, and the policy loss too"
        for name in ("policy", "clip_low", "clip_high", "dual_clip"):
            yield f"loss.{name}", reason
        needs_cap = ("rollout.top_k", "rollout.top_p", "rollout.ahead")
        if not any(leaves[key] for key in needs_cap):
            yield "loss.importance_cap", reason
        yield "filter.loss_scale", reason
        for name in ("weigh_groups", "weigh_lengths"):
            yield f"algo.{name}", reason
        # A critic still learns from the rewards.
        if not needs_critic(leaves):
            placement = REWARD_PLACEMENTS[leaves["algo.reward_placement"]]
            names = option_names(ADVANTAGES[advantage]) + option_names(placement)
            for name in ("reward_placement", *names):
                yield f"algo.{name}", reason
            if leaves["kl.placement"] == "reward":
                for name in ("coeff", "target", "horizon"):
                    yield f"kl.{name}", f"{reason}, KL in the rewards included"
    if leaves["filter.rows_per_group"] == 1:
        reason = "filter.rows_per_group = 1: a row alone in its group has no spread"
        yield "algo.weigh_groups", reason


# Estimators whose advantages stay the same, but for rounding, when all scores of a
# group are shifted by one number, or scaled by a positive one.
_SHIFT_INVARIANT = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "gigpo")
_SCALE_INVARIANT = ("grpo", "gigpo")


def _is_undone(leaves: Leaves) -> bool:
    """The estimator's advantages do not depend on the normalisation of rewards."""
    advantage, normalization = leaves["algo.advantage"], leaves["algo.normalization"]
    # A row that is left alone in its group is not compared with others.
    if leaves["filter.rows_per_group"] == 1:
        return False
    if normalization == "mean":
        return advantage in _SHIFT_INVARIANT
    # A KL penalty and the weights of groups are of the scale of the rewards.
    is_scaled = leaves["kl.placement"] == "reward" or leaves["algo.weigh_groups"]
    return (
        normalization == "mean_std" and advantage in _SCALE_INVARIANT and not is_scaled
    )


CHECKS = (
    _group_of_one,
    _credit,
    _old_log_probs,
    _kl,
    _minibatches,
    _shared_prompts,
    _schedule,
    _options,
    _filtered_group_of_one,
)
IDLE = (_no_effect_of_credit, _no_effect_of_filter)
