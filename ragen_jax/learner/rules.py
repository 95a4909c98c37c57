"""Rules of the keys that choose the algorithm (`algo`, `filter`, `loss`, ...).

In: the leaves of a configuration. Out: nothing, or one `ValueError` with the cure.
Which option belongs to which entry of a table is told by the entries' signatures.
"""

from collections.abc import Callable, Collection, Mapping

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.credit import FILTER_LOSS_SCALES
from ragen_jax.algo.filters import RULES, SCORES
from ragen_jax.algo.losses import AGGREGATIONS, KL_ESTIMATORS, POLICY_LOSSES
from ragen_jax.algo.rewards import GROUPINGS, NORMALIZATIONS, REWARD_PLACEMENTS
from ragen_jax.learner.loss import OLD_LOG_PROBS
from ragen_jax.learner.state import SCHEDULES
from ragen_jax.models.critic import TRUNKS
from ragen_jax.tables import own_options

Leaves = Mapping[str, object]

# Estimators that read the critic's values, and those that compare a group's rows.
CRITIC_ADVANTAGES = ("gae", "bi_level_gae")
GROUP_ADVANTAGES = (
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_plus_plus_baseline",
    "gigpo",
)

# Scores that are about how the rows of a group differ.
SPREAD_SCORES = ("reward_std", "reward_variance", "entropy_std")

OPTIONAL_KEYS = (
    "kl.placement",
    "kl.target",
    "filter.keep_fraction",
    "filter.top_k",
    "filter.top_p",
    "filter.min_p",
    "filter.quantile_low",
    "filter.quantile_high",
    "filter.rows_per_group",
    "loss.dual_clip",
    "loss.importance_cap",
    "critic.clip_value",
    "lora.rank",
    "schedule.decay_updates",
    "train.max_sampler_difference",
    "train.min_spread_fraction",
    "train.min_success",
)

POSITIVE_INTEGERS = (
    "filter.top_k",
    "filter.rows_per_group",
    "lora.rank",
    "learner.updates_per_rollout",
    "schedule.decay_updates",
    "train.max_empty_iterations",
    "train.collapse_window",
    "train.failure_window",
)

_SHARE = ("above 0 and at most 1", lambda x: 0 < x <= 1)
_FROM_ZERO = ("at least 0", lambda x: x >= 0)
_ABOVE_ZERO = ("above 0", lambda x: x > 0)
_ZERO_TO_ONE = ("between 0 and 1", lambda x: 0 <= x <= 1)

RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "algo.gamma": _ZERO_TO_ONE,
    "algo.lam": _ZERO_TO_ONE,
    "algo.high_level_gamma": _ZERO_TO_ONE,
    "algo.step_weight": _FROM_ZERO,
    "kl.coeff": ("above 0 (to switch it off: kl.placement = None)", lambda x: x > 0),
    "kl.target": _ABOVE_ZERO,
    "kl.horizon": _ABOVE_ZERO,
    "filter.keep_fraction": (f"{_SHARE[0]} (all groups)", _SHARE[1]),
    "filter.top_p": (f"{_SHARE[0]} (all of the score's mass)", _SHARE[1]),
    "filter.min_p": (f"{_SHARE[0]} (as good as the best)", _SHARE[1]),
    "filter.quantile_low": _ZERO_TO_ONE,
    "filter.quantile_high": _ZERO_TO_ONE,
    "filter.top_p_epsilon": _FROM_ZERO,
    "loss.clip_low": ("above 0 and at most 1", lambda x: 0 < x <= 1),
    "loss.clip_high": _ABOVE_ZERO,
    "loss.dual_clip": ("above 1", lambda x: x > 1),
    "loss.entropy_coeff": _FROM_ZERO,
    "loss.importance_cap": ("at least 1", lambda x: x >= 1),
    "lora.alpha": _ABOVE_ZERO,
    "critic.learning_rate": _ABOVE_ZERO,
    "critic.clip_value": _ABOVE_ZERO,
    "critic.loss_coeff": _ABOVE_ZERO,
    "critic.warmup_updates": _FROM_ZERO,
    "schedule.warmup_updates": _FROM_ZERO,
    "schedule.final_fraction": _ZERO_TO_ONE,
    "train.max_sampler_difference": _ABOVE_ZERO,
    "train.min_spread_fraction": _SHARE,
    "train.min_success": _SHARE,
}

CHOICES: dict[str, Collection[str]] = {
    "algo.advantage": ADVANTAGES,
    "algo.reward_placement": REWARD_PLACEMENTS,
    "algo.normalization": NORMALIZATIONS,
    "algo.grouping": GROUPINGS,
    "kl.placement": ("loss", "reward"),
    "kl.estimator": KL_ESTIMATORS,
    "filter.score": SCORES,
    "filter.rule": RULES,
    "filter.direction": ("largest", "smallest"),
    "filter.loss_scale": FILTER_LOSS_SCALES,
    "loss.policy": POLICY_LOSSES,
    "loss.aggregation": AGGREGATIONS,
    "loss.old_log_probs": OLD_LOG_PROBS,
    "critic.trunk": TRUNKS,
    "schedule.shape": SCHEDULES,
}


def needs_critic(leaves: Leaves) -> bool:
    """The estimator reads the critic's values."""
    return leaves["algo.advantage"] in CRITIC_ADVANTAGES


def check_algorithm(leaves: Leaves) -> None:
    """Rules between the algorithm's keys.

    Raises:
      ValueError: the first rule that is broken, and the cure.
    """
    _check_filter(leaves)
    _check_group_size(leaves)
    _check_credit(leaves)
    _check_old_log_probs(leaves)
    _check_kl(leaves)
    _check_schedule(leaves)
    _check_early_stops(leaves)


def _check_filter(leaves: Leaves) -> None:
    rule = leaves["filter.rule"]
    own = [f"filter.{name}" for name in own_options(RULES[rule])]
    every = {
        f"filter.{name}" for entry in RULES.values() for name in own_options(entry)
    }
    scale = leaves["filter.loss_scale"]
    read = {f"filter.{n}" for n in own_options(FILTER_LOSS_SCALES[scale])} | set(own)
    for key in own:
        if leaves[key] is None:
            raise ValueError(
                f"filter.rule = {rule!r} needs {key}, which is None; set it, or choose "
                "another rule"
            )
    for key in sorted(every & set(OPTIONAL_KEYS) - read):
        if leaves[key] is not None:
            raise ValueError(
                f"{key} = {leaves[key]} is no option of filter.rule = {rule!r}; set it "
                f"to None (--config.{key}=None), or choose the rule it belongs to"
            )
    for key in sorted(read - set(own)):
        raise ValueError(
            f"filter.loss_scale = {scale!r} reads {key}, which filter.rule = {rule!r} "
            "does not use; choose 'linear' or 'sqrt', or filter.rule = 'top_p'"
        )
    low, high = leaves["filter.quantile_low"], leaves["filter.quantile_high"]
    if low is not None and high is not None and low >= high:
        raise ValueError(
            f"filter.quantile_low = {low} is not below filter.quantile_high = {high}; "
            "exchange them"
        )
    size = leaves["rollout.group_size"]
    if rule == "within_group" and leaves["filter.rows_per_group"] > size:
        raise ValueError(
            f"filter.rows_per_group = {leaves['filter.rows_per_group']} rows are more "
            f"than a group has (rollout.group_size = {size}); use at most {size}"
        )
    if rule == "top_k" and leaves["filter.top_k"] > leaves["rollout.num_groups"]:
        raise ValueError(
            f"filter.top_k = {leaves['filter.top_k']} groups are more than there are "
            f"(rollout.num_groups = {leaves['rollout.num_groups']}); use at most that"
        )


def keeps_every_group(leaves: Leaves) -> bool:
    """The filter's rule takes all candidates, whatever their scores."""
    rule, key = leaves["filter.rule"], "filter.top_p"
    if rule == "top_k":
        return leaves["filter.top_k"] == leaves["rollout.num_groups"]
    if rule == "within_group":
        return leaves["filter.rows_per_group"] == leaves["rollout.group_size"]
    if rule == "top_fraction":
        key = "filter.keep_fraction"
    return rule in ("top_fraction", "top_p", "top_p_softmax") and leaves[key] == 1


def _check_group_size(leaves: Leaves) -> None:
    """What a group of one row cannot do."""
    if leaves["rollout.group_size"] > 1:
        return
    advantage, score = leaves["algo.advantage"], leaves["filter.score"]
    if advantage in GROUP_ADVANTAGES:
        others = ", ".join(sorted(ADVANTAGES.keys() - set(GROUP_ADVANTAGES)))
        raise ValueError(
            f"rollout.group_size = 1 leaves algo.advantage = {advantage!r} nothing to "
            "compare a rollout with; use a group size of at least 2, or an estimator "
            f"that compares none: {others}"
        )
    keeps_all = keeps_every_group(leaves) and leaves["filter.keep_zero"]
    if score in SPREAD_SCORES and not keeps_all:
        others = ", ".join(sorted(SCORES.keys() - set(SPREAD_SCORES)))
        raise ValueError(
            f"rollout.group_size = 1 leaves filter.score = {score!r} no spread to "
            "choose groups by; use a group size of at least 2, filter.keep_fraction = "
            f"1.0, or a score of single episodes: {others}"
        )
    if leaves["algo.weigh_groups"]:
        raise ValueError(
            "rollout.group_size = 1 leaves algo.weigh_groups no spread to weigh groups "
            "by; use a group size of at least 2, or set it to False"
        )


def _check_credit(leaves: Leaves) -> None:
    placement = leaves["algo.reward_placement"]
    if placement == "turn" and leaves["algo.normalization"] != "identity":
        raise ValueError(
            f"algo.normalization = {leaves['algo.normalization']!r} compares whole "
            "episodes, but algo.reward_placement = 'turn' pays turn by turn; use "
            "'identity', or place rewards by 'episode'"
        )
    if leaves["algo.grouping"] == "environment" and leaves["env.mix"] is None:
        raise ValueError(
            "algo.grouping = 'environment' compares several games, but a run plays one "
            "unless env.mix names several; use 'batch', or set env.mix"
        )


def _check_old_log_probs(leaves: Leaves) -> None:
    cap, whose = leaves["loss.importance_cap"], leaves["loss.old_log_probs"]
    if cap is not None and whose != "learner":
        raise ValueError(
            f"loss.importance_cap = {cap} weighs the learner's old log-probabilities "
            f"against the sampler's, but loss.old_log_probs = {whose!r}; set that to "
            "'learner', or loss.importance_cap to None"
        )


def _check_kl(leaves: Leaves) -> None:
    estimator = leaves["kl.estimator"]
    if leaves["kl.placement"] == "reward" and estimator.endswith("+"):
        raise ValueError(
            f"kl.estimator = {estimator!r} differs from {estimator[:-1]!r} in its "
            "gradient only, which a reward does not have; use that, or kl.placement = "
            "'loss'"
        )
    if leaves["kl.target"] is not None and leaves["kl.placement"] is None:
        raise ValueError(
            f"kl.target = {leaves['kl.target']} has no reference to keep near; set "
            "kl.placement to 'loss' or 'reward', or kl.target to None"
        )


def _check_schedule(leaves: Leaves) -> None:
    schedule, length = leaves["schedule.shape"], leaves["schedule.decay_updates"]
    if (schedule == "constant") != (length is None):
        cure = "None" if schedule == "constant" else "the length of the run"
        raise ValueError(
            f"schedule.shape = {schedule!r} with schedule.decay_updates = "
            f"{length}; set that to {cure}, or choose another schedule"
        )
    if length is not None and length <= leaves["schedule.warmup_updates"]:
        raise ValueError(
            f"schedule.decay_updates = {length} leaves nothing after "
            f"{leaves['schedule.warmup_updates']} schedule.warmup_updates; "
            "raise it"
        )


def _check_early_stops(leaves: Leaves) -> None:
    if leaves["train.min_success"] is not None and leaves["evaluation.every"] is None:
        raise ValueError(
            f"train.min_success = {leaves['train.min_success']} is about held-out "
            "success, which nobody measures (evaluation.every = None); set that to a "
            "number of iterations, or train.min_success to None"
        )
    if leaves["train.min_spread_fraction"] and leaves["rollout.group_size"] < 2:
        raise ValueError(
            "train.min_spread_fraction is about the spread of rewards inside a group, "
            "and rollout.group_size = 1 has none; set it to None"
        )


def useless_keys(leaves: Leaves) -> dict[str, str]:
    """Prefixes of keys that change nothing in this configuration, each with why."""
    useless = {}
    advantage = leaves["algo.advantage"]
    read = set(own_options(ADVANTAGES[advantage]))
    for name in ("gamma", "lam", "high_level_gamma", "step_weight"):
        if name not in read:
            useless[f"algo.{name}"] = f"algo.advantage = {advantage!r} does not read it"
    if not needs_critic(leaves):
        useless["critic."] = f"algo.advantage = {advantage!r} has no critic"
    if leaves["algo.reward_placement"] == "turn":
        useless["algo.grouping"] = "algo.reward_placement = 'turn' normalises nothing"
    elif leaves["algo.normalization"] == "identity":
        useless["algo.grouping"] = "algo.normalization is 'identity'"
    if leaves["lora.rank"] is None:
        useless["lora."] = "lora.rank is None"
    if leaves["kl.placement"] is None:
        useless["kl."] = "kl.placement is None"
    elif leaves["kl.target"] is None:
        useless["kl.horizon"] = "kl.target is None: the weight is fixed"
    rule = leaves["filter.rule"]
    for name in ("top_p_epsilon", "direction"):
        if name not in own_options(RULES[rule]):
            useless[f"filter.{name}"] = f"filter.rule = {rule!r} does not read it"
    if keeps_every_group(leaves):
        reason = f"filter.rule = {rule!r} keeps every group here"
        useless |= {"filter.direction": reason, "filter.top_p_epsilon": reason}
        if leaves["filter.keep_zero"]:
            useless["filter.loss_scale"] = reason
    policy = leaves["loss.policy"]
    if "dual_clip" not in own_options(POLICY_LOSSES[policy]):
        useless["loss.dual_clip"] = f"loss.policy = {policy!r} does not read it"
    if leaves["schedule.shape"] == "constant":
        useless["schedule.final_fraction"] = "schedule.shape is 'constant'"
    if leaves["learner.updates_per_rollout"] > 1:
        useless["train.max_sampler_difference"] = (
            "with learner.updates_per_rollout above 1 the parameters that are compared "
            "are not the sampler's"
        )
    if leaves["train.min_spread_fraction"] is None:
        useless["train.collapse_window"] = "train.min_spread_fraction is None"
    if leaves["train.min_success"] is None:
        useless["train.failure_window"] = "train.min_success is None"
    return useless
